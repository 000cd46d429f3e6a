"""The shell scripts around and inside a container, and Apptainer's configuration for one: text only."""

from __future__ import annotations

REMOVE_TREE = 'rm -rf -- "$@" 2>/dev/null || { chmod -R u+rwx -- "$@" 2>/dev/null; rm -rf -- "$@"; }'
# Its streams are closed before it cleans up: whoever reads them learns at once that the container has ended.
KEEPER = f"""
files=$1 record=$2
shift 2
"$@"
code=$?
exec <&- >&- 2>&-
set -- "$files" "$record"
{REMOVE_TREE}
exit $code
"""
PREPARE = """
[ -z "$1" ] || mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$1"
[ -z "$2" ] || mount -t tmpfs -o "$3" tmpfs "$2"
shift 3
exec "$@"
"""
WORKDIR_MARK = "hyperruntime: no such workdir"
PRELUDE = f"""
unset PROMPT_COMMAND PS1 APPTAINER_ENVIRONMENT SINGULARITY_ENVIRONMENT APPTAINER_NO_EVAL SINGULARITY_NO_EVAL
unset APPTAINER_COMMAND APPTAINER_APPNAME APPTAINER_BIND SINGULARITY_BIND APPTAINER_NAME SINGULARITY_NAME
unset APPTAINER_CONTAINER SINGULARITY_CONTAINER
[ "$LANG" = C ] && unset LANG
cd -- "$1" 2>/dev/null || {{ echo "{WORKDIR_MARK}" >&2; exit 125; }}
shift
while [ $# -gt 0 ]; do
    export "$1=$2"
    shift 2
done
exec /bin/sh
"""
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
bind path = /etc/hosts
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
