#!/usr/bin/env bash
# Integration tests with real guests: on this machine if its KVM can run them, in the lab elsewhere.
# Usage: e2e.sh [guests|sdk]   (both by default). Needs make setup.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out/e2e
part=${1:-all}

native() { bin/cella doctor >/dev/null 2>&1; }

# Go tests that boot guests, compiled here and run there.
guests() {
  for pkg in vmm vmm/virtio/linuxdriver node; do
    go test -c -tags e2e -o "out/e2e/$(basename "$pkg").test" "./$pkg"
  done
  go build -trimpath -o out/e2e/mute ./lab/mute
  cp scripts/e2e-guests.sh bin/cella bin/cella-agent out/e2e/
  if native; then
    out/e2e/e2e-guests.sh
  else
    bin/cella lab run --clock real --timeout 25m --in out/e2e:/in/e2e -- /in/e2e/e2e-guests.sh
  fi 2>&1 | tee out/e2e.log | grep --line-buffered -E '^(=== RUN|\s*--- |ok|FAIL|PASS|panic|cella)'
  return "${PIPESTATUS[0]}"
}

# docs/quickstart/hello.mjs with each pinned SDK, from outside, against cella up.
sdk() {
  : > out/sdk.log
  local port=$((20000 + RANDOM % 20000)) server
  if native; then
    bin/cella up --json --listen "127.0.0.1:$port" > out/up.json 2> out/up.log &
  else
    bin/cella lab run --timeout 20m --forward "$port:3000" -- cella up --json --listen 0.0.0.0:3000 > out/up.json 2> out/up.log &
  fi
  server=$!
  trap 'kill -INT $server 2>/dev/null; wait $server 2>/dev/null || true' RETURN
  for _ in $(seq 600); do
    grep -q apiKey out/up.json && break
    kill -0 $server 2>/dev/null || break
    sleep 0.5
  done
  grep -q apiKey out/up.json || { echo "--- FAIL: cella up did not get ready" | tee -a out/sdk.log; tail -n 30 out/up.log; return 1; }
  export E2B_API_KEY E2B_API_URL="http://127.0.0.1:$port" E2B_SANDBOX_URL="http://127.0.0.1:$port"
  E2B_API_KEY=$(grep -oE 'e2b_[0-9a-f]+' out/up.json)
  # A copy that finds the SDKs which set-up fetched, run by the node which set-up found or fetched.
  local cache=${CELLA_CACHE:-$HOME/.cache/cella} failed=0 name
  ln -sfn "$cache/sdk/node_modules" out/node_modules
  cp docs/quickstart/hello.mjs out/hello.mjs
  for name in e2b e2b-2.45; do
    if E2B_SDK=$name timeout 300 "$cache/node/node" out/hello.mjs 2>&1 | tee out/sdk-"$name".log; then
      echo "--- PASS: hello.mjs with $name" | tee -a out/sdk.log
    else
      echo "--- FAIL: hello.mjs with $name" | tee -a out/sdk.log
      failed=1
    fi
  done
  return $failed
}

status=0
[ "$part" = sdk ] || guests || status=1
[ "$part" = guests ] || sdk || status=1
exit $status
