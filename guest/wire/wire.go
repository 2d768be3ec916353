// Package wire defines what the host and the guest's agent say to each other outside the E2B protocol: which
// vsock ports there are, and the control messages. Each control connection carries one request and one
// reply, both a single JSON document followed by a newline.
package wire

// Vsock ports of the agent. Only PortAgent is reachable through the gateway.
const (
	// PortAgent serves the E2B agent protocol (Connect RPC and /files), the same as TCP port 49983 in E2B.
	PortAgent = 49983
	// PortControl takes one ControlRequest a connection. The host alone can reach it.
	PortControl = 1024
	// PortForward takes a line "PORT\n", dials 127.0.0.1:PORT inside the guest, answers "OK\n" or
	// "ERR reason\n", and then splices both ways. It makes every TCP port of a sandbox reachable.
	PortForward = 1025
)

// AgentVersion is the envd version whose contract the agent keeps; the SDKs gate features on it.
const AgentVersion = "0.6.13"

// Op names what a ControlRequest asks for.
type Op string

// Control operations.
const (
	// OpPing asks whether the agent is up. It changes nothing.
	OpPing Op = "ping"
	// OpFreeze prepares for a snapshot: user processes stopped, filesystems synced, caches dropped if asked.
	// User processes stay stopped and user calls refused until OpInit.
	OpFreeze Op = "freeze"
	// OpInit is the handshake after a boot or restore: entropy, then clock, then identity, and only
	// then user code.
	OpInit Op = "init"
	// OpShutdown stops processes, syncs and powers the machine off. The reply comes first.
	OpShutdown Op = "shutdown"
)

// ControlRequest is the host's half of a control connection.
type ControlRequest struct {
	Op   Op    `json:"op"`
	Init *Init `json:"init,omitempty"`
	// DropCaches, with OpFreeze, gives up the page cache. A template keeps it: all its clones share it. A
	// sandbox that is paused may do without, and its snapshot is smaller then.
	DropCaches bool `json:"dropCaches,omitempty"`
}

// Init carries what makes a clone unique and usable.
type Init struct {
	// UnixNano is the host's wall clock when the request was sent.
	UnixNano int64 `json:"unixNano"`
	// Entropy is 64 fresh random bytes for the guest kernel's generator.
	Entropy []byte `json:"entropy"`
	// Generation counts restores of one snapshot lineage; it differs for each clone.
	Generation string `json:"generation"`
	SandboxID  string `json:"sandboxID"`
	TemplateID string `json:"templateID"`
	// AccessToken is what X-Access-Token must hold on every agent call; empty means that none is asked.
	AccessToken string            `json:"accessToken,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	// DefaultUser and DefaultWorkdir apply to calls that name none.
	DefaultUser    string `json:"defaultUser,omitempty"`
	DefaultWorkdir string `json:"defaultWorkdir,omitempty"`
}

// ControlReply is the agent's half. The host treats every field as hostile input.
type ControlReply struct {
	OK bool `json:"ok"`
	// Error says what failed when OK is false.
	Error string `json:"error,omitempty"`
	// Version is the agent's AgentVersion.
	Version string `json:"version,omitempty"`
	// BootNano is the time since the guest kernel's boot in nanoseconds (CLOCK_BOOTTIME).
	BootNano int64 `json:"bootNano,omitempty"`
}
