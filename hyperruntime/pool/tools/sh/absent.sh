# Says whether nothing is there, so that a new file can be.
[ -n "$leaf" ] || exit 83
[ ! -e "./$leaf" ] || exit 94
