# Writes the content of files. $1 is `one`: of the file $3, at most $2 bytes; the exit code says why it cannot be read. $1 is
# `many`: of the files $3..., each followed by a line with $boundary and its code.
many=${1#one} limit=$2
shift 2
need head
check() {
  [ ! -d "$1" ] || return 83
  [ -r "$1" ] || why "$1"
}
if [ -z "$many" ]; then
  check "$1" || exit
  exec head -c "$limit" <"$1"
fi
for at do
  check "$at" && head -c "$limit" <"$at"
  printf '\n%s %s\n' "$boundary" $?
  printf '\0' >&2
done
