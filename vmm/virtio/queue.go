package virtio

// Queue is one virtqueue.
type Queue struct{}
