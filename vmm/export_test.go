package vmm

// Notifies is how many queue notifications have reached device i.
func (m *Machine) Notifies(i int) uint64 { return m.devices[i].transport.Stats.Notifies.Load() }
