# Writes `kind|size|mtime|path` and NUL for each entry of a directory; with $depth not below it, with $hidden all names.
[ -z "$leaf" ] || { [ -e "./$leaf" ] && exit 90 || exit 82; }
[ -r . ] || exit 85
set -- . ${depth:+-maxdepth 1}
[ -n "$hidden" ] || set -- "$@" -name '.?*' -prune -o
if find . -maxdepth 0 -printf '' 2>/dev/null; then
  find "$@" -mindepth 1 -printf '%y|%s|%T@|%P\0' 2>/dev/null
else
  command -v find >/dev/null || { echo find >&2; exit 91; }
  command -v stat >/dev/null || { echo stat >&2; exit 91; }
  find "$@" ! -name . -exec sh -c '
    for at do
      facts=$(stat -c "%F|%s|%Y" "$at") && printf "%s|%s\0" "$facts" "${at#./}"
    done' sh {} + 2>/dev/null
fi
exit 0
