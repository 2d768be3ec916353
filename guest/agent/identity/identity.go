// Package identity knows who a sandbox is: its id, token, environment, and the users in it. The host sets
// it with each init; a clone thus becomes itself without a restart.
package identity

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/rpc"
)

// defaultPath is the PATH of a process whose caller gives none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Identity is one sandbox's. It is never changed, only replaced.
type Identity struct {
	SandboxID, TemplateID string
	// AccessToken is what calls must carry; empty means that none is asked.
	AccessToken string
	// Env is given to every process.
	Env map[string]string
	// DefaultUser runs what names no user; DefaultWorkdir is where it starts, "" meaning its home.
	DefaultUser, DefaultWorkdir string
}

// Store holds the identity in force. It is safe for concurrent use.
type Store struct {
	users   *accounts.Database
	current atomic.Pointer[Identity]
}

// NewStore starts with an identity that has only a default user: "user" if there is one, else "root".
func NewStore(users *accounts.Database) *Store {
	s := &Store{users: users}
	s.Set(Identity{})
	return s
}

// Set replaces the identity. The E2B_SANDBOX variables are added to its Env.
func (s *Store) Set(id Identity) {
	env := make(map[string]string, len(id.Env)+3)
	maps.Copy(env, id.Env)
	env["E2B_SANDBOX"] = "true"
	if id.SandboxID != "" {
		env["E2B_SANDBOX_ID"] = id.SandboxID
	}
	if id.TemplateID != "" {
		env["E2B_TEMPLATE_ID"] = id.TemplateID
	}
	id.Env = env
	if id.DefaultUser == "" {
		id.DefaultUser = "root"
		if _, err := s.users.Lookup("user"); err == nil {
			id.DefaultUser = "user"
		}
	}
	s.current.Store(&id)
}

// Current is the identity in force.
func (s *Store) Current() *Identity { return s.current.Load() }

// Users is the account database.
func (s *Store) Users() *accounts.Database { return s.users }

// TokenOK says whether token opens the sandbox, in constant time.
func (s *Store) TokenOK(token string) bool {
	want := s.Current().AccessToken
	return want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(token)) == 1
}

// UserOf is the user that a call names in its Basic header (a selector, no password), or the default.
func (s *Store) UserOf(h http.Header) (*accounts.User, error) {
	r := http.Request{Header: h}
	name, _, _ := r.BasicAuth()
	return s.User(name)
}

// User finds a user; "" is the default user. An unknown one is an Unauthenticated rpc.Error.
func (s *Store) User(name string) (*accounts.User, error) {
	if name == "" {
		name = s.Current().DefaultUser
	}
	u, err := s.users.Lookup(name)
	var unknown accounts.UnknownUserError
	if errors.As(err, &unknown) {
		return nil, rpc.Errorf(rpc.Unauthenticated, "%s", err)
	}
	if err != nil {
		return nil, fmt.Errorf("look up user %q: %w", name, err)
	}
	return u, nil
}

// Path makes a path absolute and clean: "~" is the user's home, and a relative path starts at the default
// workdir for the default user, at the home for others.
func (s *Store) Path(u *accounts.User, path string) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", rpc.Errorf(rpc.InvalidArgument, "path holds a NUL byte")
	}
	switch {
	case path == "~" || strings.HasPrefix(path, "~/"):
		return filepath.Join(u.Home, path[1:]), nil
	case strings.HasPrefix(path, "~"):
		return "", rpc.Errorf(rpc.InvalidArgument, "cannot expand user-specific home dir in %q; use ~/ or an absolute path", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	base := u.Home
	if id := s.Current(); id.DefaultWorkdir != "" && id.DefaultUser == u.Name {
		base = id.DefaultWorkdir
	}
	return filepath.Join("/", base, path), nil
}

// Environ is the environment of a process of u: the login variables, the sandbox's, and extra, where a
// later one wins.
func (s *Store) Environ(u *accounts.User, extra map[string]string) map[string]string {
	env := map[string]string{
		"PATH": defaultPath, "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": u.Shell,
	}
	maps.Copy(env, s.Current().Env)
	maps.Copy(env, extra)
	return env
}
