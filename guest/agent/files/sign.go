package files

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Signature is what makes a /files URL usable without the token: v1_ and the unpadded base64 of the
// SHA-256 of "path:op:user:token", or "path:op:user:token:expiry". user is "" for the default user; op is
// "read" or "write"; expiry is in Unix seconds, "" meaning never.
func Signature(path, op, user, token, expiry string) string {
	parts := []string{path, op, user, token}
	if expiry != "" {
		parts = append(parts, expiry)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// checkAccess lets a request pass that carries the token, or a signature for what it does.
func (s *Service) checkAccess(r *http.Request, q url.Values, op string) error {
	token := s.ident.Current().AccessToken
	if token == "" {
		return nil
	}
	if given := r.Header.Get("X-Access-Token"); given != "" {
		if !s.ident.TokenOK(given) {
			return &statusError{http.StatusUnauthorized, "access token present in header but does not match"}
		}
		return nil
	}
	if !q.Has("signature") {
		return &statusError{http.StatusUnauthorized, "missing signature query parameter"}
	}
	expiry := q.Get("signature_expiration")
	want := Signature(q.Get("path"), op, q.Get("username"), token, expiry)
	if subtle.ConstantTimeCompare([]byte(want), []byte(q.Get("signature"))) != 1 {
		return &statusError{http.StatusUnauthorized, "invalid signature"}
	}
	if expiry == "" {
		return nil
	}
	at, err := strconv.ParseInt(expiry, 10, 64)
	if err != nil {
		return &statusError{http.StatusBadRequest, "signature_expiration is not a number of Unix seconds"}
	}
	if at < time.Now().Unix() {
		return &statusError{http.StatusUnauthorized, "signature is already expired"}
	}
	return nil
}
