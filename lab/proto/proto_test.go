package proto

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

func TestFramesOnTheWire(t *testing.T) {
	var b bytes.Buffer
	c := NewConn(&b)
	if err := c.Send(Stdout, []byte("hi\x00\xff")); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(StdinEnd, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "\x06\x04\x00\x00\x00hi\x00\xff\x04\x00\x00\x00\x00"; got != want {
		t.Fatalf("on the wire: %q, want %q", got, want)
	}
	for _, want := range []struct {
		t       Type
		payload string
	}{{Stdout, "hi\x00\xff"}, {StdinEnd, ""}} {
		got, payload, err := c.Receive()
		if err != nil || got != want.t || string(payload) != want.payload {
			t.Errorf("received %d %q, %v; want %d %q", got, payload, err, want.t, want.payload)
		}
	}
	if _, _, err := c.Receive(); err != io.EOF {
		t.Errorf("after the last frame: %v, want io.EOF", err)
	}
}

func TestBrokenStreams(t *testing.T) {
	tests := []struct {
		name, wire string
		want       error // nil: any but io.EOF
	}{
		{"type 0", "\x00\x00\x00\x00\x00", nil},
		{"unknown type", "\x7f\x00\x00\x00\x00", nil},
		{"a megabyte and one", "\x06\x01\x00\x10\x00", nil},
		{"cut in the head", "\x06\x01", io.ErrUnexpectedEOF},
		{"cut in the payload", "\x06\x04\x00\x00\x00hi", io.ErrUnexpectedEOF},
		{"cut before the payload", "\x06\x04\x00\x00\x00", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := NewConn(bytes.NewBufferString(tt.wire)).Receive()
			if err == nil || err == io.EOF || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error is %v, want %v", err, tt.want)
			}
		})
	}
	if err := NewConn(&bytes.Buffer{}).Send(Stdout, make([]byte, MaxPayload+1)); err == nil {
		t.Error("sending more than MaxPayload succeeded")
	}
}

// Output of many goroutines arrives whole, and each one's in its order.
func TestConcurrentWriters(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	conn := NewConn(a)
	var wg sync.WaitGroup
	want := map[Type]string{Stdout: strings.Repeat("out", 50_000), Stderr: strings.Repeat("err", 30_000)}
	for typ, text := range want {
		wg.Go(func() {
			if _, err := io.WriteString(conn.Writer(typ), text); err != nil {
				t.Error(err)
			}
		})
	}
	go func() {
		wg.Wait()
		conn.Send(Exit, nil)
	}()
	got := map[Type]string{}
	peer := NewConn(b)
	for {
		typ, payload, err := peer.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if typ == Exit {
			break
		}
		got[typ] += string(payload)
	}
	for typ, text := range want {
		if got[typ] != text {
			t.Errorf("type %d: %d bytes arrived of %d, or out of order", typ, len(got[typ]), len(text))
		}
	}
}
