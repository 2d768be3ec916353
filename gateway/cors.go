package gateway

import "github.com/valyala/fasthttp"

const exposedHeaders = "X-Next-Token, X-Total-Running, Server-Timing, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After"

// allowAnyOrigin lets browsers read the answer. It is set on errors too: a page that can't read a 502 reports
// a CORS failure instead of the reason.
func allowAnyOrigin(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
}

// isPreflight reports whether the request only asks what a page may do.
func isPreflight(ctx *fasthttp.RequestCtx) bool {
	return ctx.IsOptions() && len(ctx.Request.Header.Peek("Access-Control-Request-Method")) > 0
}

// answerPreflight allows everything: what protects the API is its keys and tokens, which a browser never adds
// by itself. Preflights carry neither these nor the sandbox headers, so they are answered without asking for any.
func answerPreflight(ctx *fasthttp.RequestCtx) {
	allowAnyOrigin(ctx)
	h := &ctx.Response.Header
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	if asked := ctx.Request.Header.Peek("Access-Control-Request-Headers"); len(asked) > 0 {
		h.SetBytesV("Access-Control-Allow-Headers", asked)
		h.Set("Vary", "Access-Control-Request-Headers")
	}
	h.Set("Access-Control-Max-Age", "7200")
	ctx.SetStatusCode(fasthttp.StatusNoContent)
}
