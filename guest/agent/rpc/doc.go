// Package rpc serves the Connect protocol (https://connectrpc.com/docs/protocol) over net/http: unary,
// server-streaming and client-streaming calls, with JSON and protobuf payloads.
//
// It exists because the agent lives in every sandbox's memory: see docs/decisions. Messages are plain Go
// structs whose tags carry the protobuf field numbers.
package rpc
