# Checks that the path does not exist, so that a new file can be created.
[ -n "$leaf" ] || exit 83
[ ! -e "./$leaf" ] || exit 94
