package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"cella.dev/cella/lab/proto"
)

// session is the host's side of one run.
type session struct {
	o    *Options
	m    *machine
	conn *proto.Conn
}

// run talks to the lab until the command has ended and its files are here, or until the lab, the time limit or
// the caller ends it first. In each case the caller must kill the machine afterwards, which also ends what
// run leaves waiting.
func (s *session) run(ctx context.Context) (Result, error) {
	type outcome struct {
		result Result
		err    error
	}
	over := make(chan outcome, 1)
	alive := make(chan struct{}, 1)
	go func() {
		r, err := s.talk(alive)
		over <- outcome{r, err}
	}()
	stall := time.NewTimer(stallLimit)
	defer stall.Stop()
	for {
		select {
		case <-alive:
			stall.Reset(stallLimit)
		case o := <-over:
			if errors.Is(o.err, io.EOF) {
				return o.result, s.crashed()
			}
			return o.result, o.err
		case <-stall.C:
			return Result{}, fmt.Errorf("the lab has hung: no sign of life for %v", stallLimit)
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
	}
}

// crashed says how the lab ended although its command had not.
func (s *session) crashed() error {
	<-s.m.done
	if s.m.err != nil {
		return fmt.Errorf("the lab's emulator failed: %w", s.m.err)
	}
	return errors.New("the lab crashed or powered off before its command had ended")
}

// talk follows the protocol to its end. Every frame is a sign of life.
func (s *session) talk(alive chan<- struct{}) (Result, error) {
	var result Result
	var files *receiver
	for {
		t, payload, err := s.conn.Receive()
		if err != nil {
			return result, err
		}
		select {
		case alive <- struct{}{}:
		default:
		}
		switch t {
		case proto.Hello:
			err = s.begin()
		case proto.Stdout:
			_, err = s.o.Stdout.Write(payload)
		case proto.Stderr:
			_, err = s.o.Stderr.Write(payload)
		case proto.Exit:
			result, err = decodeExit(payload)
			files = receive(s.o.Out)
		case proto.Archive:
			if files == nil {
				return result, errors.New("the lab sent files before its command had ended")
			}
			if len(payload) == 0 {
				return result, files.finish(result.ExitCode == 0)
			}
			err = files.write(payload)
		case proto.Failed:
			return result, fmt.Errorf("the lab failed: %s", payload)
		}
		if err != nil {
			return result, err
		}
	}
}

// begin sends the command, and then its input for as long as it lasts.
func (s *session) begin() error {
	if s.o.Ready != nil {
		s.o.Ready()
	}
	if err := s.conn.SendJSON(proto.Start, s.o.startRequest()); err != nil {
		return err
	}
	if s.o.Stdin != nil {
		go func() {
			// An error here means that the lab is gone, which talk sees too.
			io.Copy(s.conn.Writer(proto.Stdin), s.o.Stdin)
			s.conn.Send(proto.StdinEnd, nil)
		}()
	}
	if s.o.Terminal != nil && s.o.Resize != nil {
		go func() {
			for size := range s.o.Resize {
				s.conn.SendJSON(proto.Resize, size)
			}
		}()
	}
	return nil
}

// receiver unpacks the files that come out of the lab while they come.
type receiver struct {
	out  []Copy
	pipe *io.PipeWriter
	done chan error
}

func receive(out []Copy) *receiver {
	r, w := io.Pipe()
	rec := &receiver{out: out, pipe: w, done: make(chan error, 1)}
	go func() {
		err := readOut(r, out)
		r.CloseWithError(err) // Writers see what stopped the reading.
		rec.done <- err
	}()
	return rec
}

func (r *receiver) write(p []byte) error {
	_, err := r.pipe.Write(p)
	return err
}

// finish waits until all is written. Where mustHave is set, every file asked for must have come.
func (r *receiver) finish(mustHave bool) error {
	r.pipe.Close()
	if err := <-r.done; err != nil {
		return err
	}
	for _, c := range r.out {
		if mustHave && !exists(c.To) {
			return fmt.Errorf("copy %s out of the lab: it is not there", c.From)
		}
	}
	return nil
}
