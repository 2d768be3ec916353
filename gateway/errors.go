package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"cella.dev/cella/node"
)

// apiError is an answer that is not a success. Its JSON is the contract's Error schema: SDKs look at the code
// in the body rather than at the status.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	// ErrorCode is one of the contract's open set of machine-readable reasons, or empty.
	ErrorCode string `json:"error_code,omitempty"`

	// retryAfter in seconds becomes a Retry-After header if it is positive.
	retryAfter int
}

func (e *apiError) Error() string { return strconv.Itoa(e.Code) + ": " + e.Message }

func errorf(code int, format string, args ...any) *apiError {
	return &apiError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// asAPIError is the one place that turns the node's errors into answers.
func asAPIError(err error) *apiError {
	var e *apiError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, node.ErrNotFound), errors.Is(err, node.ErrTemplateNotFound):
		return errorf(fasthttp.StatusNotFound, "%v", err)
	case errors.Is(err, node.ErrPolicy):
		return errorf(fasthttp.StatusBadRequest, "%v", err)
	case errors.Is(err, node.ErrNoNetwork):
		return errorf(fasthttp.StatusNotImplemented, "network: not offered by this server: %v", err)
	case errors.Is(err, node.ErrConflict):
		return errorf(fasthttp.StatusConflict, "%v", err)
	case errors.Is(err, node.ErrCapacity):
		return &apiError{Code: fasthttp.StatusServiceUnavailable, Message: err.Error(),
			ErrorCode: "sandbox_capacity_unavailable", retryAfter: 1}
	default:
		return &apiError{Code: fasthttp.StatusInternalServerError, Message: err.Error(),
			ErrorCode: "internal_server_error"}
	}
}

// writeError answers with e, and sees to what the client may still be sending.
func writeError(ctx *fasthttp.RequestCtx, e *apiError) {
	if e.retryAfter > 0 {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	writeJSON(ctx, e.Code, e)
	if !settleBody(ctx) {
		replyThenLinger(ctx)
	}
}

// writeJSON answers with v. Marshalling can't fail for the types the gateway passes.
func writeJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(body)
}
