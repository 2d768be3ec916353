// Package rpc serves the Connect protocol (https://connectrpc.com/docs/protocol) over net/http: unary,
// server-streaming and client-streaming calls, with JSON and protobuf payloads.
//
// It exists because the agent lives in every sandbox's memory: this package and its codec add about
// 0.1 MB to the binary where connect-go and the protobuf runtime add 3 MB and their start-up work (see
// docs/decisions/agent-rpc.md). Messages are plain Go structs whose tags carry the protobuf field numbers.
package rpc
