# shellcheck shell=bash
# The systems of scripts/sites: root file systems of Debian 13 and unstable, and how a command runs in one. Needs common.sh
# and apptainer.sh. For root.
#
# They are in $SITES_PLACE, one for all checkouts, with the accounts' homes and the images of their engines. A row changes
# no file of a system: what it writes elsewhere is in memory, and ends with it.

readonly SITES_PLACE=${HYPERRUNTIME_SITES:-/var/lib/hyperruntime-sites}

# The packages of each system. The system "node" is Debian 13 with a kernel and systemd, which `boot` runs in QEMU.
readonly SITES_PACKAGES=(podman crun runc passt uidmap catatonit netavark aardvark-dns nftables iptables fuse-overlayfs
    bubblewrap python3 python3-venv python3-pip python3-dev gcc libc6-dev git patch procps iproute2 ca-certificates
    busybox-static mmdebstrap skopeo docker.io slurmctld slurmd slurm-client munge charliecloud squashfs-tools squashfuse
    fuse3 attr rsync tini debian-archive-keyring make sudo kmod psmisc strace tmux curl)
readonly SITES_UNSTABLE_PACKAGES=(apptainer docker-cli)
readonly SITES_NODE_PACKAGES=(linux-image-cloud-amd64 systemd-sysv dbus-user-session libpam-systemd udev
    qemu-system-x86 e2fsprogs)

# make_system NAME: make the root file system, if it is missing or has other packages.
make_system() {
    local place=$SITES_PLACE/$1 suite=$1 packages=("${SITES_PACKAGES[@]}") options=()
    case $1 in
        unstable)
            packages+=("${SITES_UNSTABLE_PACKAGES[@]}")
            options=(--aptopt='Acquire::Check-Valid-Until "false"') # a mirror may be some days behind
            ;;
        node)
            packages+=("${SITES_NODE_PACKAGES[@]}")
            suite=trixie
            ;;
    esac
    if [ "$(cat "$place.packages" 2>/dev/null)" = "${packages[*]}" ]; then return; fi
    if ! find_program mmdebstrap; then install_packages mmdebstrap; fi
    say "making the system $1 in $SITES_PLACE; this takes some minutes"
    mkdir -p "$SITES_PLACE"
    rm -rf --one-file-system "$place.new"
    mmdebstrap --quiet --variant=minbase --aptopt='APT::Install-Recommends "false"' "${options[@]}" \
        --include="$(IFS=,; printf '%s' "${packages[*]}")" "$suite" "$place.new" "$(debian_mirror)" </dev/null >&2 \
        || die "mmdebstrap could not make the system $1; check the network and apt's proxy."
    rm -rf --one-file-system "$place"
    mv -T "$place.new" "$place"
    printf '%s\n' "${packages[*]}" >"$place.packages"
}

# in_system SUITE RESULTS COMMAND...: run a command of this checkout as root in a system, in namespaces of its own for mounts
# and processes; when it ends, all its processes end. It finds the checkout in /checkout and may write to /results.
in_system() {
    local pid
    unshare --mount --propagation private --pid --fork --kill-child bash -c "$(declare -f enter_system); enter_system \"\$@\"" \
        enter_system "$SITES_PLACE" "$@" &
    pid=$!
    # shellcheck disable=SC2064
    trap "kill -KILL $pid 2>/dev/null || true" EXIT # unshare ignores SIGTERM
    wait "$pid"
}

# enter_system PLACE SUITE RESULTS COMMAND...: the half of in_system that runs in the namespaces. With pivot_root, since the
# kernel forbids user namespaces to processes in a chroot (user_namespaces(7)). SITES_TMP=SIZE makes /tmp a file system in
# memory.
enter_system() {
    set -euo pipefail
    local place=$1 suite=$2 results=$3 root=$1/mount name settings=()
    shift 3
    mkdir -p "$root"
    mount -t tmpfs -o mode=755 sites "$root"
    mkdir "$root/files" "$root/upper" "$root/work"
    mount -t overlay -o "lowerdir=$place/$suite,upperdir=$root/upper,workdir=$root/work" overlay "$root/files"
    root=$root/files
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    for name in home var/lib/docker; do # the stores of engines cannot be on an overlay
        mkdir -p "$place/state/$suite/$name" "$root/$name"
        mount --bind "$place/state/$suite/$name" "$root/$name"
    done
    for name in tmp var/tmp; do
        mkdir -p "$results/$name"
        mount --bind "$results/$name" "$root/$name"
        chmod 1777 "$root/$name"
    done
    if [ -n "${SITES_TMP:-}" ]; then mount -t tmpfs -o "mode=1777,size=$SITES_TMP" tmpfs "$root/tmp"; fi
    mkdir -p "$root/run/lock" "$root/checkout" "$root/results" "$root/old"
    mount --bind -o ro "$PWD" "$root/checkout"
    mount --bind "$results" "$root/results"
    for name in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        if [ -e "$name" ]; then cp --dereference "$name" "$root$name"; fi
    done
    while IFS= read -r name; do
        settings+=("$name=${!name}")
    done < <(compgen -e | grep -E '^(PIP_.*|SITES_.*|(http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|TERM)$')
    settings=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${settings[@]}")
    cd "$root"
    pivot_root . old
    umount -l /old
    exec "${settings[@]}" "$@"
}

readonly VIRTUAL_MACHINE=(qemu-system-x86_64 -cpu max -nographic -no-reboot -nic none
    -kernel /vmlinuz -initrd /initrd.img)

# boots OPTION...: whether a virtual machine with these options gets as far as its first process. A /dev/kvm may exist and
# not run the kernel, as in some virtual machines; QEMU then stops and waits.
boots() {
    timeout 60 "${VIRTUAL_MACHINE[@]}" "$@" -append "rdinit=/bin/false panic=-1" >/results/trial.log 2>&1 </dev/null
}

# boot LIMIT_S COMMAND: as root in the system "node", boot a copy of it as a virtual machine that runs a shell command as root
# after the start and then ends. Its files in /results are copied to /results here. Without KVM it is 5 to 15 times slower.
boot() {
    local disk=/results/disk unit=/etc/systemd/system/hyperruntime-site.service accelerator=tcg,thread=multi
    printf '%s\n' '[Unit]' 'After=multi-user.target' '[Service]' 'Type=simple' 'StandardOutput=file:/results/log' \
        'StandardError=inherit' "ExecStart=/bin/bash -c '$2; sync; systemctl poweroff --force'" >"$unit"
    mkdir -p /etc/systemd/system/multi-user.target.wants
    ln -sf "$unit" /etc/systemd/system/multi-user.target.wants/
    printf '/dev/vda / ext4 defaults 0 1\n' >/etc/fstab
    echo node >/etc/hostname
    printf '127.0.0.1 localhost node\n' >/etc/hosts
    mount --bind / /mnt # without /proc and what else is mounted
    mount --bind /home /mnt/home
    mount --bind /checkout /mnt/checkout
    truncate --size 12G "$disk"
    mkfs.ext4 -q -F -d /mnt "$disk"
    if boots -accel kvm; then accelerator=kvm; fi
    timeout "$1" "${VIRTUAL_MACHINE[@]}" -accel "$accelerator" -m 4096 -smp 2 \
        -drive "file=$disk,format=raw,if=virtio,cache=unsafe" \
        -append "root=/dev/vda rw console=ttyS0 panic=-1 quiet" >/results/serial.log 2>&1 </dev/null || true
    debugfs -R "rdump /results /" "$disk"
    rm "$disk"
}
