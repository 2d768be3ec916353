package gateway

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

const (
	// idempotencyTime is how long a create is remembered by its key.
	idempotencyTime = 24 * time.Hour
	// idempotencyMax bounds how many are.
	idempotencyMax = 10_000
	// idempotencyKeyMax bounds a key's length.
	idempotencyKeyMax = 255
)

// createLog remembers creates by Idempotency-Key, so that a caller that lost the answer can ask again.
type createLog struct {
	mu      sync.Mutex
	entries map[createKey]*createEntry
	// order lists keys as they were added, oldest first. Guarded by mu.
	order []createKey
}

type createKey struct{ team, key string }

type createEntry struct {
	body  [sha256.Size]byte
	added time.Time
	// done is closed when sandbox and err are set.
	done    chan struct{}
	sandbox node.Sandbox
	err     error
}

// createOnce runs create, or returns what an earlier call with the same Idempotency-Key and body got. A failed
// create is forgotten, so that it can be tried again.
func (s *Server) createOnce(r *request, body []byte, create func() (node.Sandbox, error)) (node.Sandbox, error) {
	header := string(r.Request.Header.Peek("Idempotency-Key"))
	if header == "" {
		return create()
	}
	if len(header) > idempotencyKeyMax {
		return node.Sandbox{}, errorf(fasthttp.StatusBadRequest, "Idempotency-Key: must have at most %d characters", idempotencyKeyMax)
	}
	key := createKey{r.team, header}
	e, first := s.creates.claim(key, sha256.Sum256(body))
	if e == nil {
		return node.Sandbox{}, errorf(fasthttp.StatusConflict, "Idempotency-Key: was used with another body")
	}
	if !first {
		<-e.done
		return e.sandbox, e.err
	}
	defer func() { // also when create panics: a second caller must not wait for ever
		if e.sandbox.ID == "" {
			s.creates.forget(key, e)
		}
		close(e.done)
	}()
	e.err = errorf(fasthttp.StatusInternalServerError, "create sandbox: failed")
	e.sandbox, e.err = create()
	e.sandbox.Metadata = nil // up to a megabyte each, for a day, and no part of the answer
	return e.sandbox, e.err
}

// claim returns the entry for key and whether the caller has to fill it; nil if the body is another.
func (l *createLog) claim(key createKey, body [sha256.Size]byte) (e *createEntry, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for len(l.order) > 0 {
		oldest, ok := l.entries[l.order[0]]
		if ok && len(l.order) < idempotencyMax && now.Sub(oldest.added) < idempotencyTime {
			break
		}
		delete(l.entries, l.order[0])
		l.order = l.order[1:]
	}
	if e := l.entries[key]; e != nil {
		if e.body != body {
			return nil, false
		}
		return e, false
	}
	if l.entries == nil {
		l.entries = map[createKey]*createEntry{}
	}
	e = &createEntry{body: body, added: now, done: make(chan struct{})}
	l.entries[key] = e
	l.order = append(l.order, key)
	return e, true
}

func (l *createLog) forget(key createKey, e *createEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[key] == e {
		delete(l.entries, key)
	}
}
