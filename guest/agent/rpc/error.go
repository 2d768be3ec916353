package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Code is a Connect error code as it is written on the wire.
type Code string

// Connect's error codes.
const (
	Canceled           Code = "canceled"
	Unknown            Code = "unknown"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Aborted            Code = "aborted"
	Unimplemented      Code = "unimplemented"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	Unauthenticated    Code = "unauthenticated"
)

// httpStatus is the protocol's table from error code to HTTP status of a unary call.
var httpStatus = map[Code]int{
	Canceled:           499,
	Unknown:            http.StatusInternalServerError,
	InvalidArgument:    http.StatusBadRequest,
	DeadlineExceeded:   http.StatusGatewayTimeout,
	NotFound:           http.StatusNotFound,
	AlreadyExists:      http.StatusConflict,
	PermissionDenied:   http.StatusForbidden,
	ResourceExhausted:  http.StatusTooManyRequests,
	FailedPrecondition: http.StatusBadRequest,
	Aborted:            http.StatusConflict,
	Unimplemented:      http.StatusNotImplemented,
	Internal:           http.StatusInternalServerError,
	Unavailable:        http.StatusServiceUnavailable,
	Unauthenticated:    http.StatusUnauthorized,
}

// Error is a failure with a Connect code; any other error a method returns is sent as Unknown.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// wireError is Connect's JSON form of an error.
type wireError struct {
	Code    Code   `json:"code"`
	Message string `json:"message,omitempty"`
}

// toWire gives any error its Connect form. Context errors keep their meaning.
func toWire(err error) *wireError {
	var e *Error
	switch {
	case errors.As(err, &e):
		return &wireError{e.Code, e.Message}
	case errors.Is(err, context.DeadlineExceeded):
		return &wireError{DeadlineExceeded, err.Error()}
	case errors.Is(err, context.Canceled):
		return &wireError{Canceled, err.Error()}
	}
	return &wireError{Unknown, err.Error()}
}
