package agent

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/reap"
	"cella.dev/cella/guest/wire"
)

var reaper = reap.New()

// newAgent serves an agent on loopback ports, with the test's own user as its only one, and gives their
// addresses. It touches nothing of the machine.
func newAgent(t *testing.T) (a *Agent, http, control, forward string) {
	t.Helper()
	a = New(Config{Reaper: reaper, Users: accounts.Open(etc(t)), Log: slog.New(slog.DiscardHandler)})
	listen := func(serve func(net.Listener) error) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go serve(l)
		return l.Addr().String()
	}
	return a, "http://" + listen(a.Serve), listen(a.ServeControl), listen(a.ServeForward)
}

// etc makes a passwd whose user is the one that runs the test.
func etc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	line := "root:x:0:0::" + dir + ":/bin/sh\nuser:x:" + itoa(os.Getuid()) + ":" + itoa(os.Getgid()) + "::" + dir + ":/bin/sh\n"
	if err := os.WriteFile(filepath.Join(dir, "passwd"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// ask sends one control request, as raw text, and reads the reply.
func ask(t *testing.T, addr, request string) wire.ControlReply {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, request)
	var reply wire.ControlReply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	return reply
}

// status calls a route and gives its status and body.
func status(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

const initRequest = `{"op":"init","init":{"sandboxID":"isbx","templateID":"tpl","accessToken":"tok","env":{"K":"v"},"defaultUser":"user"}}` + "\n"

func TestNothingButHealthBeforeInitAndAfterFreeze(t *testing.T) {
	_, url, control, forward := newAgent(t)
	closed := func(when string) {
		t.Helper()
		if code, _ := status(t, "GET", url+"/health", ""); code != 204 {
			t.Errorf("%s: health %d, want 204", when, code)
		}
		code, body := status(t, "POST", url+"/process.Process/List", "{}", "X-Access-Token", "tok")
		if want := `{"code":"unavailable","message":"sandbox is not initialized yet; try again"}`; code != 503 || body != want {
			t.Errorf("%s: List %d %s", when, code, body)
		}
		code, body = status(t, "GET", url+"/files?path=/etc/hostname", "", "X-Access-Token", "tok")
		if want := `{"code":503,"message":"sandbox is not initialized yet; try again"}`; code != 503 || body != want {
			t.Errorf("%s: /files %d %s", when, code, body)
		}
		if got := forwardLine(t, forward, "1\n"); got != "ERR sandbox is not initialized yet\n" {
			t.Errorf("%s: forward says %q", when, got)
		}
	}
	open := func() {
		t.Helper()
		if code, body := status(t, "POST", url+"/process.Process/List", "{}", "X-Access-Token", "tok"); code != 200 {
			t.Errorf("List after init: %d %s", code, body)
		}
	}
	closed("before init")
	if r := ask(t, control, initRequest); !r.OK || r.Version != wire.AgentVersion || r.BootNano == 0 {
		t.Fatalf("init: %+v", r)
	}
	open()
	if r := ask(t, control, `{"op":"freeze"}`+"\n"); !r.OK {
		t.Fatalf("freeze: %+v", r)
	}
	closed("after freeze")
	if r := ask(t, control, initRequest); !r.OK {
		t.Fatalf("init: %+v", r)
	}
	open()
}

func TestControlRefusesWhatItCannotDo(t *testing.T) {
	_, _, control, _ := newAgent(t)
	for request, want := range map[string]string{
		`{"op":"ping"}` + "\n":     "",
		`{"op":"init"}` + "\n":     "init: the request holds no init",
		`{"op":"shutdown"}` + "\n": "shutdown: this agent does not own its machine",
		`{"op":"dance"}` + "\n":    `unknown control operation "dance"`,
		"nonsense\n":               "read control request: invalid character 'o' in literal null (expecting 'u')",
	} {
		if r := ask(t, control, request); r.Error != want || r.OK != (want == "") {
			t.Errorf("%q: %+v, want error %q", request, r, want)
		}
	}
}

func TestTokenOpensEverythingButFilesAndHealth(t *testing.T) {
	_, url, control, _ := newAgent(t)
	ask(t, control, initRequest)
	for _, tc := range []struct {
		method, path, token string
		want                int
		body                string
	}{
		{"GET", "/health", "", 204, ""},
		{"GET", "/envs", "", 401, `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`},
		{"GET", "/envs", "wrong", 401, `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`},
		{"GET", "/envs", "tok", 200, `{"E2B_SANDBOX":"true","E2B_SANDBOX_ID":"isbx","E2B_TEMPLATE_ID":"tpl","K":"v"}` + "\n"},
		{"POST", "/process.Process/List", "", 401, `{"code":"unauthenticated","message":"unauthorized access, please provide a valid access token or method signing if supported"}`},
		{"POST", "/process.Process/List", "tok", 200, `{}`},
		{"GET", "/files?path=/etc/hostname", "", 401, `{"code":401,"message":"missing signature query parameter"}`},
		{"GET", "/files?path=/etc/hostname", "wrong", 401, `{"code":401,"message":"access token present in header but does not match"}`},
		{"POST", "/init", "tok", 404, `{"code":404,"message":"no such route: POST /init"}`},
	} {
		var headers []string
		if tc.token != "" {
			headers = []string{"X-Access-Token", tc.token}
		}
		code, body := status(t, tc.method, url+tc.path, "{}", headers...)
		if code != tc.want || body != tc.body {
			t.Errorf("%s %s with %q: %d %s\nwant %d %s", tc.method, tc.path, tc.token, code, body, tc.want, tc.body)
		}
	}
}

// forwardLine opens a forward connection, sends text and reads the first line of the answer.
func forwardLine(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, text)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("forward %q: %v", text, err)
	}
	return line
}

func TestForwardSplicesAndHalfCloses(t *testing.T) {
	_, _, control, forward := newAgent(t)
	ask(t, control, initRequest)
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // answers only after the client has shut its side down
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		got, _ := io.ReadAll(conn)
		io.WriteString(conn, "got "+string(got))
	}()
	conn, err := net.Dial("tcp", forward)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	io.WriteString(conn, port+"\nearly ")
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != "OK\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	io.WriteString(conn, "late")
	conn.(*net.TCPConn).CloseWrite()
	if all, err := io.ReadAll(in); err != nil || string(all) != "got early late" {
		t.Errorf("answer %q, %v", all, err)
	}
}

func TestForwardSaysWhyNot(t *testing.T) {
	_, _, control, forward := newAgent(t)
	ask(t, control, initRequest)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(closed.Addr().String())
	closed.Close()
	for text, want := range map[string]string{
		port + "\n": "ERR dial tcp 127.0.0.1:" + port + ": connect: connection refused\n",
		"0\n":       `ERR port is "0\n"; send a number from 1 to 65535 and a newline` + "\n",
		"x\n":       `ERR port is "x\n"; send a number from 1 to 65535 and a newline` + "\n",
		"1234567\n": `ERR port is "123456"; send a number from 1 to 65535 and a newline` + "\n",
	} {
		if got := forwardLine(t, forward, text); got != want {
			t.Errorf("forward %q: %q, want %q", text, got, want)
		}
	}
}
