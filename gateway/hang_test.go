package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"cella.dev/cella/guest/wire"
)

// TestGuestsThatHang: a caller of a guest that never answers gets an answer in bounded time, and at once when the
// sandbox is killed.
func TestGuestsThatHang(t *testing.T) {
	for _, c := range []struct {
		name     string
		dialTime time.Duration
		kill     bool
		want     string
	}{
		{"until the limit", 50 * time.Millisecond, false, "gave no usable answer"},
		{"until it is killed", time.Hour, true, "was not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.gw.upstreams.dialTime = c.dialTime
			for _, port := range []int{wire.PortAgent, 8080} {
				sb := r.sandbox(false)
				r.node.mu.Lock()
				r.node.sandboxes[sb.ID].ports[port] = silent
				r.node.mu.Unlock()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				answered := make(chan string, 1)
				go func() { answered <- get(r.data("GET", sb.ID, port, "/", nil).WithContext(ctx)) }()
				<-r.node.hung
				if c.kill {
					if status, body, _ := r.call("DELETE", "/sandboxes/"+sb.ID, ""); status != 204 {
						t.Fatalf("kill: %d %s", status, body)
					}
				}
				if body := <-answered; !strings.HasPrefix(body, "502 ") || !strings.Contains(body, c.want) {
					t.Errorf("port %d: %s, want that it %s", port, body, c.want)
				}
			}
		})
	}
}

// get returns an answer's status and body, or the error, as text.
func get(req *http.Request) string {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // a part of it is as good
	return resp.Status + " " + string(body)
}
