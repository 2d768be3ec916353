package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// refusal is a data-plane answer of the gateway's own about a sandbox. SDKs tell by it whether one is gone.
type refusal struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

func notFound(t target) refusal {
	return refusal{SandboxID: t.id, Message: "The sandbox was not found", Code: fasthttp.StatusBadGateway}
}

func portClosed(t target) refusal {
	return refusal{SandboxID: t.id, Message: "The sandbox is running but port is not open", Port: t.port, Code: fasthttp.StatusBadGateway}
}

// refuse answers a request that did not get an answer from the sandbox.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, t target, err error) {
	ctx.Response.Reset()
	allowAnyOrigin(ctx)
	var e *apiError
	switch {
	case errors.As(err, &e):
		writeError(ctx, e)
		return
	case errors.Is(err, node.ErrNotFound):
		writeRefusal(ctx, notFound(t))
	case errors.Is(err, node.ErrPortClosed):
		writeRefusal(ctx, portClosed(t))
	default:
		s.log.Debug("no answer from sandbox", "sandbox", t.id, "port", t.port, "err", err)
		writeRefusal(ctx, refusal{SandboxID: t.id, Port: t.port, Code: fasthttp.StatusBadGateway,
			Message: "The sandbox gave no usable answer"})
	}
	if !settleBody(ctx) {
		replyThenLinger(ctx)
	}
}

func writeRefusal(ctx *fasthttp.RequestCtx, r refusal) {
	ctx.SetStatusCode(r.Code)
	if !wantsPage(ctx) {
		body, _ := json.Marshal(r) // strings and numbers always marshal
		ctx.SetContentType("application/json")
		ctx.Response.SetBodyRaw(body)
		return
	}
	ctx.SetContentType("text/html; charset=utf-8")
	ctx.SetBodyString(fmt.Sprintf(refusalPage, html.EscapeString(r.Message), html.EscapeString(r.SandboxID), html.EscapeString(r.Message)))
}

const refusalPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:20vh auto;padding:0 1rem}code{background:#8882;padding:.1em .3em}</style>
</head><body><h1>Sandbox <code>%s</code></h1><p>%s.</p></body></html>
`

// wantsPage reports whether a person looks at the answer in a browser: not a program, nor a page's own fetch.
func wantsPage(ctx *fasthttp.RequestCtx) bool {
	h := &ctx.Request.Header
	if !bytes.HasPrefix(h.UserAgent(), []byte("Mozilla/")) {
		return false
	}
	if bytes.Contains(h.Peek("Accept"), []byte("application/json")) {
		return false
	}
	mode := h.Peek("Sec-Fetch-Mode")
	return len(mode) == 0 || string(mode) == "navigate"
}

// refuseTarget answers an address that can't be one of a sandbox, in plain text as the contract has it.
func refuseTarget(ctx *fasthttp.RequestCtx, err error) {
	allowAnyOrigin(ctx)
	e := asAPIError(err)
	ctx.SetStatusCode(e.Code)
	ctx.SetContentType("text/plain; charset=utf-8")
	ctx.SetBodyString(e.Message + "\n")
	if !settleBody(ctx) {
		replyThenLinger(ctx)
	}
}
