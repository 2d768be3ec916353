package files

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"
)

// User metadata lives in extended attributes with this prefix.
const xattrPrefix = "user.e2b."

// metadataHeader starts the headers that set metadata.
const metadataHeader = "X-Metadata-"

// Bounds of what a file system takes (ext4 keeps all attributes of a file in one 4 KiB block).
const (
	maxXattrName  = 255
	maxXattrList  = 64 << 10
	maxXattrValue = 64 << 10
)

// metadataOf reads the metadata that a request sets; names are lower case.
func metadataOf(h http.Header) map[string]string {
	var m map[string]string
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok || key == "" {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[strings.ToLower(key)] = strings.Join(values, ", ")
	}
	return m
}

// listMetadata names the metadata attributes of a file, without the prefix.
func listMetadata(path string) []string {
	size, err := unix.Llistxattr(path, nil)
	if err != nil || size <= 0 {
		return nil
	}
	buf := make([]byte, min(size, maxXattrList))
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n <= 0 {
		return nil
	}
	var keys []string
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		if key, ok := strings.CutPrefix(string(name), xattrPrefix); ok && key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// readMetadata is a file's metadata; nil if it has none or the file system keeps none.
func readMetadata(path string) map[string]string {
	keys := listMetadata(path)
	if len(keys) == 0 {
		return nil
	}
	m := make(map[string]string, len(keys))
	buf := make([]byte, maxXattrValue)
	for _, key := range keys {
		if n, err := unix.Lgetxattr(path, xattrPrefix+key, buf); err == nil {
			m[key] = string(buf[:n])
		}
	}
	return m
}

// replaceMetadata makes m all the metadata that a file has.
func replaceMetadata(path string, m map[string]string) error {
	for _, key := range listMetadata(path) {
		if _, keep := m[key]; !keep {
			if err := unix.Lremovexattr(path, xattrPrefix+key); err != nil {
				return fmt.Errorf("remove metadata %q: %w", key, err)
			}
		}
	}
	for key, value := range m {
		if len(xattrPrefix)+len(key) > maxXattrName {
			return fmt.Errorf("set metadata %q: %w", key, unix.ERANGE)
		}
		if err := unix.Lsetxattr(path, xattrPrefix+key, []byte(value), 0); err != nil {
			return fmt.Errorf("set metadata %q: %w", key, err)
		}
	}
	return nil
}
