# Writes a regular file to standard output, at most $limit bytes of it.
[ -n "$leaf" ] || exit 83
[ -e "./$leaf" ] || exit 82
[ -f "./$leaf" ] || exit 84
[ -r "./$leaf" ] || exit 85
exec head -c "$limit" <"./$leaf"
