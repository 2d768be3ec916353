package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/valyala/fasthttp"
)

// maxControlBody is the most a control-plane call may send.
const maxControlBody = 1 << 20

// decode reads the JSON body into v. An absent body leaves v as it is: SDKs send none where every field is
// optional. It never looks at Content-Length, because over HTTP/1.1 the SDKs send chunked bodies.
func decode(ctx *fasthttp.RequestCtx, v any) ([]byte, error) {
	body, err := readBody(ctx)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return body, nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return nil, jsonError(err)
	}
	return body, nil
}

// readBody reads the whole body, up to maxControlBody.
func readBody(ctx *fasthttp.RequestCtx) ([]byte, error) {
	stream := ctx.Request.BodyStream()
	if stream == nil {
		return ctx.Request.Body(), nil
	}
	body, err := io.ReadAll(io.LimitReader(stream, maxControlBody+1))
	switch {
	case len(body) > maxControlBody:
		return nil, &apiError{Code: fasthttp.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("the body is larger than %d bytes", maxControlBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &apiError{Code: fasthttp.StatusRequestTimeout, Message: "the body did not arrive in time"}
	case err != nil:
		return nil, &apiError{Code: fasthttp.StatusBadRequest, Message: "read body: " + clip(err.Error(), 200)}
	}
	ctx.Request.CloseBodyStream() // it is at its end: nothing is left to settle
	return body, nil
}

// jsonError says in the API's words what is wrong with a body, naming the field where there is one.
func jsonError(err error) *apiError {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		if wrongType.Field == "" {
			return errorf(fasthttp.StatusBadRequest, "the body must be a JSON object, not %s", wrongType.Value)
		}
		return errorf(fasthttp.StatusBadRequest, "%s: must be %s, not %s", wrongType.Field, jsonType(wrongType), clip(wrongType.Value, 60))
	}
	return errorf(fasthttp.StatusBadRequest, "the body is not valid JSON: %s", clip(err.Error(), 200))
}

func jsonType(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "int", "int64":
		return "a whole number"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	case "map", "struct":
		return "an object"
	case "slice":
		return "a list"
	default:
		return e.Type.String()
	}
}

// seconds turns a field of whole seconds into a duration, refusing what is out of [lowest, most].
func seconds(field string, n int64, lowest int64, most time.Duration) (time.Duration, error) {
	if n < lowest || n > int64(most/time.Second) {
		return 0, errorf(fasthttp.StatusBadRequest, "%s: must be from %d to %d seconds, not %d", field, lowest, int64(most/time.Second), n)
	}
	return time.Duration(n) * time.Second, nil
}
