package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"
)

// Prefix begins every key. SDKs up to 2.45 refuse keys that do not match ^e2b_[0-9a-f]+$.
const Prefix = "e2b_"

// secretBytes of randomness make the 40 hex digits after Prefix.
const secretBytes = 20

// DefaultTeam owns what is made with a key that names no team.
const DefaultTeam = "default"

// ErrUnknown says that no such key exists, or no longer.
var ErrUnknown = errors.New("unknown API key")

// Key describes a key without its secret.
type Key struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Team owns the sandboxes made with the key; teams never see each other's.
	Team string `json:"team"`
	// Prefix is the first characters of the secret, for people who compare lists.
	Prefix    string    `json:"prefix"`
	CreatedAt time.Time `json:"createdAt"`
}

// Store is a directory of keys. Its zero value is not usable; call Open.
type Store struct {
	dir string
	// cache maps a file name to its parsed content, valid while the file's identity is the same.
	cache sync.Map // string → cached
}

type cached struct {
	key  Key
	info fs.FileInfo
}

// Open returns the store in dir, which is created (mode 0700) if it is missing.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open key store: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Create makes a key and returns it with its secret, which is stored nowhere.
func (s *Store) Create(name, team string) (Key, string, error) {
	if team == "" {
		team = DefaultTeam
	}
	raw := make([]byte, secretBytes+8)
	rand.Read(raw) // never fails: crypto/rand ends the process instead
	secret := Prefix + hex.EncodeToString(raw[:secretBytes])
	key := Key{
		ID:        hex.EncodeToString(raw[secretBytes:]),
		Name:      name,
		Team:      team,
		Prefix:    secret[:len(Prefix)+6],
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := s.write(fileName(secret), key); err != nil {
		return Key{}, "", fmt.Errorf("create API key %q: %w", name, err)
	}
	return key, secret, nil
}

// write makes the file appear complete or not at all, and durable: a key shown to its owner must survive a
// power failure.
func (s *Store) write(name string, key Key) error {
	content, err := json.Marshal(key)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(content, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(s.dir, name)); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// Lookup returns the key whose secret this is, or ErrUnknown. It asks the file system every time (one stat),
// so that a key removed by another process is refused at once.
func (s *Store) Lookup(secret string) (Key, error) {
	name := fileName(secret)
	path := filepath.Join(s.dir, name)
	info, err := os.Stat(path)
	if err != nil {
		s.cache.Delete(name)
		if errors.Is(err, fs.ErrNotExist) {
			return Key{}, ErrUnknown
		}
		return Key{}, fmt.Errorf("look up API key: %w", err)
	}
	if c, ok := s.cache.Load(name); ok {
		c := c.(cached)
		if os.SameFile(c.info, info) && c.info.ModTime().Equal(info.ModTime()) {
			return c.key, nil
		}
	}
	key, err := read(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return Key{}, ErrUnknown
		}
		return Key{}, fmt.Errorf("look up API key: %w", err)
	}
	s.cache.Store(name, cached{key: key, info: info})
	return key, nil
}

// List returns all keys, oldest first.
func (s *Store) List() ([]Key, error) {
	list := []Key{}
	err := s.each(func(_ string, key Key) error {
		list = append(list, key)
		return nil
	})
	sort.Slice(list, func(i, j int) bool {
		if !list[i].CreatedAt.Equal(list[j].CreatedAt) {
			return list[i].CreatedAt.Before(list[j].CreatedAt)
		}
		return list[i].ID < list[j].ID
	})
	return list, err
}

// Remove deletes the key with this ID; ErrUnknown if there is none.
func (s *Store) Remove(id string) error {
	found := false
	err := s.each(func(path string, key Key) error {
		if key.ID != id {
			return nil
		}
		found = true
		return os.Remove(path)
	})
	if err != nil {
		return fmt.Errorf("remove API key %s: %w", id, err)
	}
	if !found {
		return fmt.Errorf("remove API key %s: %w", id, ErrUnknown)
	}
	return syncDir(s.dir)
}

// each calls f for every key file. A file that vanishes meanwhile is passed over.
func (s *Store) each(f func(path string, key Key) error) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		key, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := f(path, key); err != nil {
			return err
		}
	}
	return nil
}

func read(path string) (Key, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Key{}, err
	}
	var key Key
	if err := json.Unmarshal(content, &key); err != nil {
		return Key{}, fmt.Errorf("key file %s is damaged, remove it: %w", path, err)
	}
	return key, nil
}

func fileName(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:]) + ".json"
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
