package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"cella.dev/cella/memsnap"
	"cella.dev/cella/vmm"
)

// Files of a template's directory, beside those of its snapshot.
const (
	manifestFile = "template.json"
	diskFile     = "disk"
	kernelFile   = "kernel"
	initrdFile   = "initrd"
	// workingSetFile may be missing: it only saves time.
	workingSetFile = "workingset"
	// buildPrefix marks directories of builds that are under way.
	buildPrefix = ".build-"
)

// validAlias reports whether a name is 1 to 63 of a-z 0-9 . _ - and begins with a letter or digit.
func validAlias(name string) bool {
	const first = "abcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= 63 && strings.Contains(first, name[:1]) && strings.Trim(name, first+"._-") == ""
}

// template is a Template that is ready to be cloned.
type template struct {
	Template
	dir      string
	disk     *os.File
	snapshot *memsnap.Snapshot
	// workingSet, encoded, is what a clone touches up to its first command; nil if it is not known.
	workingSet []byte
	pool       *pool // set before the template is in the table
	// users counts creates that are using the files. Adding happens under Node.mu while the template is in
	// the table, so that none begins once it is out.
	users sync.WaitGroup
}

func (t *template) shape() vmm.Shape {
	return vmm.Shape{VCPUs: t.CPUCount, MemoryBytes: uint64(t.MemoryMB) << 20}
}

// close waits for the creates under way. Sandboxes hold what they share by themselves.
func (t *template) close() {
	t.users.Wait()
	t.disk.Close()
	t.snapshot.Close()
}

func (n *Node) templatesDir() string { return filepath.Join(n.opts.State, "templates") }

// loadTemplates opens every published template. One that cannot be used is reported and left out: the others
// still serve.
func (n *Node) loadTemplates() error {
	if err := os.MkdirAll(n.templatesDir(), 0o700); err != nil {
		return fmt.Errorf("create templates directory: %w", err)
	}
	manifests, err := filepath.Glob(filepath.Join(n.templatesDir(), "*", manifestFile))
	if err != nil {
		return err
	}
	for _, name := range manifests {
		t, err := openTemplate(filepath.Dir(name))
		if err != nil {
			n.log.Error("template left out; build it again with: cella template build", "error", err)
			continue
		}
		n.templates[t.Alias] = t
	}
	return nil
}

func openTemplate(dir string) (*template, error) {
	t := &template{dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, fmt.Errorf("open template: %w", err)
	}
	if err := json.Unmarshal(data, &t.Template); err != nil {
		return nil, fmt.Errorf("open template %s: %s: %w", dir, manifestFile, err)
	}
	if !validAlias(t.Alias) || t.CPUCount < 1 || t.MemoryMB < 1 {
		return nil, fmt.Errorf("open template %s: %s does not describe one", dir, manifestFile)
	}
	if t.snapshot, err = memsnap.Open(dir); err != nil {
		return nil, fmt.Errorf("open template %s: %w", t.Alias, err)
	}
	if got, want := t.snapshot.Manifest.Memory.Bytes, int64(t.MemoryMB)<<20; got != want {
		t.snapshot.Close()
		return nil, fmt.Errorf("open template %s: its memory is %d bytes, its manifest says %d", t.Alias, got, want)
	}
	if t.disk, err = os.Open(filepath.Join(dir, diskFile)); err != nil {
		t.snapshot.Close()
		return nil, fmt.Errorf("open template %s: %w", t.Alias, err)
	}
	if t.workingSet, err = os.ReadFile(filepath.Join(dir, workingSetFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.disk.Close()
		t.snapshot.Close()
		return nil, fmt.Errorf("open template %s: %w", t.Alias, err)
	}
	return t, nil
}

// Templates lists the templates by alias.
func (n *Node) Templates() []Template {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]Template, 0, len(n.templates))
	for _, t := range n.templates {
		list = append(list, t.Template)
	}
	slices.SortFunc(list, func(a, b Template) int { return cmp.Compare(a.Alias, b.Alias) })
	return list
}

// Template finds one by ID or alias; the error wraps ErrTemplateNotFound.
func (n *Node) Template(name string) (Template, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, err := n.template(name)
	if err != nil {
		return Template{}, err
	}
	return t.Template, nil
}

// acquire finds a template and keeps its files open until the caller says users.Done.
func (n *Node) acquire(name string) (*template, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, err := n.template(name)
	if err == nil {
		t.users.Add(1)
	}
	return t, err
}

// template finds one. The caller holds Node.mu.
func (n *Node) template(name string) (*template, error) {
	if t, ok := n.templates[name]; ok {
		return t, nil
	}
	for _, t := range n.templates {
		if t.ID == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrTemplateNotFound, name)
}

// RemoveTemplate deletes a template. Sandboxes made from it go on: they hold what they share with it.
func (n *Node) RemoveTemplate(name string) error {
	n.publishing.Lock()
	defer n.publishing.Unlock()
	n.mu.Lock()
	t, err := n.template(name)
	if err == nil {
		delete(n.templates, t.Alias)
	}
	n.mu.Unlock()
	if err != nil {
		return err
	}
	t.pool.close()
	t.close()
	// Renamed first, so that a crash in the middle leaves no half template under its name.
	doomed := filepath.Join(n.templatesDir(), buildPrefix+"removed-"+t.ID)
	if err := os.Rename(t.dir, doomed); err != nil {
		return fmt.Errorf("remove template %s: %w", name, err)
	}
	return errors.Join(os.RemoveAll(doomed), syncDir(n.templatesDir()))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
