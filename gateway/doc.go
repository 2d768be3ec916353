// Package gateway speaks the E2B API over one listener: the control plane (REST) and the data plane (a
// reverse proxy into sandboxes, which are reached through vsock and never by network).
package gateway
