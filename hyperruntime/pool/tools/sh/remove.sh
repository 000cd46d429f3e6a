# Removes a regular file.
[ -n "$leaf" ] || exit 83
[ -e "./$leaf" ] || exit 82
[ -f "./$leaf" ] || exit 84
rm -f "./$leaf" || exit 88
