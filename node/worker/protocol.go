package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"cella.dev/cella/memsnap"
)

// controlFD is where a worker finds its control socket.
const controlFD = 3

// Operations, with the files each carries, in order.
const (
	opBoot    = "boot"    // kernel, initrd, disk, vsock listener[, console][, tap]
	opRestore = "restore" // state, memory, disk, vsock listener[, tap]
	opSave    = "save"    // state, memory: pauses the machine for good and writes it out
	opTouched = "touched" // working set: writes which pages the guest has touched since a recorded restore
)

// request is one message from the node. A worker handles one at a time.
type request struct {
	Op string `json:"op"`
	// Cmdline is the guest kernel's command line (boot).
	Cmdline string `json:"cmdline,omitempty"`
	// Card is the machine's network card (boot, restore); without it the machine has none.
	Card *Card `json:"card,omitempty"`
	// Tap says that the last file is the TAP that the card is connected to.
	Tap bool `json:"tap,omitempty"`
	// WorkingSet, encoded, is prepared before the guest runs (restore).
	WorkingSet []byte `json:"workingSet,omitempty"`
	// Record prepares for opTouched (restore).
	Record bool `json:"record,omitempty"`
}

// Card is what a guest's network card is, as it was when the snapshot was taken.
type Card struct {
	MAC string `json:"mac"`
	// MTU in bytes.
	MTU uint16 `json:"mtu"`
}

// message is one message from a worker: the reply to the request before it, or news.
type message struct {
	// Ready is sent once, when the worker can take its first request.
	Ready bool `json:"ready,omitempty"`
	// Exited says why the machine stopped; the worker ends after it.
	Exited string `json:"exited,omitempty"`
	// Reply is set on every reply, with Error on a failed one.
	Reply  bool                `json:"reply,omitempty"`
	Error  string              `json:"error,omitempty"`
	Steps  []Step              `json:"steps,omitempty"`
	Memory *memsnap.MemoryInfo `json:"memory,omitempty"`
}

// Step is one timed part of a restore inside the worker.
type Step struct {
	Name  string `json:"name"`
	Nanos int64  `json:"nanos"`
}

const (
	maxMessage = 64 << 10
	maxFiles   = 8
)

// send writes one message with files attached. The files stay the caller's.
func send(conn *net.UnixConn, v any, files ...*os.File) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("message of %d bytes is over the limit of %d", len(data), maxMessage)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(data, oob, nil)
	return err
}

// receive reads one message into v and returns the files that came with it, which are the caller's. The end
// of the connection is net.ErrClosed or io.EOF.
func receive(conn *net.UnixConn, v any) ([]*os.File, error) {
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, err
	}
	if n == 0 && oobn == 0 {
		return nil, net.ErrClosed
	}
	files, err := filesOf(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(files)
		return nil, errors.New("control message was cut")
	}
	if err := json.Unmarshal(buf[:n], v); err != nil {
		closeAll(files)
		return nil, fmt.Errorf("control message: %w", err)
	}
	return files, nil
}

func filesOf(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // some other kind of control data
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
