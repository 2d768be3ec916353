#!/usr/bin/env bash
# Measures cella and its peers: on this machine if its KVM can run stock guests, in the lab elsewhere. Writes
# reports/out/latest. Usage: bench.sh [FLAGS OF cella bench]. Needs make setup.
set -euo pipefail
cd "$(dirname "$0")/.."
out=reports/out/latest
# Go does not stamp a binary that is built in a linked worktree.
CELLA_COMMIT=$(git rev-parse HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || CELLA_COMMIT+=-dirty
export CELLA_COMMIT
mkdir -p "$out"
if bin/cella doctor >/dev/null 2>&1; then
  exec bin/cella bench --serve --out "$out" "$@"
fi
echo "this machine's KVM cannot run stock guests (cella doctor); measuring in the lab"
exec bin/cella lab run --timeout 40m --env CELLA_COMMIT="$CELLA_COMMIT" --out /tmp/bench:"$out" -- \
  cella bench --serve --out /tmp/bench "$@"
