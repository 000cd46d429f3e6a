# Writes $size bytes from standard input to a file, atomically: writes $temporary beside it, then renames.
[ -n "$leaf" ] || exit 83
case $leaf in
*/*)
  mkdir -p "./${leaf%/*}" && cd -P "./${leaf%/*}" || exit 88
  leaf=${leaf##*/}
  ;;
esac
if [ -e "./$leaf" ]; then
  [ -f "./$leaf" ] || exit 84
  [ -w "./$leaf" ] || exit 85
  before=$(stat -c '%u:%g %a' "./$leaf") || exit 88
else
  before=
fi
trap 'rm -f "./$temporary"' EXIT
if [ -n "$append" ] && [ -n "$before" ]; then
  cat "./$leaf" - >"./$temporary" || exit 88
  size=$((size + $(wc -c <"./$leaf"))) || exit 88
else
  cat >"./$temporary" || exit 88
fi
[ "$(wc -c <"./$temporary")" -eq "$size" ] || exit 89
if [ -n "$before" ]; then
  chown "${before% *}" "./$temporary" 2>/dev/null
  chmod "${before#* }" "./$temporary" || exit 88
fi
mv -f "./$temporary" "./$leaf" || exit 88
trap - EXIT
[ -n "$before" ] || echo new
