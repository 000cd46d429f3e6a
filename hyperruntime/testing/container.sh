# Makes a container of the fake driver and becomes its init. Runs as the first process of new namespaces.
# $1: an empty directory. $2: the working directory. $3: options of the tmpfs at /tmp. $4: "frozen" for a read-only
# root, or "". $5: maximum number of processes, or "". $6: size of /dev/shm, or "". Then mounts (`rw|ro SOURCE TARGET`
# each).
# PIVOT_ROOT: the command that makes the current directory the root and moves the old one to `old`.
# CONTAINER_ENV: NAME=VALUE..., quoted for a shell; command lines can be read by every user.
set -eu
root=$1 workdir=$2 tmp=$3 frozen=$4 processes=$5 shm=$6
shift 6

# freeze PATH: in a user namespace, a remount that drops a restriction of the source is refused, so try with each.
freeze() {
    for restrictions in ro ro,nosuid,nodev ro,nosuid,nodev,noexec; do
        mount -o "remount,bind,$restrictions" "$1" 2>/dev/null && return
    done
    echo "cannot make $1 read-only" >&2
    exit 1
}

show() { # rw|ro SOURCE TARGET
    if [ -d "$2" ]; then mkdir -p "$3"; else mkdir -p "${3%/*}" && : >>"$3"; fi
    mount --rbind "$2" "$3"
    [ "$1" = rw ] || freeze "$3"
}

for ip in ip 'busybox ip'; do # a new network has a loopback that is down
    $ip link set lo up 2>/dev/null && break
done || true
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir "$root/old" "$root/proc" "$root/dev" "$root/etc" "$root/tmp" "$root/root"
show ro /usr "$root/usr"
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then ln -s "usr/$name" "$root/$name"; elif [ -d "/$name" ]; then show ro "/$name" "$root/$name"; fi
done
for name in null zero full random urandom tty; do show rw "/dev/$name" "$root/dev/$name"; done
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,nosuid,noexec devpts "$root/dev/pts"
[ -z "$shm" ] || { mkdir "$root/dev/shm" && mount -t tmpfs -o "mode=1777,nosuid,nodev,size=$shm" tmpfs "$root/dev/shm"; }
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"
mount -t proc proc "$root/proc"
mount -t tmpfs -o "mode=1777,nosuid,nodev$tmp" tmpfs "$root/tmp"
while [ $# -gt 0 ]; do
    show "$1" "$2" "$root$3"
    shift 3
done
eval "set -- $CONTAINER_ENV"
cd "$root"
eval "$PIVOT_ROOT"
umount -l old
rmdir old
cd "$workdir" 2>/dev/null || { echo "no workdir $workdir" >&2; exit 1; }
[ -z "$frozen" ] || freeze /

# A shell that waits for its child also reaps orphans, so this one is an init.
exec ${processes:+prlimit "--nproc=$processes"} setpriv --no-new-privs --inh-caps=-all \
    --bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+sys_chroot \
    env -i "$@" /bin/sh -c '/bin/sh; exit $?'
