package node

import (
	"errors"
	"time"

	"cella.dev/cella/node/worker"
)

// State is where a sandbox is in its life (design: creating → running → killing → gone).
type State string

// States of a sandbox that callers can see.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
)

// Errors that callers decide on. They are wrapped with the sandbox or template they are about.
var (
	ErrNotFound         = errors.New("sandbox not found")
	ErrTemplateNotFound = errors.New("template not found")
	ErrConflict         = errors.New("sandbox is changing state")
	ErrPortClosed       = errors.New("port is not open")
	ErrCapacity         = errors.New("no capacity")
	ErrNoNetwork        = errors.New("sandboxes have no network here")
	ErrPolicy           = errors.New("network policy")
)

// CreateRequest asks for a sandbox.
type CreateRequest struct {
	// Template is a template's ID or alias.
	Template string
	// Timeout is the time to live, counted from ready. It must be positive.
	Timeout time.Duration
	// Team owns the sandbox; other teams never see it.
	Team     string
	Metadata map[string]string
	Env      map[string]string
	// Secure asks for an agent access token.
	Secure bool
	// AllowInternet is nil where the caller did not say.
	AllowInternet *bool
	// Network says what may be reached. Asking for something where there is no network is ErrNoNetwork.
	Network NetworkPolicy
	// Cold boots the template's kernel and disk instead of restoring its snapshot.
	Cold bool
}

// Template describes what sandboxes are made from.
type Template struct {
	// ID is 20 characters of [a-z0-9]; Alias is the name that people use. Both work in CreateRequest.
	ID    string `json:"id"`
	Alias string `json:"alias"`
	// BuildID is a UUID, new for each build.
	BuildID      string    `json:"buildID"`
	CreatedAt    time.Time `json:"createdAt"`
	CPUCount     int       `json:"cpuCount"`
	MemoryMB     int       `json:"memoryMB"`
	DiskSizeMB   int       `json:"diskSizeMB"`
	AgentVersion string    `json:"agentVersion"`
	// DefaultUser and DefaultWorkdir apply to calls to the agent that name none.
	DefaultUser    string `json:"defaultUser"`
	DefaultWorkdir string `json:"defaultWorkdir"`
	// Card is the guest's network card, part of its snapshot; nil for a template without one.
	Card *worker.Card `json:"card,omitempty"`
}

// Sandbox describes one sandbox. It is a value: a copy taken under the node's lock.
type Sandbox struct {
	ID           string
	TemplateID   string
	Alias        string
	Team         string
	State        State
	StartedAt    time.Time
	EndAt        time.Time
	CPUCount     int
	MemoryMB     int
	DiskSizeMB   int
	AgentVersion string
	// AccessToken is what agent calls must carry; empty if the sandbox was created without Secure.
	AccessToken   string
	AllowInternet *bool
	Network       NetworkPolicy
	Metadata      map[string]string
	// Phases are the parts of its creation in order; their sum is the whole.
	Phases []Phase
}

// Phase is one part of a create.
type Phase struct {
	// Name is claim, disk, restore (or boot) or handshake.
	Name     string
	Duration time.Duration
}
