#!/usr/bin/env bash
# The bare agent on this machine, driven by each pinned E2B SDK. Needs root and make setup.
set -euo pipefail
cd "$(dirname "$0")/.."
modules=${CELLA_CACHE:-$HOME/.cache/cella}/sdk/node_modules
[ -d "$modules" ] || { echo "no $modules: run make setup"; exit 1; }
node=${CELLA_CACHE:-$HOME/.cache/cella}/node/node
[ -x "$node" ] || node=node
# Node looks for packages beside the files that import them.
rm -rf out/agent && mkdir -p out/agent
cp gateway/e2btest/agent/*.mjs out/agent/
ln -s "$modules" out/agent/node_modules
: > out/agent.log
status=0
for sdk in e2b e2b-2.45; do
  CELLA_AGENT=$PWD/bin/cella-agent E2B_SDK=$sdk timeout 300 "$node" --test --test-reporter=tap --test-timeout=120000 out/agent/*.test.mjs \
    > "out/agent-$sdk.tap" 2>&1 || { status=1; grep -A20 '^not ok' "out/agent-$sdk.tap" || tail -n 20 "out/agent-$sdk.tap"; }
  sed -nE "s/^ok [0-9]+ - (.*)/--- PASS: $sdk: \1/p; s/^not ok [0-9]+ - (.*)/--- FAIL: $sdk: \1/p" "out/agent-$sdk.tap" | tee -a out/agent.log
done
exit $status
