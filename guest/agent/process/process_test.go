package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/cgroup"
	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/identity"
	"cella.dev/cella/guest/agent/reap"
)

var reaper = reap.New()

// newServer serves processes of the user that runs the test. groups may be nil.
func newServer(t *testing.T, groups *cgroup.Parent) (*httptest.Server, *Service) {
	t.Helper()
	dir := t.TempDir()
	passwd := "user:x:" + strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid()) + "::" + dir + ":/bin/sh\n"
	if err := os.WriteFile(filepath.Join(dir, "passwd"), []byte(passwd), 0o644); err != nil {
		t.Fatal(err)
	}
	ident := identity.NewStore(accounts.Open(dir))
	ident.Set(identity.Identity{DefaultUser: "user"})
	s := NewService(reaper, groups, ident)
	mux := http.NewServeMux()
	s.Register(mux)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv, s
}

// A call is a running Start or Connect, read frame by frame.
type call struct {
	t    *testing.T
	body io.ReadCloser
}

func open(t *testing.T, srv *httptest.Server, method, req string, headers ...string) *call {
	t.Helper()
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(req)))
	r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/process.Process/"+method, bytes.NewReader(append(frame, req...)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/connect+json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return &call{t, res.Body}
}

// next reads a frame: an event, or the stream's end with its error code.
func (c *call) next() (ev *e2b.ProcessEvent, end bool, code string) {
	c.t.Helper()
	head := make([]byte, 5)
	if _, err := io.ReadFull(c.body, head); err != nil {
		c.t.Fatal(err)
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(c.body, payload); err != nil {
		c.t.Fatal(err)
	}
	var msg struct {
		Event *e2b.ProcessEvent
		Error struct{ Code string }
	}
	if err := json.Unmarshal(payload, &msg); err != nil {
		c.t.Fatal(err)
	}
	return msg.Event, head[0] == 2, msg.Error.Code
}

// finish reads to the end of the stream: the output, how the process ended, and the error code.
func (c *call) finish() (out string, end *e2b.EndEvent, code string) {
	c.t.Helper()
	for {
		ev, eos, errCode := c.next()
		switch {
		case eos:
			return out, end, errCode
		case ev.Data != nil:
			out += string(ev.Data.Stdout) + string(ev.Data.Stderr) + string(ev.Data.PTY)
		case ev.End != nil:
			end = ev.End
		}
	}
}

func shell(script string) string {
	req, _ := json.Marshal(&e2b.StartRequest{Process: &e2b.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: new(bool)})
	return string(req)
}

func TestOutputAndExit(t *testing.T) {
	srv, _ := newServer(t, nil)
	for _, tc := range []struct {
		script, out, status string
		code                int32
		exited              bool
	}{
		{"echo hi", "hi\n", "exit status 0", 0, true},
		{"echo no >&2; exit 3", "no\n", "exit status 3", 3, true},
		{"cat", "", "exit status 0", 0, true},
		{"kill -9 $$", "", "signal: killed", -1, false},
		{"kill -TERM $$", "", "signal: terminated", -1, false},
	} {
		out, end, code := open(t, srv, "Start", shell(tc.script)).finish()
		if code != "" || out != tc.out || end.Status != tc.status || end.ExitCode != tc.code || end.Exited != tc.exited {
			t.Errorf("%s: output %q, end %+v, error %q", tc.script, out, end, code)
		}
		if (end.Error == nil) != (tc.code == 0) || end.Error != nil && *end.Error != tc.status {
			t.Errorf("%s: error %v", tc.script, end.Error)
		}
	}
}

func TestStartIsRefused(t *testing.T) {
	srv, _ := newServer(t, nil)
	for req, want := range map[string]string{
		`{}`: "invalid_argument",
		`{"process":{"cmd":"/bin/true","cwd":"/no/such"}}`:    "invalid_argument",
		`{"process":{"cmd":"/bin/true","cwd":"/etc/passwd"}}`: "invalid_argument",
		`{"process":{"cmd":"no-such-program"}}`:               "invalid_argument",
		`{"process":{"cmd":"/etc/passwd"}}`:                   "invalid_argument",
		`{"process":{"cmd":"./relative","cwd":"/tmp"}}`:       "invalid_argument",
		`{"process":{"cmd":"x","envs":{"PATH":"/nowhere"}}}`:  "invalid_argument",
		`{"process":`: "invalid_argument",
		`{"process":{"cmd":"/bin/true","args":["a\u0000b"]}}`:            "invalid_argument",
		`{"process":{"cmd":"/bin/true"},"pty":{"size":{"cols":"many"}}}`: "invalid_argument",
	} {
		if _, _, code := open(t, srv, "Start", req).finish(); code != want {
			t.Errorf("%s: %q, want %q", req, code, want)
		}
	}
	_, _, code := open(t, srv, "Start", shell("true"), "Authorization", "Basic bm9ib2R5LWhlcmU6").finish()
	if code != "unauthenticated" {
		t.Errorf("unknown user: %q", code)
	}
}

// holder starts a process tree that holds a pipe open, one descendant in a session of its own, and
// returns the call and a file that reads as ended once the last of the tree is dead.
func holder(t *testing.T, srv *httptest.Server, headers ...string) (*call, *os.File) {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c := open(t, srv, "Start", shell("exec 3>"+fifo+"; sleep 1000 & setsid sleep 1000 & sleep 1000"), headers...)
	alive, err := os.Open(fifo) // returns when the tree has opened the other end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { alive.Close() })
	return c, alive
}

// groups opens cgroups for the test if the machine lets it.
func groups(t *testing.T) *cgroup.Parent {
	t.Helper()
	mount, err := cgroup.Mounted()
	if err != nil {
		return nil
	}
	p, err := cgroup.Open(mount, "cella-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		return nil
	}
	t.Cleanup(func() {
		err := p.Close(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			reaper.WaitAll(ctx)
		})
		if err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestKillAndDeadlineTakeTheWholeTree(t *testing.T) {
	for name, parent := range map[string]*cgroup.Parent{"proc": nil, "cgroup": groups(t)} {
		if name == "cgroup" && parent == nil {
			t.Log("cgroup v2 is not writable here: only the search through /proc is tested")
			continue
		}
		srv, _ := newServer(t, parent)
		t.Run(name+"/kill", func(t *testing.T) {
			c, alive := holder(t, srv)
			ev, _, _ := c.next()
			body := `{"process":{"pid":` + strconv.Itoa(int(ev.Start.PID)) + `},"signal":"SIGNAL_SIGKILL"}`
			res, err := http.Post(srv.URL+"/process.Process/SendSignal", "application/json", strings.NewReader(body))
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("SendSignal: %v, %v", res, err)
			}
			if _, end, code := c.finish(); code != "" || end.Status != "signal: killed" {
				t.Errorf("end %+v, error %q", end, code)
			}
			if _, err := io.ReadAll(alive); err != nil {
				t.Error(err)
			}
		})
		t.Run(name+"/deadline", func(t *testing.T) {
			c, alive := holder(t, srv, "Connect-Timeout-Ms", "400")
			if _, _, code := c.finish(); code != "deadline_exceeded" {
				t.Errorf("error %q", code)
			}
			if _, err := io.ReadAll(alive); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestExitCodeNeverLost(t *testing.T) {
	srv, _ := newServer(t, nil)
	for i := range 200 {
		c := open(t, srv, "Start", shell("exec >&- 2>&-; exit "+strconv.Itoa(i%250+1)))
		if _, end, code := c.finish(); code != "" || end == nil || end.ExitCode != int32(i%250+1) {
			t.Fatalf("run %d: end %+v, error %q", i, end, code)
		}
	}
}

func TestLateConnectGetsTheEnd(t *testing.T) {
	srv, s := newServer(t, nil)
	c := open(t, srv, "Start", shell("exit 9"))
	ev, _, _ := c.next()
	c.finish()
	sel := `{"process":{"pid":` + strconv.Itoa(int(ev.Start.PID)) + `}}`
	if _, end, code := open(t, srv, "Connect", sel).finish(); code != "" || end.ExitCode != 9 {
		t.Errorf("end %+v, error %q", end, code)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.procs) != 0 || len(s.ended) != 1 {
		t.Errorf("%d running, %d ended; want 0 and 1", len(s.procs), len(s.ended))
	}
}

func TestStuckSubscriberIsCutOffAndOthersGoOn(t *testing.T) {
	f := fanout{stall: 10 * time.Millisecond}
	stuck, quick := newSubscriber(), newSubscriber()
	f.subscribe(stuck)
	f.subscribe(quick)
	const n = subscriberQueue + 5
	go func() {
		for range n {
			f.publish(&e2b.EventResponse{})
		}
		f.finish()
	}()
	got := 0
	for range quick.events {
		got++
	}
	if got != n {
		t.Errorf("the quick one got %d of %d", got, n)
	}
	select {
	case <-stuck.cut:
	default:
		t.Error("the stuck one was not cut off")
	}
	if len(stuck.events) != subscriberQueue {
		t.Errorf("%d events kept for the stuck one, want %d", len(stuck.events), subscriberQueue)
	}
}
