# Writes a tar archive of a directory, or of one regular file, to standard output.
command -v tar >/dev/null || { echo tar >&2; exit 91; }
if [ -n "$leaf" ]; then
  [ -e "./$leaf" ] || exit 82
  [ -f "./$leaf" ] || exit 84
  [ -r "./$leaf" ] || exit 85
else
  [ -r . ] || exit 85
  leaf=
fi
set --
if [ -n "$whole" ] && tar --hard-dereference -cf /dev/null -T /dev/null 2>/dev/null; then
  set -- --hard-dereference # for a format without hard links
fi
tar "$@" -cf - "./$leaf"
code=$?
[ "$code" -le 1 ] || { echo "tar: $code" >&2; exit 92; }
