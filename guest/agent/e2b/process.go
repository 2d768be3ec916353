// Package e2b holds the messages of the E2B agent protocol: the services process.Process and
// filesystem.Filesystem. The pb tags are the protobuf field numbers, the json tags the proto3 JSON names.
package e2b

import "cella.dev/cella/guest/agent/rpc"

// ProcessConfig says what to run.
type ProcessConfig struct {
	Cmd  string            `json:"cmd,omitempty" pb:"1"`
	Args []string          `json:"args,omitempty" pb:"2"`
	Envs map[string]string `json:"envs,omitempty" pb:"3"`
	Cwd  *string           `json:"cwd,omitempty" pb:"4"`
}

// PTYSize is a terminal's size in characters.
type PTYSize struct {
	Cols rpc.Uint32 `json:"cols,omitempty" pb:"1"`
	Rows rpc.Uint32 `json:"rows,omitempty" pb:"2"`
}

// PTY asks for a terminal.
type PTY struct {
	Size *PTYSize `json:"size,omitempty" pb:"1"`
}

// ProcessInfo is an entry of ListResponse.
type ProcessInfo struct {
	Config *ProcessConfig `json:"config,omitempty" pb:"1"`
	PID    rpc.Uint32     `json:"pid,omitempty" pb:"2"`
	Tag    *string        `json:"tag,omitempty" pb:"3"`
}

// ListRequest asks for the running processes.
type ListRequest struct{}

// ListResponse holds the running processes.
type ListResponse struct {
	Processes []*ProcessInfo `json:"processes,omitempty" pb:"1"`
}

// StartRequest starts a process. Stdin nil means true.
type StartRequest struct {
	Process *ProcessConfig `json:"process,omitempty" pb:"1"`
	PTY     *PTY           `json:"pty,omitempty" pb:"2"`
	Tag     *string        `json:"tag,omitempty" pb:"3"`
	Stdin   *bool          `json:"stdin,omitempty" pb:"4"`
}

// ProcessSelector names a process by one of its two names.
type ProcessSelector struct {
	PID *rpc.Uint32 `json:"pid,omitempty" pb:"1"`
	Tag *string     `json:"tag,omitempty" pb:"2"`
}

// StartEvent is always a stream's first event.
type StartEvent struct {
	PID rpc.Uint32 `json:"pid,omitempty" pb:"1"`
}

// DataEvent holds output; one field is set.
type DataEvent struct {
	Stdout rpc.Bytes `json:"stdout,omitempty" pb:"1"`
	Stderr rpc.Bytes `json:"stderr,omitempty" pb:"2"`
	PTY    rpc.Bytes `json:"pty,omitempty" pb:"3"`
}

// EndEvent is always a finished process's last event.
type EndEvent struct {
	ExitCode int32  `json:"exitCode,omitempty" pb:"1,zigzag"`
	Exited   bool   `json:"exited,omitempty" pb:"2"`
	Status   string `json:"status,omitempty" pb:"3"`
	// Error repeats Status for every exit but that with code 0.
	Error *string `json:"error,omitempty" pb:"4"`
}

// KeepAlive is sent on idle streams and in StreamInput.
type KeepAlive struct{}

// ProcessEvent is a oneof.
type ProcessEvent struct {
	Start     *StartEvent `json:"start,omitempty" pb:"1"`
	Data      *DataEvent  `json:"data,omitempty" pb:"2"`
	End       *EndEvent   `json:"end,omitempty" pb:"3"`
	KeepAlive *KeepAlive  `json:"keepalive,omitempty" pb:"4"`
}

// EventResponse is what Start and Connect stream.
type EventResponse struct {
	Event *ProcessEvent `json:"event,omitempty" pb:"1"`
}

// ConnectRequest subscribes to a process.
type ConnectRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// UpdateRequest resizes a terminal.
type UpdateRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	PTY     *PTY             `json:"pty,omitempty" pb:"2"`
}

// ProcessInput is a oneof.
type ProcessInput struct {
	Stdin rpc.Bytes `json:"stdin,omitempty" pb:"1"`
	PTY   rpc.Bytes `json:"pty,omitempty" pb:"2"`
}

// SendInputRequest writes to a process's stdin or terminal.
type SendInputRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	Input   *ProcessInput    `json:"input,omitempty" pb:"2"`
}

// StreamInputStart is StreamInput's first message.
type StreamInputStart struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// StreamInputData carries input; its field number is 2.
type StreamInputData struct {
	Input *ProcessInput `json:"input,omitempty" pb:"2"`
}

// StreamInputRequest is a oneof.
type StreamInputRequest struct {
	Start     *StreamInputStart `json:"start,omitempty" pb:"1"`
	Data      *StreamInputData  `json:"data,omitempty" pb:"2"`
	KeepAlive *KeepAlive        `json:"keepalive,omitempty" pb:"3"`
}

// Signal is the protocol's enum; the numbers are Linux's.
type Signal int32

// Signals.
const (
	SignalUnspecified Signal = 0
	SignalKill        Signal = 9
	SignalTerm        Signal = 15
)

var signalNames = map[int32]string{0: "SIGNAL_UNSPECIFIED", 9: "SIGNAL_SIGKILL", 15: "SIGNAL_SIGTERM"}

// MarshalJSON writes the name.
func (s Signal) MarshalJSON() ([]byte, error) { return rpc.EnumToJSON(signalNames, int32(s)) }

// UnmarshalJSON reads a name or a number.
func (s *Signal) UnmarshalJSON(data []byte) error {
	v, err := rpc.EnumFromJSON(signalNames, data)
	*s = Signal(v)
	return err
}

// SendSignalRequest signals a process.
type SendSignalRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	Signal  Signal           `json:"signal,omitempty" pb:"2"`
}

// CloseStdinRequest closes a process's stdin.
type CloseStdinRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// Empty is the reply of the methods that only succeed or fail.
type Empty struct{}
