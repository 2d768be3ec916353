# cella: make bench and make test set up whatever is missing, on a Debian 12 machine, as root.
# CELLA_CACHE (default ~/.cache/cella) holds everything that is fetched or built outside this checkout.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

# A go that can build cella: the one on PATH, or one that bootstrap.sh fetches.
export PATH := $(shell scripts/bootstrap.sh):$(PATH)
export CGO_ENABLED := 0
GO_LDFLAGS := -s -w
FUZZTIME ?= 30s
BENCH_ARGS ?=

.PHONY: help setup build unit e2e e2e-sdk e2e-agent test bench bench-smoke bench-compare generate lint fuzz lab-shell clean

help:
	@grep -hE '^## ' Makefile | sed 's/^## //'

## setup: packages, guest kernel, base root file system, lab image, npm packages; cached, cheap to repeat
setup: build
	bin/cella setup

## build: bin/cella and bin/cella-agent
build:
	go build -trimpath -o bin/cella ./cmd/cella
	go build -trimpath -tags nethttpomithttp2 -ldflags "$(GO_LDFLAGS)" -o bin/cella-agent ./cmd/cella-agent

## unit: go test on this machine, nano guests included
unit: build
	go test ./...

## e2e: with real guests, natively where this machine's KVM can run them, in the lab elsewhere
e2e: setup
	scripts/e2e.sh

## e2e-sdk: docs/quickstart/hello.mjs with each pinned SDK against cella serve
e2e-sdk: setup
	scripts/e2e.sh sdk

## e2e-agent: the bare agent on this machine, with each pinned SDK
e2e-agent: setup
	scripts/e2e-agent.sh

## test: every test; ends with one line "N passed, N failed"
test: setup
	scripts/test.sh

## bench: every scenario and peer; prints the table, writes reports/out/latest
bench: setup
	scripts/bench.sh $(BENCH_ARGS)

## bench-smoke: the same with few samples, under five minutes
bench-smoke: setup
	scripts/bench.sh --smoke $(BENCH_ARGS)

## generate: everything generated that is committed
generate:
	go generate ./...

## lint: formatting, vet, staticcheck
lint:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-clean:"; gofmt -l .; exit 1; }
	go vet ./...
	go vet -tags e2e,lab ./...
	go tool staticcheck ./...

## fuzz: each fuzz target for FUZZTIME
fuzz:
	scripts/fuzz.sh $(FUZZTIME)

## lab-shell: a shell in the emulated KVM host
lab-shell: setup
	bin/cella lab shell

clean:
	rm -rf bin out
