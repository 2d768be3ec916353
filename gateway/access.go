package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/url"
	"path"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/guest/wire"
	"cella.dev/cella/node"
)

// internalRoutes of the agent are for the host alone; from outside they do not exist, with any method.
var internalRoutes = map[string]bool{
	"/init": true, "/freeze": true, "/unfreeze": true, "/collapse": true,
	"/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
}

// checkAgentAccess decides about a call to the agent before a byte of it reaches the guest. The agent checks
// again, but what runs in a guest may have replaced it.
func checkAgentAccess(ctx *fasthttp.RequestCtx, sb node.Sandbox) error {
	raw, query := splitURI(ctx.Request.Header.RequestURI())
	route, err := url.PathUnescape(string(raw))
	if err != nil {
		return errorf(fasthttp.StatusBadRequest, "path: %v", err)
	}
	// The agent's mux cleans paths, so compare what it would see: /x/../init is /init.
	if internalRoutes[path.Clean("/"+route)] {
		return errorf(fasthttp.StatusNotFound, "no such path: %s", clip(route, 200))
	}
	if sb.AccessToken == "" || ctx.IsGet() && string(raw) == "/health" {
		return nil
	}
	token := ctx.Request.Header.Peek("X-Access-Token")
	if subtle.ConstantTimeCompare(token, []byte(sb.AccessToken)) == 1 {
		return nil
	}
	if len(token) == 0 && string(raw) == "/files" {
		if sig := readSignature(ctx, query); sig != nil {
			return sig.check(sb.AccessToken, time.Now())
		}
	}
	return errorf(fasthttp.StatusUnauthorized, "the sandbox's access token is missing or wrong: send it in the X-Access-Token header")
}

// signature is what a signed file URL claims.
type signature struct {
	value      string
	path, user string
	operation  string
	// expires is the query's text, which is part of what is signed; empty if there is no end.
	expires string
}

// readSignature returns nil if the URL carries none.
func readSignature(ctx *fasthttp.RequestCtx, query []byte) *signature {
	args, err := url.ParseQuery(string(query))
	if err != nil || args.Get("signature") == "" {
		return nil
	}
	operation := "read"
	if !ctx.IsGet() && !ctx.IsHead() {
		operation = "write"
	}
	return &signature{
		value: args.Get("signature"), path: args.Get("path"), user: args.Get("username"),
		operation: operation, expires: args.Get("signature_expiration"),
	}
}

// sign is the contract's v1 signature of a file operation with a sandbox's token.
func sign(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func (g *signature) matches(token string) bool {
	want := sign(g.path, g.operation, g.user, token, g.expires)
	return subtle.ConstantTimeCompare([]byte(g.value), []byte(want)) == 1
}

func (g *signature) check(token string, now time.Time) error {
	if !g.matches(token) {
		return errorf(fasthttp.StatusUnauthorized, "invalid signature")
	}
	if g.expires == "" {
		return nil
	}
	end, err := strconv.ParseInt(g.expires, 10, 64)
	if err != nil {
		return errorf(fasthttp.StatusBadRequest, "signature_expiration: must be a Unix time in seconds")
	}
	if now.Unix() > end {
		return errorf(fasthttp.StatusUnauthorized, "signature is already expired")
	}
	return nil
}

// signedTarget finds the sandbox of a signed file URL that names none, as SDKs make them when they are given
// one address for all sandboxes. Only its token can have made the signature, so try them all.
func (s *Server) signedTarget(ctx *fasthttp.RequestCtx) (target, bool) {
	raw, query := splitURI(ctx.Request.Header.RequestURI())
	if string(raw) != "/files" {
		return target{}, false
	}
	sig := readSignature(ctx, query)
	if sig == nil {
		return target{}, false
	}
	for _, sb := range s.node.List() {
		if sb.AccessToken != "" && sig.matches(sb.AccessToken) {
			return target{id: sb.ID, port: wire.PortAgent}, true
		}
	}
	return target{}, false
}
