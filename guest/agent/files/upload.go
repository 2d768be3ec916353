package files

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cella.dev/cella/guest/agent/accounts"
)

// written describes an uploaded file in the reply.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload answers POST /files. Bodies go to disk as they arrive; nothing is held in memory.
func (s *Service) upload(w http.ResponseWriter, r *http.Request) {
	u, path, err := s.target(r, "write")
	if err != nil {
		fail(w, err)
		return
	}
	body, err := unzipped(r)
	if err != nil {
		fail(w, err)
		return
	}
	up := &uploader{service: s, user: u, metadata: metadataOf(r.Header), files: []written{}}
	mediaType, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case mediaType == "application/octet-stream":
		if path == "" {
			err = &statusError{http.StatusBadRequest, "path query parameter is required for raw body upload"}
			break
		}
		err = up.write(path, body)
	case strings.HasPrefix(mediaType, "multipart/"):
		err = up.writeParts(multipart.NewReader(body, params["boundary"]), path)
	default:
		err = &statusError{http.StatusBadRequest, fmt.Sprintf(
			"unsupported content type: %s, expected multipart/form-data or application/octet-stream", r.Header.Get("Content-Type"))}
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(up.files)
}

// unzipped is the request's body without its Content-Encoding.
func unzipped(r *http.Request) (io.Reader, error) {
	name, _, _ := strings.Cut(r.Header.Get("Content-Encoding"), ";")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, &statusError{http.StatusBadRequest, "error decompressing request body: " + err.Error()}
		}
		return z, nil
	}
	return nil, &statusError{http.StatusBadRequest,
		"error decompressing request body: unsupported Content-Encoding: " + name + ", supported: [gzip]"}
}

// An uploader writes the files of one request.
type uploader struct {
	service  *Service
	user     *accounts.User
	metadata map[string]string
	files    []written
}

// writeParts writes each part named "file" to path, or to the path that is its file name.
func (up *uploader) writeParts(parts *multipart.Reader, path string) error {
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badBody(err)
		}
		if part.FormName() != "file" {
			continue
		}
		to := path
		if to == "" {
			// Part.FileName cuts directories off; here they are wanted.
			_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if err != nil || params["filename"] == "" {
				return &statusError{http.StatusBadRequest, "a part has no file name, and the request no path"}
			}
			if to, err = up.service.ident.Path(up.user, params["filename"]); err != nil {
				return err
			}
		}
		if err := up.write(to, part); err != nil {
			return err
		}
	}
}

// write stores one file, replacing what is there, and all its metadata.
func (up *uploader) write(path string, body io.Reader) error {
	for _, f := range up.files {
		if f.Path == path {
			return &statusError{http.StatusBadRequest, fmt.Sprintf(
				"you cannot upload multiple files to the same path '%s' in one upload request, only the first specified file was uploaded", path)}
		}
	}
	if err := makeDirs(filepath.Dir(path), up.user); err != nil {
		return fmt.Errorf("error ensuring directories: %w", err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return &statusError{http.StatusBadRequest, "path is a directory: " + path}
		}
		return &statusError{http.StatusBadRequest, "path is not a regular file: " + path}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return fmt.Errorf("error opening file: %w", err)
	}
	defer f.Close()
	if os.Geteuid() == 0 {
		if err := f.Chown(int(up.user.UID), int(up.user.GID)); err != nil {
			return fmt.Errorf("error changing file ownership: %w", err)
		}
	}
	if err := copyBody(f, body); err != nil {
		return err
	}
	if err := replaceMetadata(path, up.metadata); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("error writing file: %w", err)
	}
	up.files = append(up.files, written{Name: filepath.Base(path), Path: path, Type: "file", Metadata: up.metadata})
	return nil
}

// copyBody tells a disk that fails from a client that does: only the file's own errors are PathErrors.
func copyBody(f *os.File, body io.Reader) error {
	_, err := f.ReadFrom(body)
	if err == nil {
		return nil
	}
	if errors.As(err, new(*os.PathError)) {
		return fmt.Errorf("error writing file: %w", err)
	}
	return badBody(err)
}

// badBody blames the request.
func badBody(err error) error {
	return &statusError{http.StatusBadRequest, "error reading request body: " + err.Error()}
}
