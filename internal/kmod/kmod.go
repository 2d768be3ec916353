// Package kmod picks kernel modules out of a modules tree (lib/modules/VERSION of a kernel package) and writes
// them down in the order in which they must be loaded, ready for an initramfs that has no modprobe.
package kmod

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Tree is a modules directory with its dependency file.
type Tree struct {
	dir string
	// deps maps a module's name to its path and its dependencies' paths, as depmod lists them: the ones
	// to load first come last.
	deps map[string][]string
	// builtin holds the names of what the kernel has without loading.
	builtin map[string]bool
}

// Open reads lib/modules/VERSION at dir; modules.dep must be there (depmod writes it).
func Open(dir string) (*Tree, error) {
	dep, err := os.Open(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("read the modules' dependencies: %w", err)
	}
	defer dep.Close()
	t := &Tree{dir: dir}
	if t.deps, err = parseDep(dep); err != nil {
		return nil, fmt.Errorf("read %s: %w", dep.Name(), err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read the built-in modules: %w", err)
	}
	t.builtin = map[string]bool{}
	for line := range strings.Lines(string(builtin)) {
		t.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return t, nil
}

func parseDep(r io.Reader) (map[string][]string, error) {
	deps := map[string][]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		file, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			return nil, fmt.Errorf("no colon in line %q", lines.Text())
		}
		deps[moduleName(file)] = append([]string{file}, strings.Fields(rest)...)
	}
	return deps, lines.Err()
}

// moduleName is the name modprobe knows a file by: without folder and suffix, and with underscores, because
// the kernel takes - and _ for the same.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// LoadOrder lists the files, relative to the tree, that make the named modules work, each after all it depends
// on and each once. Built-in modules need nothing. A name that the kernel does not have is an error.
func (t *Tree) LoadOrder(names ...string) ([]string, error) {
	var order []string
	seen := map[string]bool{}
	for _, name := range names {
		name = strings.ReplaceAll(name, "-", "_")
		files, ok := t.deps[name]
		if !ok && !t.builtin[name] {
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		for i := len(files) - 1; i >= 0; i-- {
			if !seen[files[i]] {
				seen[files[i]] = true
				order = append(order, files[i])
			}
		}
	}
	return order, nil
}

// Extract writes the named modules and all they need to dir, decompressed, as NN-name.ko, and the file names
// in load order, one a line, to dir/order.
func (t *Tree) Extract(dir string, names ...string) error {
	files, err := t.LoadOrder(names...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var order strings.Builder
	for i, file := range files {
		data, err := decompress(filepath.Join(t.dir, file))
		if err != nil {
			return err
		}
		data = hideFtraceSites(unsign(data))
		name := fmt.Sprintf("%02d-%s.ko", i, moduleName(file))
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
		order.WriteString(name + "\n")
	}
	return os.WriteFile(filepath.Join(dir, "order"), []byte(order.String()), 0o644)
}

// signatureMagic ends a signed module (the kernel's include/linux/module_signature.h).
var signatureMagic = []byte("~Module signature appended~\n")

// unsign cuts the signature off a module. Checking it takes an emulated CPU seconds, and proves nothing here: the
// initramfs that carries the module is as trusted as the kernel it is booted with.
func unsign(module []byte) []byte {
	// Before the magic lies struct module_signature, twelve bytes; its last four are the signature's length.
	const info = 12
	body, ok := bytes.CutSuffix(module, signatureMagic)
	if !ok || len(body) < info {
		return module
	}
	signature := int64(binary.BigEndian.Uint32(body[len(body)-4:]))
	if end := int64(len(body)) - info - signature; end > 0 {
		return body[:end]
	}
	return module
}

// hideFtraceSites renames the section in which a module lists its function entries for ftrace, so that the kernel does not
// find it. For each entry the loader searches the module's whole symbol table: of the 1.6 billion instructions that
// loading xfs takes, nearly all. Tracepoints and kprobes are not affected; function tracing of the module is lost.
func hideFtraceSites(module []byte) []byte {
	// One string serves the section and, by its tail, nothing else; the length must stay.
	return bytes.Replace(module, []byte("__mcount_loc\x00"), []byte("__mcount_off\x00"), 1)
}

// decompress reads a module file. Debian packs modules with xz; xz-utils is one of set-up's packages.
func decompress(file string) ([]byte, error) {
	if !strings.HasSuffix(file, ".xz") {
		return os.ReadFile(file)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("xz", "-dc", file)
	cmd.Stderr = &stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w: %s", file, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return data, nil
}
