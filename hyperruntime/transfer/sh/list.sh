# Writes the names in the directory $1, each followed by NUL.
[ -e "$1" ] || { why "$1"; exit; }
[ -d "$1" ] || exit 90
[ -r "$1" ] && cd -P -- "$1" || exit 85
for name in * .*; do
  case $name in
  . | ..) continue ;;
  '*' | '.*') [ -e "./$name" ] || [ -L "./$name" ] || continue ;;
  esac
  printf '%s\0' "$name"
done
