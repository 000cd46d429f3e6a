# shellcheck shell=bash
# The ordinary user as which root runs the engine tests of rootless engines. Needs common.sh.

# prepare_test_user: make the user and prepare rootless Podman for it; quick if that is done.
prepare_test_user() {
    if ! has_apt && ! command -v useradd >/dev/null; then
        die "cannot make the ordinary user $TEST_USER for the rootless tests: useradd is missing; make the user yourself."
    fi
    if ! id "$TEST_USER" >/dev/null 2>&1; then
        say "making the ordinary user $TEST_USER for the tests of rootless Podman"
        useradd --create-home --shell /bin/bash "$TEST_USER"
    fi
    if ! has_subids "$TEST_USER"; then add_subids; fi
    make_runtime_directory
    open_device /dev/fuse
    open_device /dev/net/tun
    if [ ! -e "$(test_home)/.rootless-podman-works" ]; then
        ensure_system_python
        prepare_storage
    fi
}

test_home() { getent passwd "$TEST_USER" | cut -d: -f6; }

runtime_directory() { printf '/run/user/%s' "$(id -u "$TEST_USER")"; }

# add_subids: give the user the first 65536 ids above all assigned ranges.
add_subids() {
    local first
    first=$(cat /etc/subuid /etc/subgid 2>/dev/null | awk -F: 'BEGIN {n = 100000} $2 + $3 > n {n = $2 + $3} END {print n}')
    say "giving $TEST_USER the subordinate ids $first-$((first + 65535))"
    usermod --add-subuids "$first-$((first + 65535))" --add-subgids "$first-$((first + 65535))" "$TEST_USER"
}

make_runtime_directory() {
    if [ -d "$(runtime_directory)" ]; then return; fi
    install -d -m 0755 /run/user
    install -d -m 0700 -o "$TEST_USER" -g "$TEST_USER" "$(runtime_directory)"
}

# open_device PATH: let ordinary users use a device, as desktop distributions do.
open_device() {
    if [ ! -c "$1" ] || run_as_test_user test -r "$1" -a -w "$1"; then return; fi
    say "making $1 usable for ordinary users (chmod 666)"
    chmod 666 "$1" || say "chmod failed; rootless networks or storage may not work"
}

# ensure_system_python: install a Python with which the user can make a virtual environment, unless it has one.
ensure_system_python() {
    if run_as_test_user python3 -c 'import ensurepip, venv' 2>/dev/null; then return; fi
    if has_apt; then install_packages python3 python3-venv; fi
}

# run_as_test_user COMMAND...: run a command in the user's home with a clean environment, which keeps only the variables
# for networks, pip and the terminal.
run_as_test_user() {
    local home name settings=()
    home=$(test_home)
    while IFS= read -r name; do
        settings+=("$name=${!name}")
    done < <(compgen -e | grep -E '^(PIP_.*|(http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CI|TERM|NO_COLOR)$')
    setpriv --reuid "$TEST_USER" --regid "$TEST_USER" --init-groups \
        env -i -C "$home" HOME="$home" USER="$TEST_USER" LOGNAME="$TEST_USER" SHELL=/bin/bash LANG="${LANG:-C.UTF-8}" \
        PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin \
        XDG_RUNTIME_DIR="$(runtime_directory)" HYPERRUNTIME_TEST_USER="$TEST_USER" "${settings[@]}" "$@"
}

# prepare_storage: use native overlay if it works (a new rootless store may default to slow vfs), else Podman's choice.
prepare_storage() {
    local home config
    home=$(test_home)
    config=$home/.config/containers/storage.conf
    if [ ! -e "$home/.local/share/containers/storage" ] && [ ! -e "$config" ]; then
        # shellcheck disable=SC2016
        run_as_test_user sh -c 'mkdir -p "$1" && printf "[storage]\ndriver = \"overlay\"\n" >"$1/storage.conf"' \
            sh "$(dirname "$config")"
        if try_rootless_podman >/dev/null 2>&1; then return; fi
        say "overlay storage does not work for $TEST_USER; Podman chooses the storage driver"
        # The line above made this store; it holds files of subordinate users.
        rm -rf --one-file-system "$home/.local/share/containers/storage" "$config"
    fi
    try_rootless_podman >&2 || die "rootless Podman does not work for $TEST_USER; see its output above."
}

# try_rootless_podman: run a container of one static program; write a marker file if that works.
try_rootless_podman() {
    # shellcheck disable=SC2016
    run_as_test_user bash -ec '
        work=$(mktemp -d)
        trap "rm -rf $work; podman rmi --force localhost/hyperruntime-try >/dev/null 2>&1" EXIT
        mkdir "$work/bin"
        cp "$(command -v busybox)" "$work/bin/sh"
        tar -C "$work" -c bin | podman import - localhost/hyperruntime-try
        files=$(ulimit -Hn) processes=$(ulimit -Hu)
        [ "$files" != unlimited ] || files=20000
        [ "$processes" != unlimited ] && [ "$processes" -le 32768 ] || processes=32768
        runtime=runc
        command -v runc >/dev/null || runtime=crun
        podman --runtime "$runtime" run --rm --network none --ulimit "nofile=$files:$files" \
            --ulimit "nproc=$processes:$processes" localhost/hyperruntime-try /bin/sh -c "exit 0"
        touch "$HOME/.rootless-podman-works"
    '
}
