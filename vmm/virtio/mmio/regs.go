package mmio

// Register offsets (virtio 1.2 §4.2.2).
const (
	regMagic             = 0x000
	regVersion           = 0x004
	regDeviceID          = 0x008
	regVendorID          = 0x00c
	regDeviceFeatures    = 0x010
	regDeviceFeaturesSel = 0x014
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSel          = 0x030
	regQueueNumMax       = 0x034
	regQueueNum          = 0x038
	regQueueReady        = 0x044
	regQueueNotify       = 0x050
	regInterruptStatus   = 0x060
	regInterruptACK      = 0x064
	regStatus            = 0x070
	regQueueDescLow      = 0x080
	regQueueDescHigh     = 0x084
	regQueueDriverLow    = 0x090
	regQueueDriverHigh   = 0x094
	regQueueDeviceLow    = 0x0a0
	regQueueDeviceHigh   = 0x0a4
	regSHMLenLow         = 0x0b0
	regSHMLenHigh        = 0x0b4
	regSHMBaseLow        = 0x0b8
	regSHMBaseHigh       = 0x0bc
	regConfigGeneration  = 0x0fc
	regConfig            = 0x100
)

const (
	magic    = 0x74726976 // "virt"
	version  = 2
	vendorID = 0x414c4543 // "CELA"
)

// Device status bits (virtio 1.2 §2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusFailed      = 128
)

// Interrupt status bits (virtio 1.2 §4.2.2).
const (
	interruptUsed   = 1
	interruptConfig = 2
)

// Size is the length of the register window a transport needs, in bytes. QueueNotify is a 4-byte register
// at NotifyOffset of it, for an ioeventfd per queue with the queue's index as datamatch.
const (
	Size         = 0x1000
	NotifyOffset = regQueueNotify
)
