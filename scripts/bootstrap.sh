#!/usr/bin/env bash
# Makes sure that there is a Go that can build cella, and prints its bin directory. Called before anything is built.
# A Go from 1.21 on fetches the version that go.mod asks for by itself. Debian 12 has an older one, which still can
# download a newer toolchain: through the module proxy, checksum and all, as the module golang.org/toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${CELLA_CACHE:-$HOME/.cache/cella}
say() { echo "bootstrap: $*" >&2; }

# at_least GO MINOR: does this go command have version 1.MINOR or newer?
at_least() {
  local v
  v=$("$1" env GOVERSION 2>/dev/null) || return 1
  v=${v#go1.}
  [ "${v%%[!0-9]*}" -ge "$2" ] 2>/dev/null
}

apt_install() {
  [ "$(id -u)" = 0 ] || { say "$* is missing, and installing it needs root: run this with sudo"; exit 1; }
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1 && return
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

for go in "$(command -v go || true)" /usr/local/go/bin/go "$cache/go/bin/go"; do
  if [ -x "$go" ] && at_least "$go" 21; then
    dirname "$go"
    exit 0
  fi
done

old=$(command -v go || true)
if [ -z "$old" ]; then
  apt_install golang-go ca-certificates
  old=$(command -v go)
  if at_least "$old" 21; then
    dirname "$old"
    exit 0
  fi
fi
version=$(awk '$1 == "go" { print $2 }' go.mod)
say "fetching Go $version through the module proxy"
mkdir -p "$cache"
empty=$(mktemp -d "$cache/go.new-XXXXXX")
trap 'rm -rf "$empty"' EXIT
cd "$empty" # Outside any module: the old go would not understand this one's go.mod.
dir=$(GOPATH=$empty/path GOFLAGS=-modcacherw "$old" mod download -json "golang.org/toolchain@v0.0.1-go$version.linux-amd64" |
  sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
[ -d "$dir" ] || { say "the module proxy did not give Go $version"; exit 1; }
# A module's files come without the permission to run them.
chmod -R u+w "$dir"
chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/*
rm -rf "$cache/go"
mv "$dir" "$cache/go"
echo "$cache/go/bin"
