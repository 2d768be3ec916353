// Package e2btest is a server of the E2B API without sandboxes, for tests of what measures such servers.
package e2btest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
)

// Server answers like an E2B server that runs `echo hi` whatever it is told.
type Server struct {
	*httptest.Server
	// Key is the API key that the control plane accepts.
	Key string
	// OnCreate and OnExec, if set before the first request, run inside those requests: to stall or to count.
	OnCreate, OnExec func()
	// ServerTiming is the header of a create's answer.
	ServerTiming string
	// CreateStatus other than 0 is the answer to every create.
	CreateStatus int
	// Output is what a command prints; "hi\n" if empty.
	Output string
	// OldAPI makes the server refuse POST /v2/sandboxes with 405.
	OldAPI bool

	mu      sync.Mutex // guards what follows
	live    map[string]map[string][]byte
	created int
	maxLive int
}

// New starts a server on loopback; Close it.
func New() *Server {
	s := &Server{Key: "e2b_00", ServerTiming: "claim;dur=0.004, disk;dur=0.002, restore;dur=0.01, handshake;dur=0.004", live: map[string]map[string][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/sandboxes", s.create)
	mux.HandleFunc("POST /sandboxes", s.create)
	mux.HandleFunc("DELETE /sandboxes/{id}", s.kill)
	mux.HandleFunc("POST /process.Process/Start", s.start)
	mux.HandleFunc("POST /files", s.write)
	mux.HandleFunc("GET /files", s.read)
	s.Server = httptest.NewServer(mux)
	return s
}

// Live, Created and MaxLive count sandboxes: now, ever, and at the fullest moment.
func (s *Server) Live() int    { s.mu.Lock(); defer s.mu.Unlock(); return len(s.live) }
func (s *Server) Created() int { s.mu.Lock(); defer s.mu.Unlock(); return s.created }
func (s *Server) MaxLive() int { s.mu.Lock(); defer s.mu.Unlock(); return s.maxLive }

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"code":%d,"message":%q}`, status, message)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		TemplateID string `json:"templateID"`
		Timeout    int    `json:"timeout"`
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	switch {
	case s.OldAPI && r.URL.Path == "/v2/sandboxes":
		refuse(w, http.StatusMethodNotAllowed, "method not allowed")
		return
	case r.Header.Get("X-API-Key") != s.Key:
		refuse(w, http.StatusUnauthorized, "bad key")
		return
	case err != nil || body.Timeout <= 0:
		refuse(w, http.StatusBadRequest, "bad body")
		return
	case body.TemplateID != "base":
		refuse(w, http.StatusNotFound, "template not found")
		return
	case s.CreateStatus != 0:
		refuse(w, s.CreateStatus, "as told")
		return
	}
	if s.OnCreate != nil {
		s.OnCreate()
	}
	s.mu.Lock()
	s.created++
	id := fmt.Sprintf("i%020d", s.created)
	s.live[id] = map[string][]byte{}
	s.maxLive = max(s.maxLive, len(s.live))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Server-Timing", s.ServerTiming)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"sandboxID":%q,"templateID":"base","clientID":"6532622b","envdVersion":"0.6.13","envdAccessToken":%q}`, id, token(id))
}

func token(id string) string { return "token-of-" + id }

func (s *Server) kill(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.live[r.PathValue("id")]; !ok {
		refuse(w, http.StatusNotFound, "sandbox not found")
		return
	}
	delete(s.live, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

// sandbox finds the sandbox that a data-plane request is for, or refuses it.
func (s *Server) sandbox(w http.ResponseWriter, r *http.Request) (files map[string][]byte, ok bool) {
	id := r.Header.Get("E2b-Sandbox-Id")
	s.mu.Lock()
	files, ok = s.live[id]
	s.mu.Unlock()
	switch {
	case !ok || r.Header.Get("E2b-Sandbox-Port") != "49983":
		refuse(w, http.StatusBadGateway, "the sandbox was not found")
		return nil, false
	case r.Header.Get("X-Access-Token") != token(id):
		refuse(w, http.StatusUnauthorized, "bad token")
		return nil, false
	}
	return files, true
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.sandbox(w, r); !ok {
		return
	}
	var header [5]byte
	if _, err := io.ReadFull(r.Body, header[:]); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var start struct {
		Process struct {
			Cmd  string   `json:"cmd"`
			Args []string `json:"args"`
		} `json:"process"`
	}
	body := io.LimitReader(r.Body, int64(binary.BigEndian.Uint32(header[1:])))
	if err := json.NewDecoder(body).Decode(&start); err != nil || start.Process.Cmd != "/bin/bash" {
		refuse(w, http.StatusBadRequest, "bad start")
		return
	}
	if s.OnExec != nil {
		s.OnExec()
	}
	output := s.Output
	if output == "" {
		output = "hi\n"
	}
	w.Header().Set("Content-Type", "application/connect+json")
	frame(w, 0, `{"event":{"start":{"pid":7}}}`)
	data, _ := json.Marshal([]byte(output)) // bytes always encode
	frame(w, 0, fmt.Sprintf(`{"event":{"data":{"stdout":%s}}}`, data))
	frame(w, 0, `{"event":{"keepalive":{}}}`)
	frame(w, 0, `{"event":{"end":{"exited":true,"status":"exit status 0"}}}`)
	frame(w, 2, `{}`)
}

func frame(w io.Writer, flags byte, message string) {
	header := [5]byte{flags}
	binary.BigEndian.PutUint32(header[1:], uint32(len(message)))
	_, _ = w.Write(append(header[:], message...)) // a client that left is no concern of a fake
}

func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	files, ok := s.sandbox(w, r)
	if !ok {
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	files[r.URL.Query().Get("path")] = data
	s.mu.Unlock()
	fmt.Fprint(w, `[]`)
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) {
	files, ok := s.sandbox(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	data, ok := files[r.URL.Query().Get("path")]
	s.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "file not found")
		return
	}
	_, _ = w.Write(data)
}
