# For all programs of this folder. POSIX sh; all paths are absolute.
export LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Exit unless the image has the programs $@.
need() {
  for program do
    command -v "$program" >/dev/null || { echo "$program" >&2; exit 91; }
  done
}

# Return why the path $1 cannot be used: 82 it does not exist, 85 permission denied, 90 a part of it is not a directory.
why() {
  [ ! -e "$1" ] || return 85
  up=$1
  while up=${up%/*} && [ -n "$up" ]; do
    if [ -d "$up" ]; then [ -x "$up" ] && return 82 || return 85; fi
    [ ! -e "$up" ] || return 90
  done
  return 82
}
