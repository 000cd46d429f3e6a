# shellcheck shell=bash
# Docker for the tests: the distribution's daemon, and a newer one that accepts CDI names and has BuildKit. Needs common.sh.
#
# Both daemons keep running in the background (their pid files are named below). A daemon that already answers is used
# as it is.

readonly DOCKER_SOCKET=/var/run/docker.sock
readonly DOCKER_LOG=/var/log/hyperruntime-dockerd.log
readonly COMPOSE=.venv/docker-compose
readonly NEW_DOCKER=/var/lib/hyperruntime-docker-new
readonly NEW_DOCKER_PLUGINS=$NEW_DOCKER/usr/libexec/docker/cli-plugins
readonly NEW_DOCKER_RUN=/run/hyperruntime-docker-new
readonly NEW_DOCKER_CDI=$NEW_DOCKER_RUN/cdi
readonly NEW_DOCKER_BRIDGE=hyperruntime0
readonly NEW_DOCKER_SOCKET=$NEW_DOCKER_RUN/docker.sock

APT_OPTIONS=()

# docker_answers SOCKET: whether a daemon answers this user there.
docker_answers() {
    python3 - "$1" 2>/dev/null <<'PYTHON'
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(5)
    connection.connect(sys.argv[1])
    connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
    sys.exit(b"200 OK" not in connection.recv(4096))
PYTHON
}

# prepare_docker: check that a Docker daemon answers; root on Debian installs and starts one. Quick if one answers.
prepare_docker() {
    if [ -n "${DOCKER_HOST:-}" ] || docker_answers "$DOCKER_SOCKET"; then
        install_docker_client
        return
    fi
    if ! is_root; then
        say "note: no Docker daemon answers this user at $DOCKER_SOCKET; the tests on Docker need one. Ask the" \
            "administrator to start it (systemctl start docker) and for the group docker (usermod -aG docker $(id -un))"
        return
    fi
    if ! find_program dockerd; then
        has_apt || die "dockerd is not on PATH; install Docker 20.10 or newer with this system's package manager," \
            "then run this again."
        install_packages docker.io
    fi
    install_docker_client
    if [ -d /run/systemd/system ]; then
        say "starting Docker (systemctl start docker)"
        systemctl start docker || die "Docker does not start; see \`journalctl -u docker\`."
    else
        start_dockerd "$DOCKER_LOG" "$DOCKER_SOCKET"
    fi
}

# install_docker_client: install the `docker` command, which some tests use; newer Debian has a separate package.
install_docker_client() {
    if command -v docker >/dev/null || ! is_root || ! has_apt; then return; fi
    install_packages docker-cli
}

# start_dockerd LOG SOCKET [ARGUMENT...]: start a daemon that outlives this script; wait until it answers.
start_dockerd() {
    local log=$1 socket=$2 attempt
    shift 2
    say "starting dockerd in the background; it answers at $socket and logs to $log"
    setsid nohup dockerd "$@" </dev/null >>"$log" 2>&1 &
    for attempt in $(seq 120); do
        if docker_answers "$socket"; then return; fi
        if [ "$attempt" -gt 4 ] && ! kill -0 $! 2>/dev/null; then break; fi
        sleep 0.5
    done
    die "dockerd does not start; the end of $log:" "$(tail -n 5 "$log")"
}

# prepare_new_docker: unpack the Docker of Debian unstable and start it on its own socket, for tests of GPUs by CDI name
# (specs in NEW_DOCKER_CDI), which 20.10 does not support. It has its own bridge: without one it would delete the first
# daemon's. It changes no firewall, so the bridge has no external access. For root on Debian.
prepare_new_docker() {
    if docker_answers "$NEW_DOCKER_SOCKET"; then return; fi
    is_root && has_apt || die "only root on Debian can start the second Docker daemon."
    if [ ! -x "$NEW_DOCKER_PLUGINS/docker-buildx" ]; then unpack_new_docker; fi
    if ! find_program runc; then install_packages runc; fi
    make_bridge "$NEW_DOCKER_BRIDGE" 172.31.254.1/24
    mkdir -p "$NEW_DOCKER_CDI"
    PATH=$NEW_DOCKER/usr/sbin:$NEW_DOCKER/usr/bin:$PATH start_dockerd "$NEW_DOCKER_RUN/dockerd.log" \
        "$NEW_DOCKER_SOCKET" --config-file /dev/null --data-root "$NEW_DOCKER/data" --exec-root "$NEW_DOCKER_RUN" \
        --pidfile "$NEW_DOCKER_RUN/dockerd.pid" --host "unix://$NEW_DOCKER_SOCKET" \
        --bridge "$NEW_DOCKER_BRIDGE" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        --cdi-spec-dir "$NEW_DOCKER_CDI"
}

# make_bridge NAME ADDRESS: make a network bridge if it does not exist.
make_bridge() {
    if [ -e "/sys/class/net/$1" ]; then return; fi
    if ! find_program ip; then install_packages iproute2; fi
    ip link add name "$1" type bridge && ip address add "$2" dev "$1" && ip link set "$1" up
}

# unpack_new_docker: unpack the packages of the second daemon.
unpack_new_docker() {
    say "unpacking Docker of Debian unstable (docker.io, containerd, tini, docker-buildx) into $NEW_DOCKER; nothing is installed"
    unpack_unstable "$NEW_DOCKER" docker.io containerd tini docker-buildx
}

# unpack_unstable DIRECTORY PACKAGE...: unpack packages of Debian unstable, with separate lists, so that the system's apt
# does not see unstable.
unpack_unstable() {
    local lists
    lists=$(mktemp -d)
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian unstable main\n' \
        >"$lists/sources.list"
    APT_OPTIONS=(-o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$lists/lists" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
    apt_run "${APT_OPTIONS[@]}" update || die "Debian unstable's lists cannot be downloaded; check the network and apt's proxy."
    unpack_packages "$@"
    APT_OPTIONS=()
    rm -rf "$lists"
}

# prepare_compose: make `docker compose` work for the commands of this script: without one, root on Debian unpacks that of
# unstable, and DOCKER_CONFIG names it.
prepare_compose() {
    local plugin=$COMPOSE/usr/libexec/docker/cli-plugins/docker-compose
    if docker compose version >/dev/null 2>&1; then return; fi
    if [ ! -x "$plugin" ]; then
        is_root && has_apt || die "\`docker compose\` is missing; install Docker's compose plug-in, then run this again."
        say "unpacking docker-compose of Debian unstable into $COMPOSE; nothing is installed"
        unpack_unstable "$COMPOSE" docker-compose
    fi
    mkdir -p "$COMPOSE/config/cli-plugins"
    ln -sfn "$PWD/$plugin" "$COMPOSE/config/cli-plugins/docker-compose"
    cp "${DOCKER_CONFIG:-$HOME/.docker}/config.json" "$COMPOSE/config/config.json" 2>/dev/null \
        || echo '{}' >"$COMPOSE/config/config.json" # Podman reads this file too, and wants one
    export DOCKER_CONFIG=$PWD/$COMPOSE/config
    docker compose version >/dev/null || die "docker-compose was unpacked but does not run."
}

# unpack_packages DIRECTORY PACKAGE...: unpack Debian packages, all or none; APT_OPTIONS may name other lists.
unpack_packages() {
    local directory=$1 work
    shift
    work=$(mktemp -d)
    (cd "$work" && apt_run "${APT_OPTIONS[@]}" download "$@") \
        || die "the packages $* cannot be downloaded; run apt-get update, and check the network and apt's proxy."
    for package in "$work"/*.deb; do
        dpkg -x "$package" "$work/root"
    done
    mkdir -p "$directory"
    cp -a "$work/root/." "$directory"
    rm -rf "$work"
}

# stop_new_docker: end the second daemon, if it still runs, and remove its data.
stop_new_docker() {
    local pid
    pid=$(cat "$NEW_DOCKER_RUN/dockerd.pid" 2>/dev/null) || pid=
    if [ -n "$pid" ] && grep -q dockerd "/proc/$pid/comm" 2>/dev/null; then
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    fi
    umount "$NEW_DOCKER_RUN"/netns/* "$NEW_DOCKER/data" 2>/dev/null || true
    rm -rf "$NEW_DOCKER/data" "$NEW_DOCKER_RUN"
    ip link delete "$NEW_DOCKER_BRIDGE" 2>/dev/null || true
}
