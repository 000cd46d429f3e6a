# shellcheck shell=bash
# Functions of all scripts: messages, search for programs, installation of Debian packages.

# shellcheck disable=SC2034
readonly TEST_USER=${HYPERRUNTIME_TEST_USER:-hyperruntime-test}

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# has_apt: whether this is Debian or a derivative, whose package names are known.
has_apt() { command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; }

# find_program NAME: whether a program is on PATH or in a directory of the engines' helpers.
find_program() {
    local directory
    command -v "$1" >/dev/null && return
    for directory in /usr/local/sbin /usr/sbin /sbin /usr/lib/podman /usr/libexec/podman /usr/local/libexec/podman; do
        [ -x "$directory/$1" ] && return
    done
    return 1
}

apt_run() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >&2
}

# install_packages NAME...: install Debian packages as root; update the package lists only if the old ones fail.
install_packages() {
    say "installing Debian packages: $*"
    if apt-get -s install --no-install-recommends "$@" >/dev/null 2>&1 \
        && apt_run install -y --no-install-recommends "$@"; then
        return
    fi
    apt_run update || say "apt-get update failed; trying with the old package lists"
    apt_run install -y --no-install-recommends "$@" \
        || die "apt-get could not install: $*" "install them, then run this again."
}

# has_subids USER: whether the user has ranges of subordinate ids, in the files or by NSS.
has_subids() {
    local kind
    for kind in subuid subgid; do
        grep -qsE "^($1|$(id -u "$1")):" "/etc/$kind" && continue
        command -v getsubids >/dev/null || return 1
        if [ "$kind" = subgid ]; then getsubids -g "$1"; else getsubids "$1"; fi >/dev/null 2>&1 || return 1
    done
}
