// Package debian gets what set-up needs out of Debian: packages onto this machine, single packages into the
// cache, and whole root filesystems, always from the mirrors that the machine's own apt is configured for.
package debian

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one mirror entry of apt's configuration.
type Source struct {
	URI        string
	Suite      string
	Components []string
}

// Sources reads apt's lists under root ("/" on the machine itself), sources.list first.
func Sources(root string) ([]Source, error) {
	apt := filepath.Join(root, "etc/apt")
	files := []string{filepath.Join(apt, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(apt, "sources.list.d", pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	var all []Source
	for _, file := range files {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt's sources: %w", err)
		}
		parse := parseOneLine
		if strings.HasSuffix(file, ".sources") {
			parse = parseDeb822
		}
		found, err := parse(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// Mirror picks the URI of Debian's main archive: the first source that serves component main of a Debian
// release over the network, and is not a security or third-party archive.
func Mirror(sources []Source) (string, error) {
	for _, s := range sources {
		network := strings.HasPrefix(s.URI, "http://") || strings.HasPrefix(s.URI, "https://")
		if network && slices.Contains(releases, s.Suite) && slices.Contains(s.Components, "main") {
			return s.URI, nil
		}
	}
	return "", errors.New("apt has no source for Debian's main archive (looked in /etc/apt/sources.list and sources.list.d)")
}

// releases are the suites whose archive also holds trixie, which the images are made of.
var releases = []string{"bookworm", "trixie", "forky", "sid", "unstable", "stable", "testing", "oldstable"}

// parseOneLine reads the format of sources.list(5): deb [options] URI suite component...
func parseOneLine(r io.Reader) ([]Source, error) {
	var all []Source
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if before, after, ok := strings.Cut(line, "["); ok {
			_, rest, _ := strings.Cut(after, "]")
			line = before + rest
		}
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "deb" {
			continue
		}
		all = append(all, Source{URI: f[1], Suite: f[2], Components: f[3:]})
	}
	return all, lines.Err()
}

// parseDeb822 reads the format of sources.list(5)'s .sources files: paragraphs of fields, a field continued
// by lines that begin with a blank. One paragraph may stand for several mirrors and suites.
func parseDeb822(r io.Reader) ([]Source, error) {
	var all []Source
	fields := map[string]string{}
	last := ""
	flush := func() {
		all = append(all, expand(fields)...)
		fields, last = map[string]string{}, ""
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + strings.TrimSpace(line)
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				return nil, fmt.Errorf("no colon in line %q", line)
			}
			last = strings.ToLower(name)
			fields[last] = strings.TrimSpace(value)
		}
	}
	flush()
	return all, lines.Err()
}

// expand is the product of a paragraph's URIs and suites.
func expand(fields map[string]string) []Source {
	if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(fields["enabled"], "no") {
		return nil
	}
	var all []Source
	for _, uri := range strings.Fields(fields["uris"]) {
		for _, suite := range strings.Fields(fields["suites"]) {
			all = append(all, Source{URI: uri, Suite: suite, Components: strings.Fields(fields["components"])})
		}
	}
	return all
}
