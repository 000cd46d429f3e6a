# Writes the facts of the path $2; $1 is empty, or -L to follow a link.
need stat
stat $1 -c '%f %h %u %g %s %Y' -- "$2" && exit
[ "$1" ] || [ ! -L "$2" ] || exit 85
why "$2"
