# shellcheck shell=bash
# A real registry for the tests of pulls: Debian's docker-registry, unpacked but not installed. Needs common.sh.
#
# An installed package would start a service on port 5000. The tests start and end the registry themselves, on free
# loopback ports (tests/registry.py).

readonly REGISTRY=/var/lib/hyperruntime-registry

# prepare_registry: check that the program exists, else unpack it as root on Debian.
prepare_registry() {
    if [ -x "$REGISTRY/usr/bin/docker-registry" ] || find_program docker-registry; then return; fi
    if ! is_root || ! has_apt; then
        say "note: docker-registry is missing; the tests of pulls need it. On Debian, run as root: scripts/setup all"
        return
    fi
    say "unpacking Debian's docker-registry into $REGISTRY; nothing is installed"
    unpack_registry
}

# unpack_registry: unpack the package and rename it into place, so it is never incomplete.
unpack_registry() {
    local work
    work=$(mktemp -d)
    (cd "$work" && { apt_run download docker-registry || { apt_run update && apt_run download docker-registry; }; }) \
        || die "docker-registry cannot be downloaded; check the network and apt's proxy, then run this again."
    dpkg -x "$work"/docker-registry_*.deb "$work/root"
    rm -rf "$REGISTRY.new"
    cp -R "$work/root" "$REGISTRY.new"
    chmod -R u=rwX,go=rX "$REGISTRY.new"
    rm -rf "$REGISTRY"
    mv "$REGISTRY.new" "$REGISTRY"
    rm -rf "$work"
}
