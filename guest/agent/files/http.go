package files

import (
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/httperr"
	"cella.dev/cella/guest/agent/rpc"
)

// A statusError is a failure with an HTTP status; any other error is answered with the status its errno
// maps to.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

// fail answers with err.
func fail(w http.ResponseWriter, err error) {
	var se *statusError
	var re *rpc.Error
	status, message := http.StatusInternalServerError, err.Error()
	switch {
	case errors.As(err, &se):
		status = se.status
	case errors.As(err, &re):
		message = re.Message
		status = map[rpc.Code]int{
			rpc.Unauthenticated: http.StatusUnauthorized, rpc.InvalidArgument: http.StatusBadRequest,
		}[re.Code]
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		status = http.StatusForbidden
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		status, message = http.StatusInsufficientStorage, "not enough disk space available: "+message
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE),
		errors.Is(err, syscall.ENXIO):
		status = http.StatusBadRequest
	}
	if status == 0 {
		status = http.StatusInternalServerError
	}
	httperr.Write(w, status, message)
}

// target checks that a request may do op ("read" or "write") to the file in its query, and finds the
// user it acts as. path is "" if the query names none.
func (s *Service) target(r *http.Request, op string) (u *accounts.User, path string, err error) {
	q := r.URL.Query()
	if err := s.checkAccess(r, q, op); err != nil {
		return nil, "", err
	}
	if q.Has("username") {
		u, err = s.ident.User(q.Get("username"))
	} else {
		u, err = s.ident.UserOf(r.Header)
	}
	if err != nil || !q.Has("path") {
		return u, "", err
	}
	path, err = s.ident.Path(u, q.Get("path"))
	return u, path, err
}
