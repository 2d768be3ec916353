// Package httperr writes the error body that E2B's plain HTTP routes share.
package httperr

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Write answers with status and {"code":status,"message":message}.
func Write(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(struct { // an int and a string always marshal
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
