# Sourced by the other scripts, not run: what they need from the machine, and where they keep it.
# shellcheck shell=bash

lancefs_cache=${XDG_CACHE_HOME:-~/.cache}/lancefs
# One target directory outside of the clone serves the demo, the tests and the next fresh clone.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$lancefs_cache/target}

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

heading() { printf '\n== %s\n' "$*"; }

as_root() {
    if ((EUID == 0)); then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "neither root nor sudo here; have root run: $*"
    fi
}

# require_packages PACKAGE…: installs Debian packages.
require_packages() {
    command -v apt-get >/dev/null || die "not a Debian system; install what these packages hold: $*"
    heading "installing $*"
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"
}

require_cargo() {
    command -v cargo >/dev/null || die "no cargo in PATH; install a Rust toolchain (https://rustup.rs)"
}

# Each package is asked for only if what it is there for is missing.
require_build_and_fuse_packages() {
    local missing=()
    # protobuf-compiler merely recommends the well-known .proto files, which lance's own import.
    command -v protoc >/dev/null || missing+=(protobuf-compiler libprotobuf-dev)
    command -v fusermount3 >/dev/null || missing+=(fuse3)
    command -v cc >/dev/null || missing+=(build-essential)
    ((${#missing[@]} == 0)) || require_packages "${missing[@]}"
}

require_fuse_device() {
    [[ -e /dev/fuse ]] || as_root modprobe fuse || true
    [[ -e /dev/fuse ]] || die "no /dev/fuse: the kernel has no fuse module, or this is a container" \
        "that was started without '--device /dev/fuse --cap-add SYS_ADMIN'"
    [[ -r /dev/fuse && -w /dev/fuse ]] ||
        die "$(id -un) may not open /dev/fuse; have root run: chmod 666 /dev/fuse"
}
