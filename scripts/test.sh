#!/usr/bin/env bash
# Runs every test and ends with one line: N passed, N failed[, N skipped]. The exit code is 0 only if none failed.
# Needs make setup. Output of each part is kept in out/.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out
status=0
go test -v ./... 2>&1 | tee out/unit.log | grep --line-buffered -E '^(ok|FAIL|panic|--- FAIL|\?)' || true
[ "${PIPESTATUS[0]}" -eq 0 ] || { status=1; grep -B30 -E '^\s*--- FAIL|^panic' out/unit.log | tail -n 200; }
scripts/e2e-agent.sh || status=1
scripts/e2e.sh || status=1
# A part that failed without a failed test (it did not compile, or crashed) counts as one failure.
for log in out/unit.log out/agent.log out/e2e.log out/sdk.log; do
  [ -f "$log" ] || { echo "$log is missing: that part did not run"; status=1; }
done
count() { cat out/unit.log out/agent.log out/e2e.log out/sdk.log 2>/dev/null | grep -cE "^\s*--- $1" || true; }
passed=$(count PASS) failed=$(count FAIL) skipped=$(count SKIP)
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
if [ "$skipped" -gt 0 ]; then
  grep -hA1 -E '^\s*--- SKIP' out/*.log
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
