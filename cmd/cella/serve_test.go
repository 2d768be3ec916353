package main

import (
	"net"
	"testing"
)

func TestServerURLCanBeConnectedTo(t *testing.T) {
	for _, tt := range []struct{ addr, want string }{
		{"127.0.0.1:3000", "http://127.0.0.1:3000"},
		{"0.0.0.0:3000", "http://127.0.0.1:3000"},
		{"[::]:3000", "http://127.0.0.1:3000"},
		{"[::1]:3000", "http://[::1]:3000"},
		{"192.0.2.7:80", "http://192.0.2.7:80"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tt.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := serverURL(addr); got != tt.want {
			t.Errorf("serverURL(%s) = %s, want %s", tt.addr, got, tt.want)
		}
	}
}
