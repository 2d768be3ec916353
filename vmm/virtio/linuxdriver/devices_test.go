//go:build e2e

package linuxdriver

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cella.dev/cella/vmm/virtio/blk"
	"cella.dev/cella/vmm/virtio/rng"
	"cella.dev/cella/vmm/virtio/virtiotest"
	"cella.dev/cella/vmm/virtio/vsock"
)

const guestCID = 3

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestDisk(t *testing.T) {
	want := random(4 << 20)
	path := filepath.Join(t.TempDir(), "disk")
	virtiotest.Must(t, os.WriteFile(path, want, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	virtiotest.Must(t, err)
	defer f.Close()
	disk, err := blk.New(f, blk.Config{Serial: "cella-test"})
	virtiotest.Must(t, err)
	m := newMachine(t, disk).boot("disk", -1)
	m.await("guest: done")
	m.await(`guest: serial "cella-test"`)
	m.await(fmt.Sprintf("guest: read %d bytes, sha256 %x", len(want), sha256.Sum256(want)))
	<-m.Done()
	copy(want[256<<10:], bytes.Repeat([]byte("w"), 256<<10))
	clear(want[1<<20:][:512<<10])
	clear(want[2<<20:][:512<<10])
	got, err := os.ReadFile(path)
	virtiotest.Must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("the disk is not what the guest made it; the console:\n%s", m.buf.String())
	}
	s := &disk.Stats
	if s.Flushes.Load() == 0 || s.Discards.Load() == 0 || s.WriteZeroes.Load() == 0 || s.Errors.Load()+s.Malformed.Load() != 0 {
		t.Errorf("%d flushes, %d discards, %d write-zeroes, %d errors, %d malformed", s.Flushes.Load(), s.Discards.Load(),
			s.WriteZeroes.Load(), s.Errors.Load(), s.Malformed.Load())
	}
}

func TestEntropy(t *testing.T) {
	dev := rng.New()
	m := newMachine(t, dev).boot("entropy", -1)
	m.await(`guest: 4096 bytes from "virtio_rng.0", sha256 [0-9a-f]{64}`)
	if n := dev.Stats.Bytes.Load(); n < 4096 {
		t.Errorf("the device gave %d bytes", n)
	}
}

// host is a socket device that is served on a unix socket.
type host struct {
	*vsock.Device
	l *net.UnixListener
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{vsock.New(guestCID), listen(t)}
	go h.Serve(h.l)
	return h
}

// dial connects to a port of the guest without waiting for the answer, and says hello right away.
func (h *host) dial(t testing.TB, port int, hello string) (*net.UnixConn, *bufio.Reader) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, h.l.Addr().(*net.UnixAddr))
	virtiotest.Must(t, err)
	c.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(c, "CONNECT %d\n%s", port, hello)
	virtiotest.Must(t, err)
	return c, bufio.NewReader(c)
}

// echo checks that a connection works.
func (h *host) echo(t testing.TB) {
	t.Helper()
	c, r := h.dial(t, portEcho, "hello\n")
	defer c.Close()
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
		t.Fatalf("connecting: %q, %v", line, err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("echo: %q, %v", line, err)
	}
}

func (h *host) idle(t testing.TB) {
	t.Helper()
	virtiotest.Must(t, h.WaitIdle(t.Context()))
	if n := h.Stats.Malformed.Load(); n != 0 {
		t.Errorf("%d packets of a stock driver were taken for malformed", n)
	}
}

func TestSockets(t *testing.T) {
	h := newHost(t)
	early := make(chan struct{})
	m := newMachine(t, h.Device)
	go func() { // before the driver is up
		defer close(early)
		c, r := h.dial(t, 9, "")
		defer c.Close()
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ERR connect to guest port 9: ") {
			t.Errorf("a port that nothing listens on: %q, %v", line, err)
		}
	}()
	m.boot("sockets", -1)
	m.await("guest: listening")
	<-early
	t.Run("echo", func(t *testing.T) {
		for range 20 {
			h.echo(t)
		}
		h.idle(t)
	})
	t.Run("half close", func(t *testing.T) {
		data := random(4 << 20)
		c, r := h.dial(t, portHash, "")
		defer c.Close()
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		_, err := c.Write(data)
		virtiotest.Must(t, err)
		virtiotest.Must(t, c.CloseWrite())
		got, err := io.ReadAll(r)
		if want := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || string(got) != want {
			t.Errorf("hash %q, %v, want %q", got, err, want)
		}
	})
	t.Run("both ways at once", func(t *testing.T) {
		data := random(4 << 20)
		c, r := h.dial(t, portEcho, "")
		defer c.Close()
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		go func() {
			c.Write(data)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back, %v, want %d", len(got), err, len(data))
		}
	})
	t.Run("a client that stalls", func(t *testing.T) {
		c, _ := h.dial(t, portEcho, "")
		c.SetWriteDeadline(time.Now().Add(time.Second))
		io.Copy(c, bytes.NewReader(make([]byte, 8<<20))) // until everything in between is full
		h.echo(t)
		c.Close()
	})
	t.Run("many", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { h.echo(t) })
		}
		wg.Wait()
		h.idle(t)
	})
	s := &h.Stats
	t.Logf("%d packets in, %d out, %d opened, %d refused, %d resets", s.PacketsIn.Load(), s.PacketsOut.Load(),
		s.Opened.Load(), s.Refused.Load(), s.Resets.Load())
}

func TestSocketsAfterARestore(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprintf("connection open %t", open), func(t *testing.T) {
			ram := memfd(t)
			h := newHost(t)
			m := newMachine(t, h.Device).boot("sockets", ram)
			m.await("guest: listening")
			h.echo(t)
			h.idle(t)
			if open {
				c, r := h.dial(t, portEcho, "x\n")
				defer c.Close()
				for range 2 {
					if _, err := r.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
			}
			state := m.save()
			virtiotest.Must(t, m.Close())
			for range 2 {
				h := newHost(t)
				clone := newMachine(t, h.Device).restore(state, ram)
				began := time.Now()
				h.echo(t)
				t.Logf("echo %v after the restore", time.Since(began))
				clone.await("guest: 0 open") // the saved guest's connection has ended too
				if n := h.Stats.TransportResets.Load(); (n == 1) != open {
					t.Errorf("%d transport resets", n)
				}
				for range 5 {
					began := time.Now()
					h.echo(t)
					t.Logf("the next %v", time.Since(began))
				}
				h.idle(t)
				virtiotest.Must(t, clone.Close())
			}
		})
	}
}
