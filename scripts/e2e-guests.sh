#!/usr/bin/env bash
# Runs the compiled tests beside this file, which need a KVM that runs stock guests. e2e.sh calls it.
set -uo pipefail
cd "$(dirname "$0")"
: "${CELLA_ASSETS:=${CELLA_CACHE:-$HOME/.cache/cella}}"
export CELLA_E2E_AGENT=$PWD/cella-agent CELLA_E2E_MUTE=$PWD/mute CELLA_E2E_CELLA=$PWD/cella
CELLA_E2E_STATE=$(mktemp -d /var/lib/cella/e2e-XXXXXX)
export CELLA_E2E_STATE
trap 'rm -rf "$CELLA_E2E_STATE"' EXIT
[ -n "${CELLA_GUEST_KERNEL:-}" ] || CELLA_GUEST_KERNEL=$(ls "$CELLA_ASSETS"/vmlinux "$CELLA_ASSETS"/kernel/vmlinux 2>/dev/null | head -n 1)
[ -n "${CELLA_GUEST_MODULES:-}" ] || CELLA_GUEST_MODULES=$CELLA_ASSETS/modules
export CELLA_GUEST_KERNEL CELLA_GUEST_MODULES
status=0
for test in vmm linuxdriver node; do
  ./$test.test -test.v -test.timeout 20m || status=1
done
exit $status
