# shellcheck shell=bash
# Install Apptainer on machines without it: Debian's package, in a separate prefix. Needs common.sh.
#
# Debian 12 has no Apptainer, and the package of unstable needs a newer libc. So this package and its libraries are
# unpacked into $APPTAINER_PREFIX, and its programs are patched to load these libraries. No file of the system is
# replaced. Outside the prefix this adds only the link $APPTAINER_LINK and ordinary packages of this Debian.

readonly APPTAINER_PREFIX=/opt/hyperruntime-apptainer
readonly APPTAINER_LINK=/usr/local/bin/apptainer
readonly APPTAINER_HELPERS=(mksquashfs:squashfs-tools squashfuse:squashfuse fuse-overlayfs:fuse-overlayfs newuidmap:uidmap)
readonly APPTAINER_LIBRARIES=(libc6 libseccomp2 libsqlite3-0)

# prepare_apptainer: use an existing Apptainer, else install it as root; quick if it exists.
prepare_apptainer() {
    local missing
    mapfile -t missing < <(missing_packages "${APPTAINER_HELPERS[@]}")
    if command -v apptainer >/dev/null && [ "${#missing[@]}" = 0 ]; then return; fi
    if ! is_root || ! has_apt; then ask_for_apptainer "${missing[@]}"; fi
    if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
    if command -v apptainer >/dev/null; then return; fi
    if has_apt_candidate apptainer; then
        install_packages apptainer
    else
        install_apptainer_prefix
    fi
    apptainer version >/dev/null 2>&1 || die "apptainer was installed but does not run: $(apptainer version 2>&1 | tail -n 1)"
}

ask_for_apptainer() {
    die "the tests need Apptainer (1.3 or newer), mksquashfs and squashfuse, which only the administrator can install;" \
        "ask for apptainer and $*, or run scripts/setup all once as root on Debian," \
        "then run this again."
}

has_apt_candidate() { [ -n "$(apt-cache --quiet=2 show --no-all-versions "$1" 2>/dev/null)" ]; }

# install_apptainer_prefix: unpack and patch in a temporary directory, then rename, so the prefix is never incomplete.
install_apptainer_prefix() {
    local work
    say "installing Apptainer from Debian unstable into $APPTAINER_PREFIX, with its own copy of libc;" \
        "outside this prefix only the link $APPTAINER_LINK is made"
    if ! find_program patchelf; then install_packages patchelf; fi
    work=$(mktemp -d "$(dirname "$APPTAINER_PREFIX")/.hyperruntime-apptainer.XXXXXX")
    if ! (set -e && download_apptainer "$work/debs" && unpack_apptainer "$work/debs" "$work/prefix"); then
        rm -rf "$work"
        die "Apptainer could not be installed (see the lines above); the tests of its driver cannot run without it."
    fi
    rm -rf "$APPTAINER_PREFIX"
    chmod 755 "$work/prefix"
    mv "$work/prefix" "$APPTAINER_PREFIX"
    rm -rf "$work"
    ln -sfn "$APPTAINER_PREFIX/usr/bin/apptainer" "$APPTAINER_LINK"
}

# download_apptainer DIRECTORY: download the packages of unstable with separate lists, and check their signatures.
download_apptainer() {
    local state=$1/apt options
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    chmod 755 "$(dirname "$1")" "$1"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s unstable main\n' "$(debian_mirror)" \
        >"$state/sources.list"
    options=(-o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root
        -o Acquire::Languages=none -o APT::Default-Release=)
    apt_run "${options[@]}" update
    (cd "$1" && apt_run "${options[@]}" download apptainer "${APPTAINER_LIBRARIES[@]}")
}

# debian_mirror: print the mirror that this machine already uses, so it is reachable.
debian_mirror() {
    local uri
    uri=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | head -n 1)
    printf '%s' "${uri:-http://deb.debian.org/debian}"
}

# unpack_apptainer DEBS PREFIX: unpack the package, and its libraries below sysroot/; patch its programs to load these.
unpack_apptainer() {
    local name prefix=$2 sysroot=$2/sysroot final=$APPTAINER_PREFIX/sysroot libraries program
    mkdir -p "$sysroot"
    dpkg -x "$1"/apptainer_*.deb "$prefix"
    for name in "${APPTAINER_LIBRARIES[@]}"; do dpkg -x "$1/$name"_*.deb "$sysroot"; done
    libraries=$final/usr/lib/$(multiarch)
    for program in "$prefix/usr/bin/apptainer" "$prefix/usr/lib/$(multiarch)/apptainer/bin/starter"; do
        patchelf --set-interpreter "$final$(loader_path "$sysroot")" --set-rpath "$libraries" "$program"
    done
    for name in libseccomp libsqlite3; do
        for program in "$sysroot/usr/lib/$(multiarch)/$name".so.?; do
            patchelf --set-rpath "$libraries" "$(readlink -f "$program")"
        done
    done
    # Apptainer finds its configuration relative to its program, which Debian's build expects in /usr.
    ln -s ../etc "$prefix/usr/etc"
    ln -s ../var "$prefix/usr/var"
    mkdir -p "$prefix/usr/lib" "$prefix/var/lib/apptainer/mnt/session"
    ln -s ../../etc "$prefix/usr/lib/etc"
    ln -s ../../var "$prefix/usr/lib/var"
}

multiarch() { printf "%s-linux-gnu" "$(uname -m)"; }

# loader_path SYSROOT: print the path of the dynamic loader in it (its directory differs between architectures).
loader_path() {
    local path
    path=$(find "$1/usr/lib" "$1/usr/lib64" -maxdepth 2 -name 'ld-linux*.so.*' 2>/dev/null | sort | tail -n 1)
    printf '%s' "${path#"$1"}"
}
