"""The shell scripts around and inside a container, and Apptainer's configuration for it: text
only.
"""

from __future__ import annotations

# It stays as the first process of the pid namespace and dies with `unshare`. Apptainer would clear
# the signal of the parent's death, and stay.
PREPARE = """
echo 0 >/proc/sys/user/max_user_namespaces
[ -z "$1" ] || mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$1"
shift
while [ "$1" != -- ]; do
    mount -t tmpfs -o "$2" tmpfs "$1"
    shift 2
done
shift
"$@"
exit $?
"""
# Builds a /dev with the entries of Apptainer's minimal /dev and the devices, which may have other
# names on the host.
DEVICES = """
umask 022
staging=$1
shift
show() {
    mkdir -p "${2%/*}"
    : >"$2"
    mount --bind "$1" "$2"
}
mount -t tmpfs -o mode=755,nosuid,noexec tmpfs "$staging"
for name in fd stdin stdout stderr ptmx; do
    [ ! -L "/dev/$name" ] || ln -s "$(readlink "/dev/$name")" "$staging/$name"
done
for name in pts shm mqueue; do
    [ ! -d "/dev/$name" ] || { mkdir "$staging/$name"; mount --rbind "/dev/$name" "$staging/$name"; }
done
for name in null zero full random urandom tty fuse ptmx; do
    [ ! -c "/dev/$name" ] || [ -e "$staging/$name" ] || show "/dev/$name" "$staging/$name"
done
while [ "$1" != -- ]; do
    show "$1" "$staging/${2#/dev/}"
    shift 2
done
shift
mount --rbind "$staging" /dev
exec "$@"
"""
# The argument after the script is the name of the shell, which others look for.
WAIT = '"$@"; exit $?'
WORKDIR_MARK = "hyperruntime: no such workdir"
LIMIT_MARK = "hyperruntime: no limit on processes"
PRELUDE = f"""
# dash names the option -p, other shells -u.
[ -z "$1" ] || ulimit -u "$1" 2>/dev/null || ulimit -p "$1" 2>/dev/null || {{ echo "{LIMIT_MARK}" >&2; exit 125; }}
shift
unset PROMPT_COMMAND PS1 APPTAINER_ENVIRONMENT SINGULARITY_ENVIRONMENT APPTAINER_NO_EVAL SINGULARITY_NO_EVAL
unset APPTAINER_COMMAND APPTAINER_APPNAME APPTAINER_BIND SINGULARITY_BIND APPTAINER_NAME SINGULARITY_NAME
unset APPTAINER_CONTAINER SINGULARITY_CONTAINER
[ "$LANG" = C ] && unset LANG
# Podman's builds do not create the image's own directory; OCI engines create it at the start.
[ -z "$5" ] || [ -e "$1" ] || mkdir -p -- "$1" 2>/dev/null
cd -- "$1" 2>/dev/null || {{ echo "{WORKDIR_MARK}" >&2; exit 125; }}
libraries=$2 driver=$3
[ -z "$4" ] || export LD_LIBRARY_PATH="$4"
[ -z "$libraries" ] || export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$libraries"
for library in ${{driver:+/usr/local/cuda/compat/libcuda.so.*.*}}; do
    version=${{library##*/libcuda.so.}}
    [ "${{version%%.*}}" -gt "$driver" ] 2>/dev/null || continue
    export LD_LIBRARY_PATH="/usr/local/cuda/compat${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
    break
done
[ -z "$4" ] || export _hr_library_path="$LD_LIBRARY_PATH"
unset libraries driver library version
[ -z "$6" ] || ! $6 /bin/sh -c : 2>/dev/null || exec $6 /bin/sh
exec /bin/sh
"""
DROP_CAPS = "setpriv --inh-caps=-all --ambient-caps=-all"
CONFIG = """\
allow setuid = no
allow pid ns = yes
allow user ns = yes
config passwd = no
config group = no
config resolv_conf = {resolv_conf}
mount proc = yes
mount sys = no
mount dev = minimal
mount devpts = yes
mount home = no
mount tmp = no
mount hostfs = no
{hosts}
user bind control = yes
enable overlay = yes
enable underlay = yes
mount slave = yes
sessiondir max size = 64
allow container sif = yes
allow container squashfs = yes
allow container dir = yes
memory fs type = tmpfs
systemd cgroups = yes
"""
