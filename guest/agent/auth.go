package agent

import (
	"net/http"

	"cella.dev/cella/guest/agent/httperr"
	"cella.dev/cella/guest/agent/rpc"
)

// authorize lets calls with the sandbox's token through. /files checks for itself, since a signature in
// its query can stand in for the token.
func (a *Agent) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/files" || a.ident.TokenOK(r.Header.Get("X-Access-Token")) {
			next.ServeHTTP(w, r)
			return
		}
		const why = "unauthorized access, please provide a valid access token or method signing if supported"
		if isRPC(r) {
			rpc.WriteError(w, rpc.Errorf(rpc.Unauthenticated, why))
		} else {
			httperr.Write(w, http.StatusUnauthorized, why)
		}
	})
}

// allowCORS lets pages of any origin call the agent, as E2B does; preflights need no token.
func allowCORS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			h.Set("Access-Control-Expose-Headers",
				"Location, Cache-Control, X-Content-Type-Options, Content-Disposition, Content-Encoding, Grpc-Status, Grpc-Message")
			next.ServeHTTP(w, r)
			return
		}
		h.Add("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		h.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
	})
}
