package mmio

import (
	"encoding/binary"

	"cella.dev/cella/vmm/virtio"
)

// Read serves a guest's read of len(p) bytes at offset. What the specification doesn't allow reads as zeros.
func (t *Transport) Read(offset uint64, p []byte) {
	if offset >= regConfig {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.dev.ReadConfig(offset-regConfig, p)
		return
	}
	clear(p)
	if len(p) != 4 || offset%4 != 0 {
		t.Stats.BadAccess.Add(1)
		return
	}
	binary.LittleEndian.PutUint32(p, t.readRegister(offset))
}

// Write serves a guest's write. What the specification doesn't allow is counted and ignored.
func (t *Transport) Write(offset uint64, p []byte) {
	if offset >= regConfig {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.dev.WriteConfig(offset-regConfig, p)
		return
	}
	if len(p) != 4 || offset%4 != 0 {
		t.Stats.BadAccess.Add(1)
		return
	}
	v := binary.LittleEndian.Uint32(p)
	switch offset {
	case regQueueNotify:
		t.Notify(int(v))
	case regInterruptACK:
		t.interrupts.And(^v)
	default:
		l := (*guard)(t)
		l.Lock()
		defer l.Unlock()
		if !t.writeRegister(offset, v) {
			t.Stats.BadAccess.Add(1)
		}
	}
}

func (t *Transport) readRegister(offset uint64) uint32 {
	switch offset {
	case regMagic:
		return magic
	case regVersion:
		return version
	case regDeviceID:
		return t.dev.Type()
	case regVendorID:
		return vendorID
	case regInterruptStatus:
		return t.interrupts.Load()
	case regConfigGeneration:
		return 0 // no device changes its configuration space by itself
	case regSHMLenLow, regSHMLenHigh, regSHMBaseLow, regSHMBaseHigh:
		return 0xffffffff // no shared memory regions (§4.2.2.1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch offset {
	case regDeviceFeatures:
		return half(t.offered(), t.deviceSel)
	case regStatus:
		return t.status
	case regQueueNumMax:
		if t.queueSel < uint32(len(t.configs)) {
			return uint32(t.maxSize(t.queueSel))
		}
		return 0
	case regQueueReady:
		if t.queueSel < uint32(len(t.configs)) && t.configs[t.queueSel].Ready {
			return 1
		}
		return 0
	}
	t.Stats.BadAccess.Add(1)
	return 0
}

// half is word sel of a feature set; words past the second hold nothing.
func half(features uint64, sel uint32) uint32 {
	if sel > 1 {
		return 0
	}
	return uint32(features >> (32 * sel))
}

// maxSize is what the device offers for a queue, within what Queue can do.
func (t *Transport) maxSize(queue uint32) uint16 {
	return min(t.dev.QueueSizes()[queue], virtio.MaxQueueSize)
}

// writeRegister reports whether the driver was allowed to write v there now.
func (t *Transport) writeRegister(offset uint64, v uint32) bool {
	switch offset {
	case regDeviceFeaturesSel:
		t.deviceSel = v
	case regDriverFeaturesSel:
		t.driverSel = v
	case regDriverFeatures:
		return t.writeFeatures(v)
	case regStatus:
		return t.writeStatus(v)
	case regQueueSel:
		t.queueSel = v
	default:
		return t.writeQueue(offset, v)
	}
	return true
}

// writeFeatures takes a word of the driver's features until FEATURES_OK fixes them.
func (t *Transport) writeFeatures(v uint32) bool {
	if t.status&statusDriver == 0 || t.status&(statusFeaturesOK|statusFailed) != 0 || t.driverSel > 1 {
		return false
	}
	shift := 32 * t.driverSel
	t.driverFeatures = t.driverFeatures&^(0xffffffff<<shift) | uint64(v)<<shift
	return true
}

// writeStatus follows the initialisation sequence (virtio 1.2 §3.1.1): bits are added in order, never taken
// away but by a reset, and FEATURES_OK sticks only if the device can work with the features.
func (t *Transport) writeStatus(v uint32) bool {
	if v == 0 {
		t.reset()
		return true
	}
	kept := t.status &^ statusNeedsReset
	if v&kept != kept {
		return false
	}
	added := v &^ t.status
	if added&statusFailed != 0 {
		t.status |= statusFailed
		return true
	}
	ok := true
	for _, step := range [...]struct{ bit, needs uint32 }{
		{statusAcknowledge, 0},
		{statusDriver, statusAcknowledge},
		{statusFeaturesOK, statusDriver},
		{statusDriverOK, statusFeaturesOK},
	} {
		if added&step.bit == 0 {
			continue
		}
		if t.status&step.needs != step.needs || t.status&statusFailed != 0 || !t.enter(step.bit) {
			ok = false
			break
		}
	}
	return ok
}

// enter sets one status bit if the device agrees.
func (t *Transport) enter(bit uint32) bool {
	switch bit {
	case statusFeaturesOK:
		if t.driverFeatures&^t.offered() != 0 || t.driverFeatures&virtio.FeatureVersion1 == 0 {
			return false
		}
	case statusDriverOK:
		t.status |= bit
		states := make([]virtio.QueueState, len(t.configs))
		for i, c := range t.configs {
			states[i].QueueConfig = c
		}
		if t.activate(states) != nil {
			t.needsReset()
		}
		return true
	}
	t.status |= bit
	return true
}

// writeQueue sets up the selected queue. Its layout is fixed while it is ready.
func (t *Transport) writeQueue(offset uint64, v uint32) bool {
	if t.queueSel >= uint32(len(t.configs)) || t.status&statusFeaturesOK == 0 || t.status&statusFailed != 0 {
		return false
	}
	c := &t.configs[t.queueSel]
	if offset == regQueueReady {
		return t.setReady(c, v)
	}
	if c.Ready || t.status&statusDriverOK != 0 {
		return false
	}
	switch offset {
	case regQueueNum:
		if v == 0 || v > uint32(t.maxSize(t.queueSel)) || v&(v-1) != 0 {
			return false
		}
		c.Size = uint16(v)
	case regQueueDescLow:
		setLow(&c.Desc, v)
	case regQueueDescHigh:
		setHigh(&c.Desc, v)
	case regQueueDriverLow:
		setLow(&c.Avail, v)
	case regQueueDriverHigh:
		setHigh(&c.Avail, v)
	case regQueueDeviceLow:
		setLow(&c.Used, v)
	case regQueueDeviceHigh:
		setHigh(&c.Used, v)
	default:
		return false
	}
	return true
}

// setReady takes 1 before DRIVER_OK, and 0 at any time to stop a queue.
func (t *Transport) setReady(c *virtio.QueueConfig, v uint32) bool {
	switch {
	case v > 1, v == 1 && t.status&statusDriverOK != 0:
		return false
	case v == 0 && t.queues != nil:
		t.queues[t.queueSel].Disable()
	}
	c.Ready = v == 1
	return true
}

func setLow(addr *uint64, v uint32)  { *addr = *addr&^0xffffffff | uint64(v) }
func setHigh(addr *uint64, v uint32) { *addr = *addr&0xffffffff | uint64(v)<<32 }
