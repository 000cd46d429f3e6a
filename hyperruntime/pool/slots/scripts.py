"""POSIX sh scripts that the pool runs in containers as their main user; they need find and rm in
the image.
"""

from __future__ import annotations

# $@: roots. Prints the world-writable directories, each followed by NUL.
FIND_WRITABLE = 'exec find "$@" -xdev -type d -perm -0002 -print0'

# The same for directories without the sticky bit, in which one user can rename another's files.
FIND_OPEN = 'exec find "$@" -xdev -type d -perm -0002 ! -perm -1000 -print0'

# Prints the option if this find supports it.
RACE_OPTION = (
    "find / -maxdepth 0 -ignore_readdir_race >/dev/null 2>&1 && echo -ignore_readdir_race; exit 0"
)

# $@: roots. Prints the world-writable files, FIFOs and sockets, each followed by NUL; devices are
# left as they are.
FIND_FILES = 'exec find "$@" -xdev \\( -type f -o -type p -o -type s \\) -perm -0002 -print0'

# Standard input: paths, each followed by NUL. $1: the mode for chmod.
CHMOD = 'exec xargs -0 chmod -- "$1"'

# $@: candidates. Prints the first candidate that is a writable directory, or that can be created.
MAKE_WORKSPACE = """
for place; do
    if mkdir -p -- "$place" 2>/dev/null && [ -w "$place" ]; then printf %s "$place"; exit 0; fi
done
echo "none of these is or becomes a writable directory: $*" >&2
exit 1
"""

# $1: the directory of all slots. Its mode lets users enter it but not list it.
MAKE_BASE = """
umask 022
mkdir -p -- "$1" 2>/dev/null && chmod 0711 -- "$1" 2>/dev/null && [ -w "$1" ]
"""

# $1: a slot's directory. $2: its user, or "" for the container's main user.
_MAKE_AREA = """
umask 077
set -- "$area" "$area/workspace" "$area/home" "$area/tmp"
if [ -z "$user" ]; then mkdir -- "$@" || exit 4
elif ! install -d -m 0700 -o "$user" -g "$user" -- "$@" 2>/dev/null; then
    mkdir -p -- "$@" && chown "$user:$user" "$@" || exit 4
fi
"""
MAKE_AREA = f"area=$1 user=$2{_MAKE_AREA}"

# $1: a slot's directory. $2: its user. $3: its next user. $4: an option of find or "". $5: a script
# with which the user removes its own files. Then --, then the world-writable directories.
# Removes the slot's directory, then looks for the user's files in the world-writable directories
# and for its SysV objects. Exits with 5 if files are left there, with 3 if something cannot be
# removed. Else makes the directory again. /proc/sysvipc lists the SysV objects. An owner can give
# an object to another user, so the creator counts as well.
RENEW_USER = (
    """
area=$1 user=$2 next=$3 race=$4 remove=$5 found=
shift 5
[ "$1" = -- ] || { echo "malformed call" >&2; exit 3; }
shift
rm -rf -- "$area"
[ ! -e "$area" ] && [ ! -L "$area" ] || { echo "files in $area" >&2; exit 3; }
look() {
    found=$(find "$@" -xdev $race -user "$user" -print -quit -o -type d ! -perm -0002 -prune) ||
        { echo "cannot look through $*" >&2; exit 3; }
}
[ $# -eq 0 ] || look "$@"
if [ "$found" ] && command -v setpriv >/dev/null; then
    setpriv --reuid "$user" --regid "$user" --clear-groups /bin/sh -c "$remove" remove "$user" "$@" 2>/dev/null
    look "$@"
fi
[ -z "$found" ] || { echo "file $found" >&2; exit 5; }

# each KIND FIELD: sets objects to the identifiers of the objects that the user owns or created.
each() {
    objects=
    while read -r line; do
        set -- "$1" "$2" $line
        eval "owner=\\${$(($2 + 2))} creator=\\${$(($2 + 4))}"
        case "$owner $creator" in "$user "* | *" $user") objects="$objects $4" ;; esac
    done <"/proc/sysvipc/$1"
} 2>/dev/null
for kind in shm:8:-m sem:5:-s msg:8:-q; do
    name=${kind%%:*} rest=${kind#*:}
    each "$name" "${rest%:*}"
    [ "$objects" ] || continue
    for object in $objects; do
        ipcrm "${rest#*:}" "$object" || # root needs CAP_SYS_ADMIN for this; source: shmctl(2)
            setpriv --reuid "$user" --regid "$user" --clear-groups ipcrm "${rest#*:}" "$object"
    done 2>/dev/null
    each "$name" "${rest%:*}"
    [ -z "$objects" ] || { echo "System V $name$objects" >&2; exit 3; }
done
user=$next"""
    + _MAKE_AREA
)

# $1: a user, then directories. Runs as that user: a sibling that swaps directories meanwhile could
# misuse root.
REMOVE_OWN = """
user=$1
shift
remove() { find "$@" -xdev -user "$user" -prune -exec rm -rf -- {} + -o -type d ! -perm -0002 -prune; }
remove "$@" && exit 0
find "$@" -xdev -user "$user" -prune -exec chmod -R u+rwx -- {} + -o -type d ! -perm -0002 -prune
remove "$@"
"""

# $1: a path in a world-writable directory. Creates files that a reset must remove; with $2, checks
# that they are gone.
TRY = (
    '[ -z "$2" ] || { [ ! -e "$1" ]; exit; }; umask 077; mkdir -p -- "$1/a" && : >"$1/a/f" && '
    'chmod 0 "$1/a"'
)

# $1: a slot's directory.
RENEW_DIRECTORY = (
    """
area=$1 user=
chmod -R u+rwx -- "$area" 2>/dev/null
rm -rf -- "$area"
[ ! -e "$area" ] && [ ! -L "$area" ] || { echo "files in $area" >&2; exit 3; }
"""
    + _MAKE_AREA
)
