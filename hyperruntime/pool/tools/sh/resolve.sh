# Resolves a path as the kernel does, and refuses a path outside the roots. POSIX sh; the only program is readlink(1),
# for links only. Input: the variable path, and the roots as positional parameters. Result: the working directory is
# that of the file, and leaf is its name there ("" if the path is a directory).
export LC_ALL=C
for root do
  shift
  cd -P -- "$root" 2>/dev/null && set -- "$@" "${PWD%/}"
done
[ $# -gt 0 ] || exit 80
at=$path hops=0
while :; do
  if [ -d "$at" ]; then
    cd -P -- "$at" 2>/dev/null || exit 85
    leaf= missing=
    break
  fi
  up=${at%/*} leaf=${at##*/} missing=
  case $leaf in . | ..) exit 82 ;; esac
  while [ ! -d "$up/" ]; do
    leaf=${up##*/}/$leaf up=${up%/*} missing=1
  done
  case /$leaf/ in */../*) exit 82 ;; esac
  cd -P -- "$up/" 2>/dev/null || exit 85
  if [ -n "$missing" ] || [ ! -L "./$leaf" ]; then
    break
  fi
  hops=$((hops + 1))
  [ "$hops" -le 40 ] || exit 86
  to=$(readlink -n "./$leaf" && echo x) || exit 87
  to=${to%x}
  case $to in /*) at=$to ;; *) at=${PWD%/}/$to ;; esac
  while case $at in ?*/) ;; *) false ;; esac do
    at=${at%/}
  done
done
here=${PWD%/}
inside=
for root do
  case $here/$leaf in "$root" | "$root"/*) inside=1 ;; esac
done
[ -n "$inside" ] || exit 81
