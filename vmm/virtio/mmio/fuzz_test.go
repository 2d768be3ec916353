package mmio_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"cella.dev/cella/vmm/virtio/mmio"
	"cella.dev/cella/vmm/virtio/virtiotest"
)

// recorder keeps the register writes of a driver as input for FuzzRegisters.
type recorder struct {
	virtiotest.Bus
	writes []byte
}

func (r *recorder) Write(offset uint64, p []byte) {
	r.writes = append(r.writes, byte(offset>>2))
	r.writes = append(r.writes, append(p, 0, 0, 0, 0)[:4]...)
	r.Bus.Write(offset, p)
}

// FuzzRegisters makes any sequence of register accesses: one byte of offset in words, four of value. Then it
// checks that the state survives being saved and restored.
func FuzzRegisters(f *testing.F) {
	for _, features := range []uint64{virtiotest.Version1, virtiotest.Version1 | virtiotest.EventIdx | echoFeature} {
		d, _ := newDriver(&echo{})
		r := &recorder{Bus: d.Bus}
		d.Bus = r
		virtiotest.Must(f, d.Init(features, 2, 16))
		f.Add(r.writes)
		f.Add(append(bytes.Clone(r.writes), 0x50>>2, 0, 0, 0, 0, 0x70>>2, 0, 0, 0, 0, 0x44>>2, 1, 0, 0, 0))
	}
	f.Add([]byte{0x70 >> 2, 255, 255, 255, 255, 0x30 >> 2, 255, 255, 255, 255, 0x44 >> 2, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		dev := &echo{}
		d, tr := newDriver(dev)
		for len(input) >= 5 {
			offset := uint64(input[0]) * 4
			tr.Read(offset, make([]byte, 4))
			tr.Write(offset, input[1:5])
			input = input[5:]
		}
		status := d.Read32(0x70)
		if tr.Active() && status&4 == 0 {
			t.Errorf("device is active with status %d", status)
		}
		state, err := tr.Save()
		virtiotest.Must(t, err)
		if !tr.Active() && status&4 != 0 {
			return // failed to activate; a restore leaves it so or refuses
		}
		restored := mmio.New(d.Mem, &echo{}, d.IRQ)
		virtiotest.Must(t, restored.Restore(state))
		again, err := restored.Save()
		virtiotest.Must(t, err)
		if !bytes.Equal(state, again) {
			t.Errorf("state %x came back as %x", state, again)
		}
	})
}

// FuzzRestore reads any state. What it accepts must work.
func FuzzRestore(f *testing.F) {
	d, tr := newDriver(&echo{state: []byte("device")})
	fresh, err := tr.Save()
	virtiotest.Must(f, err)
	f.Add(fresh)
	virtiotest.Must(f, d.Init(virtiotest.Version1|virtiotest.EventIdx, 2, 16))
	active, err := tr.Save()
	virtiotest.Must(f, err)
	f.Add(active)
	f.Add(binary.LittleEndian.AppendUint64(nil, 1))
	f.Fuzz(func(t *testing.T, state []byte) {
		restored := mmio.New(virtiotest.NewMemory(1<<20), &echo{}, virtiotest.NewInterrupt())
		if restored.Restore(state) != nil {
			return
		}
		restored.Kick()
		if _, err := restored.Save(); err != nil {
			t.Error(err)
		}
		restored.Write(0x70, make([]byte, 4))
	})
}
