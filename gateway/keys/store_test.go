package keys

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func open(t *testing.T) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func TestCreatedKeyIsFoundAndItsSecretIsNotStored(t *testing.T) {
	s, dir := open(t)
	key, secret, err := s.Create("ci", "blue")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(secret) {
		t.Errorf("secret %q is not e2b_ and 40 hex digits", secret)
	}
	for range 2 { // from the file, then from the cache
		got, err := s.Lookup(secret)
		if err != nil || got != key {
			t.Fatalf("Lookup = %+v, %v; want %+v", got, err, key)
		}
	}
	if got := key.Team; got != "blue" {
		t.Errorf("team = %q, want blue", got)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 {
		t.Fatalf("%d files in the store, want 1", len(entries))
	}
	content, _ := os.ReadFile(filepath.Join(dir, entries[0].Name()))
	if strings.Contains(string(content)+entries[0].Name(), secret[len(Prefix):]) {
		t.Error("the secret is in the store")
	}
	info, _ := entries[0].Info()
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("key file mode = %o, want 600", got)
	}
}

func TestKeyRemovedByAnotherProcessDiesAtOnce(t *testing.T) {
	s, dir := open(t)
	key, secret, err := s.Create("", "")
	if err != nil {
		t.Fatal(err)
	}
	if key.Team != DefaultTeam {
		t.Errorf("team = %q, want %q", key.Team, DefaultTeam)
	}
	if _, err := s.Lookup(secret); err != nil {
		t.Fatal(err)
	}
	other, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lookup(secret); !errors.Is(err, ErrUnknown) {
		t.Errorf("Lookup after removal = %v, want ErrUnknown", err)
	}
	if err := s.Remove(key.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("second Remove = %v, want ErrUnknown", err)
	}
}

func TestLookupRefuses(t *testing.T) {
	s, dir := open(t)
	if _, _, err := s.Create("a", ""); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"", "e2b_", "e2b_00", "../../etc/passwd", strings.Repeat("x", 1<<16)} {
		if _, err := s.Lookup(secret); !errors.Is(err, ErrUnknown) {
			t.Errorf("Lookup(%.20q) = %v, want ErrUnknown", secret, err)
		}
	}
	// The stored name is the hash; presenting the hash itself must not work.
	entries, _ := os.ReadDir(dir)
	if _, err := s.Lookup(strings.TrimSuffix(entries[0].Name(), ".json")); !errors.Is(err, ErrUnknown) {
		t.Errorf("Lookup(hash) = %v, want ErrUnknown", err)
	}
}

func TestListIsOldestFirst(t *testing.T) {
	s, _ := open(t)
	want := map[string]bool{}
	for _, name := range []string{"one", "two", "three"} {
		if _, _, err := s.Create(name, ""); err != nil {
			t.Fatal(err)
		}
		want[name] = true
	}
	list, err := s.List()
	if err != nil || len(list) != 3 {
		t.Fatalf("List = %v, %v; want 3 keys", list, err)
	}
	for i, k := range list {
		delete(want, k.Name)
		if i > 0 && k.CreatedAt.Before(list[i-1].CreatedAt) {
			t.Errorf("key %d is older than the one before it", i)
		}
	}
	if len(want) != 0 {
		t.Errorf("not listed: %v", want)
	}
}
