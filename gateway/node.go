package gateway

import (
	"context"
	"net"
	"time"

	"cella.dev/cella/node"
)

// Node is what the gateway needs of the host that runs the sandboxes. All methods may be called concurrently.
// Errors wrap the sentinels of package node; any other error is an internal one.
type Node interface {
	// Create returns when the sandbox can take its first command. ErrTemplateNotFound, ErrCapacity.
	Create(ctx context.Context, req node.CreateRequest) (node.Sandbox, error)
	// Get returns a sandbox in StateRunning or StatePaused; ErrNotFound before and after.
	Get(id string) (node.Sandbox, error)
	List() []node.Sandbox
	// Kill returns when the sandbox no longer runs. ErrNotFound.
	Kill(ctx context.Context, id string) error
	// SetTimeout sets when the sandbox ends, sooner or later than before; the past means at once.
	SetTimeout(id string, endAt time.Time) error
	// Extend moves the end to endAt if that is later, and wins against an expiry at the same moment or
	// returns ErrNotFound. ErrConflict while the sandbox is being killed.
	Extend(id string, endAt time.Time) (node.Sandbox, error)
	// SetNetwork replaces what a sandbox may reach; internet is nil for the default. ErrNotFound, ErrPolicy, ErrNoNetwork.
	SetNetwork(id string, internet *bool, p node.NetworkPolicy) error
	// Dial connects to a TCP port inside the sandbox. ErrNotFound, ErrPortClosed.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
	// Template finds a template by ID or alias. ErrTemplateNotFound.
	Template(nameOrID string) (node.Template, error)
	Templates() []node.Template
}
