// Package files serves a sandbox's file system: filesystem.Filesystem over RPC, and /files over HTTP.
//
// As in E2B the agent works as root and gives what it creates to the calling user. What stands between
// user code and the world is the sandbox's walls, not permissions inside it.
package files

import (
	"net/http"

	"cella.dev/cella/guest/agent/accounts"
	"cella.dev/cella/guest/agent/identity"
	"cella.dev/cella/guest/agent/rpc"
)

// Service answers for one sandbox's files.
type Service struct {
	ident    *identity.Store
	watchers watchers
}

// NewService makes a service.
func NewService(ident *identity.Store) *Service {
	return &Service{ident: ident, watchers: watchers{byID: map[string]*polledWatcher{}}}
}

// Register adds the service's methods and routes to mux.
func (s *Service) Register(mux *http.ServeMux) {
	const prefix = "/filesystem.Filesystem/"
	mux.Handle(prefix+"Stat", rpc.Unary(s.stat))
	mux.Handle(prefix+"MakeDir", rpc.Unary(s.makeDir))
	mux.Handle(prefix+"Move", rpc.Unary(s.move))
	mux.Handle(prefix+"ListDir", rpc.Unary(s.listDir))
	mux.Handle(prefix+"Remove", rpc.Unary(s.remove))
	mux.Handle(prefix+"WatchDir", rpc.ServerStream(s.watchDir))
	mux.Handle(prefix+"CreateWatcher", rpc.Unary(s.createWatcher))
	mux.Handle(prefix+"GetWatcherEvents", rpc.Unary(s.getWatcherEvents))
	mux.Handle(prefix+"RemoveWatcher", rpc.Unary(s.removeWatcher))
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	mux.HandleFunc("POST /files/compose", s.compose)
}

// resolve finds the calling user, and what path means to it.
func (s *Service) resolve(call *rpc.Call, path string) (*accounts.User, string, error) {
	u, err := s.ident.UserOf(call.Header)
	if err != nil {
		return nil, "", err
	}
	path, err = s.ident.Path(u, path)
	return u, path, err
}
