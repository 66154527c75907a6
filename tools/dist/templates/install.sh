#!/bin/sh
# Installs the command `comity` @VERSION@, its manual and its completions. `sh install.sh --help` says more.
set -eu

version='@VERSION@'
from='@URL@'
prefix="${HOME:-/usr/local}/.local"

help() {
    cat <<'TEXT'
usage: sh install.sh [--prefix DIR] [--from URL]
  --prefix DIR  where bin/comity and share/ go (~/.local)
  --from URL    folder with the archives and SHA256SUMS, such as file:///media/comity
An archive whose checksum is not that of SHA256SUMS is not installed.
TEXT
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case "$1" in
    --prefix | --from)
        [ $# -gt 1 ] || fail "$1 needs a word after it"
        if [ "$1" = --prefix ]; then prefix=$2; else from=$2; fi
        shift 2
        ;;
    -h | --help)
        help
        exit 0
        ;;
    *) fail "$1 is no option; see sh install.sh --help" ;;
    esac
done

machine=$(uname -m)
case "$(uname -s) $machine" in
'Darwin arm64') target=aarch64-apple-darwin ;;
'Linux x86_64' | 'Linux aarch64')
    libc=gnu
    for loader in /lib/ld-musl-*.so.1; do
        if [ -e "$loader" ] && ! getconf GNU_LIBC_VERSION >/dev/null 2>&1; then libc=musl; fi
    done
    target=$machine-unknown-linux-$libc
    ;;
*) fail "there is no archive for $(uname -s) on $machine: build from source with cargo" ;;
esac

work=$(mktemp -d) || fail 'no folder can be made for the download: free some space, or set TMPDIR to a folder elsewhere'
new=
trap 'rm -rf "$work" ${new:+"$new"}' EXIT
trap 'exit 1' HUP INT TERM

fetch() {
    if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --show-error --location --output "$work/$1" "$from/$1"
    elif command -v wget >/dev/null 2>&1; then
        wget --quiet --output-document="$work/$1" "$from/$1"
    else
        fail 'neither curl nor wget is installed'
    fi || fail "cannot download $from/$1 to $work: nothing was installed. Is the address right, and is there space? TMPDIR names another folder"
}

archive=comity-$version-$target.tar.gz
fetch SHA256SUMS
fetch "$archive"
# One line, so that a checksum of another file proves nothing.
(cd "$work" && grep "[ *]$archive\$" SHA256SUMS >sum) || fail "SHA256SUMS has no $archive"
if command -v sha256sum >/dev/null 2>&1; then check='sha256sum'; else check='shasum -a 256'; fi
(cd "$work" && $check -c sum >/dev/null 2>&1) ||
    fail "the checksum of $archive is not that of SHA256SUMS: nothing was installed. Download it again, from $from"

# A line for each file would hide the words after them.
said=$(tar -xzf "$work/$archive" -C "$work" 2>&1) ||
    fail "cannot unpack $archive in $work: nothing was installed. TMPDIR names another folder. $(echo "$said" | head -n 1)"
unwritten="cannot write to $prefix: comity was not installed. Free some space, or name another folder by --prefix"
mkdir -p "$prefix/bin" && prefix=$(cd "$prefix" && pwd) || fail "$unwritten"
# First the new program beside the old one, then its name: a running comity goes on, and one that does not run here takes nobody's place.
new=$prefix/bin/.comity.$$
cp "$work/${archive%.tar.gz}/bin/comity" "$new" && cp -R "$work/${archive%.tar.gz}/share" "$prefix/" || fail "$unwritten"
"$new" --version || fail "comity was not installed: the program of $archive does not run on this machine"
mv -f "$new" "$prefix/bin/comity" || fail "$unwritten"
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "add it to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
