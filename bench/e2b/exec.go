package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Connect's envelope: one flag byte and a big-endian length before each JSON message; the last has flag 2.
const (
	envelopeHeader = 5
	flagEnd        = 0x02
	maxMessage     = 4 << 20
)

// Output is what a command left behind.
type Output struct {
	Stdout, Stderr []byte
	ExitCode       int
}

type startRequest struct {
	Process struct {
		Cmd  string   `json:"cmd"`
		Args []string `json:"args"`
	} `json:"process"`
	Stdin bool `json:"stdin"`
}

type startResponse struct {
	Event struct {
		Data *struct {
			Stdout []byte `json:"stdout"`
			Stderr []byte `json:"stderr"`
		} `json:"data"`
		End *struct {
			ExitCode int    `json:"exitCode"`
			Error    string `json:"error"`
		} `json:"end"`
	} `json:"event"`
}

// Exec runs command in the sandbox as the SDK's commands.run does (a login bash) and returns when the exit
// code has arrived. The stream's trailer is read afterwards, by release, which is not part of the latency.
func (c *Client) Exec(ctx context.Context, sb *Sandbox, command string) (out Output, release func(), err error) {
	var start startRequest
	start.Process.Cmd, start.Process.Args = "/bin/bash", []string{"-l", "-c", command}
	body, err := envelope(start)
	if err != nil {
		return out, nil, err
	}
	resp, err := c.do(ctx, "exec", http.MethodPost, c.data+"/process.Process/Start", bytes.NewReader(body), func(h http.Header) {
		sb.authorize(h)
		h.Set("Content-Type", "application/connect+json")
		h.Set("Connect-Protocol-Version", "1")
		h.Set("Connect-Timeout-Ms", "60000")
		h.Set("Keepalive-Ping-Interval", "50")
	})
	if err != nil {
		return out, nil, err
	}
	release = func() { drain(resp.Body) }
	if err := readEvents(resp.Body, &out); err != nil {
		release()
		return out, nil, fmt.Errorf("exec: %w", err)
	}
	return out, release, nil
}

func envelope(message any) ([]byte, error) {
	payload, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	frame := make([]byte, envelopeHeader, envelopeHeader+len(payload))
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	return append(frame, payload...), nil
}

// ErrProtocol means that the server broke the agent protocol.
var ErrProtocol = errors.New("agent protocol broken")

// readEvents reads up to and including the end event.
func readEvents(r io.Reader, out *Output) error {
	for {
		flags, payload, err := readFrame(r)
		if err != nil {
			return err
		}
		if flags&flagEnd != 0 {
			return fmt.Errorf("%w: the stream ended without an exit code: %s", ErrProtocol, payload)
		}
		var msg startResponse
		if err := json.Unmarshal(payload, &msg); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if d := msg.Event.Data; d != nil {
			out.Stdout = append(out.Stdout, d.Stdout...)
			out.Stderr = append(out.Stderr, d.Stderr...)
		}
		if end := msg.Event.End; end != nil {
			out.ExitCode = end.ExitCode
			return nil
		}
	}
}

func readFrame(r io.Reader) (flags byte, payload []byte, err error) {
	var header [envelopeHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, fmt.Errorf("%w: read a frame: %w", ErrProtocol, err)
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > maxMessage {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, size)
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("%w: read a frame: %w", ErrProtocol, err)
	}
	return header[0], payload, nil
}
