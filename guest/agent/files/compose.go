package files

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"cella.dev/cella/guest/agent/accounts"
)

// maxComposeBytes bounds the body of a compose request.
const maxComposeBytes = 1 << 20

// composeRequest joins files that were uploaded in pieces.
type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose answers POST /files/compose: the sources, in order, become the destination, and are gone. The
// destination appears whole or not at all.
func (s *Service) compose(w http.ResponseWriter, r *http.Request) {
	var req composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBytes)).Decode(&req); err != nil {
		fail(w, &statusError{http.StatusBadRequest, "invalid request body: " + err.Error()})
		return
	}
	dest, err := s.composeFile(&req)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(written{Name: filepath.Base(dest), Path: dest, Type: "file"})
}

func (s *Service) composeFile(req *composeRequest) (dest string, err error) {
	if len(req.SourcePaths) == 0 {
		return "", &statusError{http.StatusBadRequest, "source_paths must not be empty"}
	}
	if req.Destination == "" {
		return "", &statusError{http.StatusBadRequest, "destination is required"}
	}
	u, err := s.ident.User(req.Username)
	if err != nil {
		return "", err
	}
	if dest, err = s.ident.Path(u, req.Destination); err != nil {
		return "", err
	}
	if info, err := os.Stat(dest); err == nil && info.IsDir() {
		return "", &statusError{http.StatusBadRequest, "destination is a directory: " + dest}
	}
	sources, err := s.composeSources(u, req.SourcePaths, dest)
	if err != nil {
		return "", err
	}
	if err := makeDirs(filepath.Dir(dest), u); err != nil {
		return "", fmt.Errorf("error ensuring directories: %w", err)
	}
	err = replaceFile(dest, func(f *os.File) error { return concatenate(f, sources, u) })
	if err != nil {
		return "", fmt.Errorf("error composing %s: %w", dest, err)
	}
	for _, src := range sources {
		os.Remove(src) // the destination is complete; a source that stays does no harm
	}
	return dest, nil
}

// composeSources resolves the sources and checks that they can be read.
func (s *Service) composeSources(u *accounts.User, paths []string, dest string) ([]string, error) {
	var sources []string
	for _, p := range paths {
		src, err := s.ident.Path(u, p)
		if err != nil {
			return nil, err
		}
		if src == dest {
			return nil, &statusError{http.StatusBadRequest, fmt.Sprintf("source path %q cannot be the same as destination", p)}
		}
		info, err := os.Stat(src)
		if err != nil {
			return nil, &statusError{http.StatusNotFound, "source file not found: " + p}
		}
		if !info.Mode().IsRegular() {
			return nil, &statusError{http.StatusBadRequest, "source path is not a regular file: " + p}
		}
		sources = append(sources, src)
	}
	return sources, nil
}

// concatenate copies the sources into f, in the kernel where it can (copy_file_range).
func concatenate(f *os.File, sources []string, u *accounts.User) error {
	for _, path := range sources {
		src, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, src)
		src.Close()
		if err != nil {
			return err
		}
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return chown(f.Name(), u)
}
