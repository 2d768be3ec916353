//go:build e2e

package node_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// server is a cella up process.
type server struct {
	cmd *exec.Cmd
	URL string `json:"url"`
	Key string `json:"apiKey"`
}

func up(t *testing.T, run string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(os.Getenv("CELLA_E2E_CELLA"), "up", "--json", "--listen", "127.0.0.1:0", "--state", state(t), "--run", run)}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cmd.Process.Kill(); s.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("cella up did not get ready: %v", err)
	}
	if err := json.Unmarshal(line, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) create() (*http.Response, error) {
	req, err := http.NewRequest(http.MethodPost, s.URL+"/v2/sandboxes", bytes.NewReader([]byte(`{"templateID":"base","timeout":300}`)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", s.Key)
	return http.DefaultClient.Do(req)
}

// workers lists the processes that are a cella vmm of the tested binary.
func workers(t *testing.T) []string {
	t.Helper()
	var found []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range lines {
		data, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(data), os.Getenv("CELLA_E2E_CELLA")+"\x00vmm\x00") {
			found = append(found, filepath.Base(filepath.Dir(name)))
		}
	}
	return found
}

func TestKillingTheServerLeavesNothing(t *testing.T) {
	run := t.TempDir()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	s := up(t, run)
	var wg sync.WaitGroup
	answered := make(chan struct{}, 20)
	for range 20 {
		wg.Go(func() {
			resp, err := s.create()
			if err != nil {
				return // the server died first
			}
			resp.Body.Close()
			answered <- struct{}{}
		})
	}
	// In the middle: some are done, the others are at every stage.
	for range 5 {
		<-answered
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.cmd.Wait()
	wg.Wait()

	again := up(t, run)
	resp, err := again.create()
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("create after the restart: %s", resp.Status)
	}
	again.cmd.Process.Signal(os.Interrupt)
	if err := again.cmd.Wait(); err != nil {
		t.Errorf("server after SIGINT: %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for left := workers(t); len(left) > 0; left = workers(t) {
		if time.Now().After(deadline) {
			t.Fatalf("workers left: %v", left)
		}
		time.Sleep(50 * time.Millisecond) // nothing tells when processes that are not our children end
	}
	left, err := filepath.Glob(filepath.Join(run, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the run directory: %v (%v)", left, err)
	}
	for _, dir := range []string{"disks", "templates/.build*"} {
		names, _ := filepath.Glob(filepath.Join(state(t), dir, "*"))
		if len(names) > 0 {
			t.Errorf("left behind: %v", names)
		}
	}
	after, err := os.ReadFile("/proc/self/mounts")
	if err != nil || !bytes.Equal(mounts, after) {
		t.Errorf("mounts before:\n%s\nafter:\n%s (%v)", mounts, after, err)
	}
}
