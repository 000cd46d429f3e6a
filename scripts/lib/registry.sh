# shellcheck shell=bash
# A real registry for the tests of pulls: Debian's docker-registry, unpacked and not installed. Needs common.sh.
#
# Installed, the package would start a service on port 5000. The tests start it themselves, on free ports of the
# loopback (tests/registry.py), and end it.

readonly REGISTRY=/var/lib/hyperruntime-registry

# prepare_registry: see that the program is there; quick where it is.
prepare_registry() {
    if [ -x "$REGISTRY/usr/bin/docker-registry" ] || find_program docker-registry; then return; fi
    if ! is_root || ! has_apt; then
        say "note: there is no docker-registry here; the tests of pulls need it. On Debian, as root: scripts/setup test"
        return
    fi
    say "unpacking Debian's docker-registry into $REGISTRY; nothing is installed"
    unpack_registry
}

# unpack_registry: all or nothing, for a program that is half there would look whole.
unpack_registry() {
    local work
    work=$(mktemp -d)
    (cd "$work" && { apt_run download docker-registry || { apt_run update && apt_run download docker-registry; }; }) \
        || die "Debian's docker-registry cannot be had; check the network and apt's proxy, then run this again."
    dpkg -x "$work"/docker-registry_*.deb "$work/root"
    rm -rf "$REGISTRY.new"
    cp -R "$work/root" "$REGISTRY.new"
    chmod -R u=rwX,go=rX "$REGISTRY.new"
    rm -rf "$REGISTRY"
    mv "$REGISTRY.new" "$REGISTRY"
    rm -rf "$work"
}
