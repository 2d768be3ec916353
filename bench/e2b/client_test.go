package e2b_test

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
	"time"

	"cella.dev/cella/bench/e2b"
	"cella.dev/cella/bench/e2b/e2btest"
)

func TestClientLifeOfASandbox(t *testing.T) {
	for name, old := range map[string]bool{"current API": false, "API before v2": true} {
		t.Run(name, func(t *testing.T) {
			server := e2btest.New()
			defer server.Close()
			server.OldAPI = old
			client := e2b.New(e2b.Options{URL: server.URL + "/", APIKey: server.Key})
			defer client.Close()
			ctx := t.Context()
			sb, err := client.Create(ctx, "base", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			want := []e2b.Phase{{Name: "claim", Duration: 4 * time.Microsecond}, {Name: "disk", Duration: 2 * time.Microsecond},
				{Name: "restore", Duration: 10 * time.Microsecond}, {Name: "handshake", Duration: 4 * time.Microsecond}}
			if !reflect.DeepEqual(sb.Phases, want) {
				t.Errorf("phases %v, want %v", sb.Phases, want)
			}
			out, release, err := client.Exec(ctx, sb, "echo hi")
			if err != nil {
				t.Fatal(err)
			}
			release()
			if string(out.Stdout) != "hi\n" || len(out.Stderr) != 0 || out.ExitCode != 0 {
				t.Errorf("exec gave %+v", out)
			}
			if err := client.WriteFile(ctx, sb, "/tmp/a b", []byte("data")); err != nil {
				t.Fatal(err)
			}
			data, err := client.ReadFile(ctx, sb, "/tmp/a b")
			if err != nil || string(data) != "data" {
				t.Errorf("read %q, %v", data, err)
			}
			if err := client.Kill(ctx, sb); err != nil {
				t.Fatal(err)
			}
			if server.Live() != 0 {
				t.Errorf("%d sandboxes live after the kill", server.Live())
			}
		})
	}
}

func TestClientErrors(t *testing.T) {
	server := e2btest.New()
	defer server.Close()
	good := e2b.New(e2b.Options{URL: server.URL, APIKey: server.Key})
	sb, err := good.Create(t.Context(), "base", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		status int
		call   func() error
	}{
		{"unknown template", http.StatusNotFound, func() error {
			_, err := good.Create(t.Context(), "nosuch", time.Minute)
			return err
		}},
		{"wrong key", http.StatusUnauthorized, func() error {
			_, err := e2b.New(e2b.Options{URL: server.URL, APIKey: "e2b_ff"}).Create(t.Context(), "base", time.Minute)
			return err
		}},
		{"no such sandbox", http.StatusBadGateway, func() error {
			_, _, err := good.Exec(t.Context(), &e2b.Sandbox{ID: "i0"}, "echo hi")
			return err
		}},
		{"wrong token", http.StatusUnauthorized, func() error {
			_, _, err := good.Exec(t.Context(), &e2b.Sandbox{ID: sb.ID, AccessToken: "x"}, "echo hi")
			return err
		}},
		{"missing file", http.StatusNotFound, func() error {
			_, err := good.ReadFile(t.Context(), sb, "/nosuch")
			return err
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var status *e2b.StatusError
			if err := test.call(); !errors.As(err, &status) || status.Status != test.status {
				t.Errorf("got %v, want status %d", err, test.status)
			}
		})
	}
}
