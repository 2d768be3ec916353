#!/usr/bin/env bash
# The bare agent on this machine, driven by each pinned E2B SDK. Needs root and make setup.
#
# The agent runs as root and does what it is told, so all of this happens in a mount namespace where the machine is
# read-only but for the tests' own home and out/. The account "user" exists only there.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != in-namespace ]; then
  home=$(mktemp -d)
  trap 'rm -rf "$home"' EXIT
  unshare --mount --propagation private "$0" in-namespace "$home"
  exit
fi
home=$2
cache=${CELLA_CACHE:-$HOME/.cache/cella}
[ -d "$cache/sdk/node_modules" ] || { echo "no $cache/sdk/node_modules: run make setup"; exit 1; }
node=$cache/node/node
[ -x "$node" ] || node=node

rm -rf out/agent && mkdir -p out/agent/etc
cp gateway/e2btest/agent/*.mjs out/agent/
ln -s "$cache/sdk/node_modules" out/agent/node_modules # node looks for packages beside the importing file
id=54321
{ grep -v '^user:' /etc/passwd; echo "user:x:$id:$id::$home:/bin/bash"; } > out/agent/etc/passwd
{ grep -v '^user:' /etc/group; echo "user:x:$id:"; } > out/agent/etc/group
chown $id:$id "$home"
mount --bind out/agent/etc/passwd /etc/passwd
mount --bind out/agent/etc/group /etc/group
mount --bind "$home" "$home"
mount --bind out out
mount -o remount,bind,ro /
cd "$PWD" # into the new mounts
if touch /root/.cella-e2e-agent 2>/dev/null; then
  rm /root/.cella-e2e-agent
  echo "/root is still writable in the tests' namespace: not running an agent in it"
  exit 1
fi

: > out/agent.log
status=0
for sdk in e2b e2b-2.45; do
  CELLA_AGENT=$PWD/bin/cella-agent E2B_SDK=$sdk timeout 300 "$node" --test --test-reporter=tap --test-timeout=120000 out/agent/*.test.mjs \
    > "out/agent-$sdk.tap" 2>&1 || { status=1; grep -A8 '^not ok' "out/agent-$sdk.tap" | head -n 100 || tail -n 20 "out/agent-$sdk.tap"; }
  sed -nE "s/^ok [0-9]+ - (.*)/--- PASS: $sdk: \1/p; s/^not ok [0-9]+ - (.*)/--- FAIL: $sdk: \1/p" "out/agent-$sdk.tap" | tee -a out/agent.log
done
exit $status
