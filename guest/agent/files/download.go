package files

import (
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// download answers GET /files: whole or by Range, conditionally, zipped if the client wants that.
func (s *Service) download(w http.ResponseWriter, r *http.Request) {
	_, path, err := s.target(r, "read")
	if err != nil {
		fail(w, err)
		return
	}
	if path == "" {
		fail(w, &statusError{http.StatusBadRequest, "path query parameter is required"})
		return
	}
	zip, err := wantsGzip(r.Header.Get("Accept-Encoding"))
	if err != nil {
		fail(w, err)
		return
	}
	// O_NONBLOCK keeps a named pipe without a writer from blocking the open.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		fail(w, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		fail(w, err)
		return
	case info.IsDir():
		fail(w, &statusError{http.StatusBadRequest, "path is a directory: " + path})
		return
	case !info.Mode().IsRegular():
		fail(w, &statusError{http.StatusBadRequest, "path is not a regular file: " + path})
		return
	}
	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	h.Add("Vary", "Accept-Encoding")
	if mime.TypeByExtension(filepath.Ext(path)) == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	ranged := r.Header.Get("Range") != ""
	switch {
	case zip && !ranged:
		h.Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.Copy(z, f) // a client that left is all that can fail here
		z.Close()
	case info.Size() == 0:
		// Files of /proc and /sys say 0 and hold more: they are read to their end.
		io.Copy(w, f)
	default:
		http.ServeContent(w, r, filepath.Base(path), info.ModTime(), f)
	}
}

// wantsGzip reads Accept-Encoding (RFC 9110 §12.5.3). Zipping costs the sandbox's CPU, so it is done only
// for a client that asks for gzip and for nothing else: a list is what HTTP libraries send unasked.
func wantsGzip(accept string) (bool, error) {
	q := map[string]float64{}
	for _, item := range strings.Split(accept, ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		q[name] = 1
		if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			if parsed, err := strconv.ParseFloat(v, 64); err == nil {
				q[name] = parsed
			}
		}
	}
	gzipQ, named := q["gzip"]
	wildcard, hasWildcard := q["*"]
	if !named && hasWildcard {
		gzipQ = wildcard
	}
	identity, identityNamed := q["identity"]
	refused := identityNamed && identity == 0 || !identityNamed && hasWildcard && wildcard == 0
	if refused {
		if gzipQ > 0 {
			return true, nil
		}
		return false, &statusError{http.StatusNotAcceptable, "no acceptable encoding found; gzip and identity are offered"}
	}
	for name, weight := range q {
		if name != "gzip" && name != "identity" && weight > 0 {
			return false, nil
		}
	}
	return named && gzipQ > 0 && gzipQ >= identity, nil
}
