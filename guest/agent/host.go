package agent

import (
	"encoding/json"
	"net/http"

	"cella.dev/cella/guest/agent/httperr"
)

// registerHost adds the routes that tell about the machine, and the answer to all unknown ones.
func (a *Agent) registerHost(mux *http.ServeMux) {
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, a.ident.Current().Env)
	})
	meter := newMeter()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		m, err := meter.read()
		if err != nil {
			httperr.Write(w, http.StatusInternalServerError, err.Error())
			return
		}
		writeJSON(w, m)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httperr.Write(w, http.StatusNotFound, "no such route: "+r.Method+" "+r.URL.Path)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	json.NewEncoder(w).Encode(v)
}
