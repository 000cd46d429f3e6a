# Checks that the path does not exist, so that a new file can be created; prints its name below the deepest directory.
[ -n "$leaf" ] || exit 83
[ ! -e "./$leaf" ] || exit 94
printf %s "$leaf"
