package gateway

import (
	"bufio"
	"bytes"
	"strconv"

	"github.com/valyala/fasthttp"
)

// hopByHop headers speak about one connection and are not passed on (RFC 9110 §7.6.1). Framing is written anew
// from what was parsed, so that the guest and the gateway can't disagree about where a request ends.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authorization": true,
	"Proxy-Authenticate": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Expect": true,
}

// secretHeaders are for the gateway alone: a guest must not see an API key.
var secretHeaders = map[string]bool{"X-Api-Key": true, "E2b-Traffic-Access-Token": true}

// writeRequestHead sends the client's request line and headers on. The path goes out byte for byte as it came
// in: servers tell /a%2Fb from /a/b.
func writeRequestHead(w *bufio.Writer, ctx *fasthttp.RequestCtx, t target, upgrade []byte) {
	h := &ctx.Request.Header
	w.Write(h.Method())
	w.WriteByte(' ')
	w.Write(originForm(h.RequestURI()))
	w.WriteString(" HTTP/1.1\r\n")
	named := connectionNames(h.Peek("Connection"))
	hosted := false
	_, fronted := ctx.Conn().(translated)
	forward := !t.isAgent() && !fronted
	for key, value := range h.All() {
		if hopByHop[string(key)] || secretHeaders[string(key)] || named[string(key)] {
			continue
		}
		if forward && bytes.HasPrefix(key, []byte("X-Forwarded-")) {
			continue
		}
		hosted = hosted || string(key) == "Host"
		writeHeader(w, key, value)
	}
	if !hosted {
		w.WriteString("Host: sandbox\r\n")
	}
	if forward {
		writeForwarded(w, ctx)
	}
	if upgrade != nil {
		w.WriteString("Connection: Upgrade\r\n")
		writeHeader(w, []byte("Upgrade"), upgrade)
	}
	writeFraming(w, ctx)
	w.WriteString("\r\n")
}

func writeHeader(w *bufio.Writer, key, value []byte) {
	w.Write(key)
	w.WriteString(": ")
	w.Write(value)
	w.WriteString("\r\n")
}

// writeForwarded tells a user's server who asked. The gateway is the edge, so what a client claimed is dropped.
func writeForwarded(w *bufio.Writer, ctx *fasthttp.RequestCtx) {
	w.WriteString("X-Forwarded-For: ")
	w.WriteString(ctx.RemoteIP().String())
	w.WriteString("\r\nX-Forwarded-Host: ")
	w.Write(ctx.Request.Header.Host())
	w.WriteString("\r\nX-Forwarded-Proto: ")
	if ctx.IsTLS() {
		w.WriteString("https\r\n")
	} else {
		w.WriteString("http\r\n")
	}
}

func writeFraming(w *bufio.Writer, ctx *fasthttp.RequestCtx) {
	switch n := ctx.Request.Header.ContentLength(); {
	case n > 0, n == 0 && (ctx.IsPost() || ctx.IsPut() || ctx.IsPatch()):
		w.WriteString("Content-Length: ")
		w.WriteString(strconv.Itoa(n))
		w.WriteString("\r\n")
	case n == -1:
		w.WriteString("Transfer-Encoding: chunked\r\n")
	}
}

// connectionNames returns the headers that a Connection header declares to be hop-by-hop.
func connectionNames(value []byte) map[string]bool {
	if len(value) == 0 || bytes.EqualFold(value, []byte("keep-alive")) {
		return nil
	}
	names := map[string]bool{}
	for name := range bytes.SplitSeq(value, []byte(",")) {
		key := fasthttp.AppendNormalizedHeaderKeyBytes(nil, bytes.TrimSpace(name))
		// A client must not be able to strip what routes and protects its own request.
		if s := string(key); s != "X-Access-Token" && s != "Host" {
			names[s] = true
		}
	}
	return names
}

// upgradeTo returns the protocol the client wants to change to, or nil.
func upgradeTo(ctx *fasthttp.RequestCtx) []byte {
	if !ctx.Request.Header.ConnectionUpgrade() || hasBody(ctx) {
		return nil
	}
	if proto := ctx.Request.Header.Peek("Upgrade"); len(proto) > 0 {
		return proto
	}
	return nil
}

// readResponseHead reads the final response head into h, passing over interim ones, of which a hostile guest
// may send any number.
func readResponseHead(r *bufio.Reader, h *fasthttp.ResponseHeader) error {
	for range maxInterim {
		if err := h.Read(r); err != nil {
			return err
		}
		if code := h.StatusCode(); code >= 200 || code == fasthttp.StatusSwitchingProtocols {
			return nil
		}
	}
	return errTooManyInterim
}

// maxInterim bounds 1xx responses before the real one.
const maxInterim = 8

// asHTTP11 rewrites the head of an HTTP/1.0 answer, as python's http.server gives them: passed on as it is, the
// client's connection would have to close after it.
func asHTTP11(h *fasthttp.ResponseHeader) {
	if h.IsHTTP11() {
		return
	}
	var as11 fasthttp.ResponseHeader
	as11.SetNoDefaultContentType(true)
	as11.SetStatusCode(h.StatusCode())
	for key, value := range h.All() {
		switch string(key) {
		case "Content-Length", "Transfer-Encoding", "Connection":
		default:
			as11.AddBytesKV(key, value)
		}
	}
	as11.SetContentLength(h.ContentLength())
	as11.CopyTo(h)
}

// stripHopByHop removes what speaks about the connection to the guest, and reports whether that may be used again.
func stripHopByHop(h *fasthttp.ResponseHeader) (reusable bool) {
	reusable = !h.ConnectionClose()
	for name := range connectionNames(h.Peek("Connection")) {
		if name != "Upgrade" && name != "Close" && name != "Content-Length" {
			h.Del(name)
		}
	}
	h.ResetConnectionClose()
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Te"} {
		h.Del(name)
	}
	h.SetNoDefaultContentType(true)
	asHTTP11(h)
	return reusable
}
