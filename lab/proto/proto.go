// Package proto is what the host and the lab's init say to each other over one virtio-serial port: frames of a
// type, a length and a payload, in order.
//
//	lab  -> host   Hello        the lab is up
//	host -> lab    Start        what to run
//	host -> lab    Stdin, StdinEnd, Resize
//	lab  -> host   Stdout, Stderr, Beat      while it runs
//	lab  -> host   Exit         the command is gone and all its output was sent
//	lab  -> host   Archive      files to copy out, a tar stream in pieces; an empty piece ends it
//	lab  -> host   Failed       the lab itself could not do what was asked; nothing follows
//
// After the last frame the host ends the lab: nothing in it outlives the run.
package proto

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Type says what a frame carries.
type Type uint8

// Frame types.
const (
	Hello Type = iota + 1
	Start
	Stdin
	StdinEnd
	Resize
	Stdout
	Stderr
	Beat
	Exit
	Archive
	Failed
)

// Port is the name of the virtio-serial port.
const Port = "cella.lab"

// MaxPayload bounds a frame's payload in bytes; it keeps a broken stream from looking like a huge frame.
const MaxPayload = 1 << 20

// StartRequest is the payload of Start.
type StartRequest struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	// Stdin says that Stdin frames and a StdinEnd will come; without it the command reads /dev/null.
	Stdin bool `json:"stdin"`
	// Terminal gives the command a terminal of this size; its output is all Stdout.
	Terminal *Size `json:"terminal,omitempty"`
	// Out lists the paths to send back when the command has ended.
	Out []string `json:"out"`
	// UnixNano is the host's clock.
	UnixNano int64 `json:"unixNano"`
}

// Size is a terminal's size, the payload of Resize.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExitStatus is the payload of Exit. Times are the lab's own, in nanoseconds.
type ExitStatus struct {
	// Code is the exit code, or 128 + the number of the signal that ended the command.
	Code int `json:"code"`
	// BootNano is how long the lab had been up when the command started.
	BootNano int64 `json:"bootNano"`
	// RunNano is how long the command ran.
	RunNano int64 `json:"runNano"`
}

// Conn sends and receives frames. Send may be called by many goroutines, Receive by one.
type Conn struct {
	mu sync.Mutex // guards writes
	rw io.ReadWriter
}

// NewConn returns a Conn over rw.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

const headSize = 5

// Send writes one frame.
func (c *Conn) Send(t Type, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("lab protocol: a payload of %d bytes is over the limit of %d", len(payload), MaxPayload)
	}
	// One write a frame: a virtio-serial write costs an exit.
	frame := make([]byte, headSize+len(payload))
	frame[0] = byte(t)
	binary.LittleEndian.PutUint32(frame[1:], uint32(len(payload)))
	copy(frame[headSize:], payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(frame) > 0 {
		n, err := c.rw.Write(frame)
		if err != nil {
			return fmt.Errorf("lab protocol: send: %w", err)
		}
		frame = frame[n:]
	}
	return nil
}

// SendJSON sends a frame whose payload is v as JSON.
func (c *Conn) SendJSON(t Type, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(t, payload)
}

// Receive reads one frame. It returns io.EOF only at a frame's boundary.
func (c *Conn) Receive() (Type, []byte, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return 0, nil, err
	}
	t, size := Type(head[0]), binary.LittleEndian.Uint32(head[1:])
	if t < Hello || t > Failed {
		return 0, nil, fmt.Errorf("lab protocol: unknown frame type %d", t)
	}
	if size > MaxPayload {
		return 0, nil, fmt.Errorf("lab protocol: a frame claims %d bytes, the limit is %d", size, MaxPayload)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(c.rw, payload); err != nil {
		return 0, nil, fmt.Errorf("lab protocol: a frame was cut short: %w", err)
	}
	return t, payload, nil
}

// Writer returns a Writer that sends everything written to it as frames of type t.
func (c *Conn) Writer(t Type) io.Writer { return frameWriter{c, t} }

type frameWriter struct {
	c *Conn
	t Type
}

func (w frameWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, 32<<10)
		if err := w.c.Send(w.t, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(p), nil
}
