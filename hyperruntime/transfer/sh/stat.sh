# Writes the facts of the path $2; $1 is empty, or -L to follow a link.
need stat
if [ -e "$2" ] || [ -z "$1" -a -L "$2" ]; then exec stat $1 -c '%f %h %u %g %s %Y' -- "$2"; fi
[ "$1" ] || [ ! -L "$2" ] || exit 85
why "$2"
