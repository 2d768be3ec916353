package gateway

import (
	"errors"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/gateway/keys"
)

// authenticate returns the team of the presented API key.
func (s *Server) authenticate(ctx *fasthttp.RequestCtx) (string, error) {
	secret := ctx.Request.Header.Peek("X-API-Key")
	if len(secret) == 0 {
		return "", errorf(fasthttp.StatusUnauthorized, "no API key: send it in the X-API-Key header")
	}
	key, err := s.keys.Lookup(string(secret))
	if errors.Is(err, keys.ErrUnknown) {
		return "", errorf(fasthttp.StatusUnauthorized, "the API key is unknown or was deleted; `cella keys create` makes one")
	}
	if err != nil {
		return "", err
	}
	return key.Team, nil
}
