package agent

import (
	"net/http"
	"strings"
	"sync/atomic"

	"cella.dev/cella/guest/agent/httperr"
	"cella.dev/cella/guest/agent/rpc"
)

// A gate keeps user calls out while the sandbox has no identity: before the first init, and between a
// freeze and the next init. The zero gate is closed.
type gate struct{ open atomic.Bool }

// guard answers GET /health always and everything else only while the gate is open.
func (g *gate) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if !g.open.Load() {
			const why = "sandbox is not initialized yet; try again"
			if isRPC(r) {
				rpc.WriteError(w, rpc.Errorf(rpc.Unavailable, why))
			} else {
				httperr.Write(w, http.StatusServiceUnavailable, why)
			}
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isRPC tells the Connect methods from the plain HTTP routes.
func isRPC(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/process.Process/") || strings.HasPrefix(r.URL.Path, "/filesystem.Filesystem/")
}
