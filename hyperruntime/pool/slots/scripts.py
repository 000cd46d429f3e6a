"""What the pool runs inside containers as their main user: shell text, POSIX sh, and find and rm of the image."""

from __future__ import annotations

# $@ are roots. Prints, each ended by NUL, directories that any user may write to.
FIND_PLACES = 'exec find "$@" -xdev -type d -perm -0002 -print0'

# The same of those where one user cannot rename another's files.
FIND_STICKY = 'exec find "$@" -xdev -type d -perm -1002 -print0'

# Prints the option of a find that has it.
RACE_OPTION = "find / -maxdepth 0 -ignore_readdir_race >/dev/null 2>&1 && echo -ignore_readdir_race; exit 0"

# $@ are roots. Prints, each ended by NUL, what else any user may write to; devices are left as they are.
FIND_FILES = 'exec find "$@" -xdev \\( -type f -o -type p -o -type s \\) -perm -0002 -print0'

# Standard input: paths ended by NUL, $1 the change of their modes.
CHMOD = 'exec xargs -0 chmod -- "$1"'

# $1 the directory of all slots. It can be passed through, not listed.
MAKE_BASE = """
umask 022
mkdir -p -- "$1" 2>/dev/null && chmod 0711 -- "$1" 2>/dev/null && [ -w "$1" ]
"""

# $1 a slot's directory, $2 its user or "" for the container's own.
_MAKE_AREA = """
umask 077
set -- "$area" "$area/workspace" "$area/home" "$area/tmp"
if [ -z "$user" ]; then mkdir -- "$@" || exit 4
elif ! install -d -m 0700 -o "$user" -g "$user" -- "$@" 2>/dev/null; then
    mkdir -p -- "$@" && chown "$user:$user" "$@" || exit 4
fi
"""
MAKE_AREA = f"area=$1 user=$2{_MAKE_AREA}"

# $1 a slot's directory, $2 its user, $3 its next user, $4 an option of find or "", $5 what the user runs to remove its
# own files, --, then places where others may write.
# Removes the directory and looks for what else the user left, where others could come across it. Exits 5 when there are
# files elsewhere, 3 with something that cannot be removed, else makes the directory anew.
# SysV objects are told from /proc/sysvipc: an owner can be changed by the owner, so the creator counts as well.
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

# each KIND FIELD: sets objects to the identifiers of what the user made or has.
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
        ipcrm "${rest#*:}" "$object" || # root without CAP_SYS_ADMIN may not; source: shmctl(2)
            setpriv --reuid "$user" --regid "$user" --clear-groups ipcrm "${rest#*:}" "$object"
    done 2>/dev/null
    each "$name" "${rest%:*}"
    [ -z "$objects" ] || { echo "System V $name$objects" >&2; exit 3; }
done
user=$next"""
    + _MAKE_AREA
)

# $1 a user, then places. Run as that user, who can do no harm where siblings exchange directories meanwhile.
REMOVE_OWN = """
user=$1
shift
remove() { find "$@" -xdev -user "$user" -prune -exec rm -rf -- {} + -o -type d ! -perm -0002 -prune; }
remove "$@" && exit 0
find "$@" -xdev -user "$user" -prune -exec chmod -R u+rwx -- {} + -o -type d ! -perm -0002 -prune
remove "$@"
"""

# $1 a name where others may write. Leaves what a reset must remove; with $2 tells whether it did.
TRY = '[ -z "$2" ] || { [ ! -e "$1" ]; exit; }; umask 077; mkdir -p -- "$1/a" && : >"$1/a/f" && chmod 0 "$1/a"'

# $1 a slot's directory.
RENEW_DIRECTORY = (
    """
area=$1 user=
chmod -R u+rwx -- "$area" 2>/dev/null
rm -rf -- "$area"
[ ! -e "$area" ] && [ ! -L "$area" ] || { echo "files in $area" >&2; exit 3; }
"""
    + _MAKE_AREA
)
