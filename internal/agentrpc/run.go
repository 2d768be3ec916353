// Package agentrpc is a small client of the sandbox agent's process service: the E2B agent protocol, which is
// Connect RPC with JSON. It runs one command over one connection.
package agentrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxFrame bounds one message of a stream; the agent sends chunks of 32 KiB.
const maxFrame = 4 << 20

// flagEnd marks a stream's last frame, which holds its error (Connect protocol, "Streaming RPCs").
const flagEnd = 2

// Command is what to run.
type Command struct {
	Path string
	Args []string
	Env  map[string]string
	// Dir is the working directory; empty means the sandbox's default.
	Dir string
	// User to run as; empty means the sandbox's default.
	User string
	// Token is the sandbox's access token, if it has one.
	Token string
}

// Shell returns the command that the E2B SDKs run for a command line.
func Shell(line string) Command {
	return Command{Path: "/bin/bash", Args: []string{"-l", "-c", line}}
}

// Output takes what the command prints. Neither may be nil.
type Output struct {
	Stdout, Stderr io.Writer
}

// Run starts a command over conn, which it uses up, copies its output and returns its exit code; a command
// ended by signal n has code 128+n where the agent says so. Standard input is empty.
func Run(ctx context.Context, conn net.Conn, c Command, out Output) (int, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	code, err := run(conn, c, out)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return code, err
}

func run(conn net.Conn, c Command, out Output) (int, error) {
	req, err := startRequest(c)
	if err != nil {
		return 0, err
	}
	if err := req.Write(conn); err != nil {
		return 0, fmt.Errorf("start process: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 64<<10), req)
	if err != nil {
		return 0, fmt.Errorf("start process: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return 0, fmt.Errorf("start process: %s: %s", resp.Status, body)
	}
	return copyEvents(resp.Body, out)
}

func startRequest(c Command) (*http.Request, error) {
	type config struct {
		Cmd  string            `json:"cmd"`
		Args []string          `json:"args,omitempty"`
		Envs map[string]string `json:"envs,omitempty"`
		Cwd  string            `json:"cwd,omitempty"`
	}
	msg, err := json.Marshal(struct {
		Process config `json:"process"`
		Stdin   bool   `json:"stdin"`
	}{config{c.Path, c.Args, c.Env, c.Dir}, false})
	if err != nil {
		return nil, err
	}
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg)))
	req, err := http.NewRequest(http.MethodPost, "http://agent/process.Process/Start", bytes.NewReader(append(frame, msg...)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	if c.User != "" {
		req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.User+":")))
	}
	if c.Token != "" {
		req.Header.Set("X-Access-Token", c.Token)
	}
	return req, nil
}

// startResponse is the part of process.StartResponse that a client reads; []byte fields are base64 in JSON.
type startResponse struct {
	Event struct {
		Data *struct {
			Stdout []byte `json:"stdout"`
			Stderr []byte `json:"stderr"`
		} `json:"data"`
		End *struct {
			ExitCode int    `json:"exitCode"`
			Status   string `json:"status"`
		} `json:"end"`
	} `json:"event"`
}

func copyEvents(body io.Reader, out Output) (int, error) {
	for {
		flags, msg, err := readFrame(body)
		if err != nil {
			return 0, fmt.Errorf("process ended without an exit code: %w", err)
		}
		if flags&flagEnd != 0 {
			return 0, streamError(msg)
		}
		var r startResponse
		if err := json.Unmarshal(msg, &r); err != nil {
			return 0, fmt.Errorf("process event: %w", err)
		}
		if d := r.Event.Data; d != nil {
			if _, err := out.Stdout.Write(d.Stdout); err != nil {
				return 0, err
			}
			if _, err := out.Stderr.Write(d.Stderr); err != nil {
				return 0, err
			}
		}
		if r.Event.End != nil {
			return r.Event.End.ExitCode, nil
		}
	}
}

func readFrame(r io.Reader) (flags byte, msg []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is over the limit of %d", n, maxFrame)
	}
	msg = make([]byte, n)
	if _, err := io.ReadFull(r, msg); err != nil {
		return 0, nil, err
	}
	return head[0], msg, nil
}

// streamError reads a stream's last frame: the error that ended it before the process did.
func streamError(msg []byte) error {
	var end struct {
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg, &end); err != nil {
		return fmt.Errorf("end of stream: %w", err)
	}
	if end.Error == nil {
		return errors.New("the stream ended without an exit code")
	}
	return fmt.Errorf("%s: %s", end.Error.Code, end.Error.Message)
}
