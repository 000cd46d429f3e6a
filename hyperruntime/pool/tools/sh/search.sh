# Writes `path`, NUL, `line:text` for each line that matches $pattern, and `line-text` for the lines around it
# ($context). A path begins with `./`, or with `.//` if one file was searched.
command -v grep >/dev/null || { echo grep >&2; exit 91; }
start=.
if [ -n "$leaf" ]; then
  [ -e "./$leaf" ] || exit 82
  [ -f "./$leaf" ] || exit 84
  [ -r "./$leaf" ] || exit 85
  start=.//$leaf hidden=1 globs=
fi
echo | grep "-$form" -e "$pattern" >/dev/null
[ $? -le 1 ] || exit 93
set -f # the globs, one a line, are for grep or find
newline='
'
flags="-n -$form ${ignore_case:+-i}"
[ "$context" = 0 ] || flags="$flags -C $context"
grep -r -Z -I -s --include=x -e x /dev/null 2>/dev/null
if [ $? -le 1 ]; then
  set --
  IFS=$newline
  for glob in $globs; do set -- "$@" "--include=$glob"; done # first: grep then skips files that no option matches
  unset IFS
  [ -n "$hidden" ] || set -- "$@" '--exclude=.?*' '--exclude-dir=.?*'
  grep $flags -H -Z -I -s -r "$@" -e "$pattern" -- "$start"
  exit 0
fi
command -v find >/dev/null || { echo find >&2; exit 91; }
export flags pattern
set -- "$start"
[ -n "$hidden" ] || set -- "$@" -name '.?*' -prune -o
set -- "$@" -type f
either='('
IFS=$newline
for glob in $globs; do
  set -- "$@" "$either" -name "$glob"
  either=-o
done
[ -z "$globs" ] || set -- "$@" ')'
unset IFS
find "$@" -exec sh -c '
  for at do
    grep $flags -e "$pattern" "$at" 2>/dev/null | while IFS= read -r line; do
      printf "%s\0%s\n" "$at" "$line"
    done
  done' sh {} +
exit 0
