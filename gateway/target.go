package gateway

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/guest/wire"
)

// target is where in which sandbox a data-plane request goes.
type target struct {
	id   string
	port int
}

// Headers that route a request whose host names no sandbox.
const (
	headerSandboxID   = "E2b-Sandbox-Id"
	headerSandboxPort = "E2b-Sandbox-Port"
)

// findTarget decides between the planes. A host name that names a sandbox wins over headers, so that a page in
// one sandbox can't be made to reach another; headers are looked at only under other hosts.
//
//	49983-i0abc.example.com            → that port of that sandbox
//	localhost, 10.0.0.1, sandbox.x.y   → by E2b-Sandbox-Id and -Port if present, else the control plane
func (s *Server) findTarget(ctx *fasthttp.RequestCtx) (t target, isData bool, err error) {
	host := bareHost(ctx.Request.Header.Host())
	label, rest, dotted := bytes.Cut(host, []byte("."))
	if dotted && !isAddress(host) {
		if t, named, err := parseLabel(label); named {
			return t, true, err
		}
		if s.domain != "" && string(rest) == s.domain && !isService(label) {
			return target{}, true, errorf(fasthttp.StatusBadRequest, "bad host %q: want <port>-<sandbox id>.%s", clip(string(host), 100), s.domain)
		}
	}
	id := ctx.Request.Header.Peek(headerSandboxID)
	if len(id) > 0 {
		t, err := parseHeaders(id, ctx.Request.Header.Peek(headerSandboxPort))
		return t, true, err
	}
	if string(label) == "sandbox" && dotted {
		return target{}, true, errorf(fasthttp.StatusBadRequest, "missing header %s", headerSandboxID)
	}
	if t, ok := s.signedTarget(ctx); ok {
		return t, true, nil
	}
	return target{}, false, nil
}

// bareHost strips the port, and a root dot, off a Host header.
func bareHost(host []byte) []byte {
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && bytes.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return bytes.TrimSuffix(host, []byte("."))
}

func isAddress(host []byte) bool {
	_, err := netip.ParseAddr(strings.Trim(string(host), "[]"))
	return err == nil
}

// isService names the hosts of the domain that are not sandboxes.
func isService(label []byte) bool {
	return string(label) == "api" || string(label) == "sandbox"
}

// parseLabel reads "<port>-<id>" or "<port>-<id>-<suffix>". named says that the label means to be one.
func parseLabel(label []byte) (t target, named bool, err error) {
	port, rest, ok := bytes.Cut(label, []byte("-"))
	if !ok || len(port) == 0 || !digits(port) {
		return target{}, false, nil
	}
	id, _, _ := bytes.Cut(rest, []byte("-"))
	t, err = parseHeaders(id, port)
	return t, true, err
}

func parseHeaders(rawID, rawPort []byte) (target, error) {
	// Header routing gets the ID as the SDK knows it, which may carry the client's suffix.
	id, _, _ := bytes.Cut(bytes.TrimSpace(rawID), []byte("-"))
	if !validID(id) {
		return target{}, errorf(fasthttp.StatusBadRequest, "bad sandbox id %q", clip(string(rawID), 64))
	}
	if len(rawPort) == 0 {
		return target{}, errorf(fasthttp.StatusBadRequest, "missing header %s", headerSandboxPort)
	}
	port, err := strconv.ParseUint(string(rawPort), 10, 16)
	if err != nil || port == 0 {
		return target{}, errorf(fasthttp.StatusBadRequest, "bad port %q", clip(string(rawPort), 32))
	}
	return target{id: string(id), port: int(port)}, nil
}

// maxIDLength is generous: today's IDs have 21 characters.
const maxIDLength = 63

func validID(id []byte) bool {
	if len(id) == 0 || len(id) > maxIDLength {
		return false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// splitURI cuts a request target as it came into path and query, both still escaped. The absolute form
// "http://host/path" that proxies use is reduced to its path.
func splitURI(uri []byte) (path, query []byte) {
	uri = originForm(uri)
	path, query, _ = bytes.Cut(uri, []byte("?"))
	return path, query
}

func originForm(uri []byte) []byte {
	if len(uri) > 0 && uri[0] == '/' {
		return uri
	}
	if i := bytes.Index(uri, []byte("://")); i > 0 {
		rest := uri[i+3:]
		if j := bytes.IndexAny(rest, "/?"); j >= 0 && rest[j] == '/' {
			return rest[j:]
		}
		return []byte("/")
	}
	return uri
}

// isAgent reports whether the target is the agent itself rather than a server of the user's.
func (t target) isAgent() bool { return t.port == wire.PortAgent }
