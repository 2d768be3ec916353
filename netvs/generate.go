package netvs

// The objects are committed: building cella needs no clang. `make generate` (Debian: clang, llvm, libbpf-dev) makes
// them again.
//go:generate go tool bpf2go -go-package netvs -target amd64 -cc clang -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type sandbox -type counters -type prefix -type rule -type rules -type pin -type event tap bpf/tap.c
