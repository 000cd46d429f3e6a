# Stores files. Standard input has for each file: a line `LINES SIZE MODE`, its path in so many lines, its content, and
# the line `end`. For each file a line with a code is written. $1 is the name of temporary files; $2 is not empty if
# missing directories are made. The size `-` removes what an ended call left. With a mode $3 and a path $4 there is only
# this file, and $hyperruntime_content is a format for printf, so that the shell writes the content itself.
#
# A new content is written beside the file and renamed. If that cannot be, it is written into the file: a device, a pipe,
# a mount point, a file of another user, a directory without write permission.
temporary=$1 parents=$2 single=$4 mask= newline='
'
exec 6>&1 >&2 # only codes go to standard output
need mv rm
[ "$single" ] || need dd

# Copy the content to the descriptor 5.
copy() {
  if [ "$size" = env ]; then
    copied=1
    printf "$hyperruntime_content" 2>/dev/null >&5 && return
    printf "$hyperruntime_content" | dd >&5 # it says why, which not all shells do
    exit 88
  fi
  whole=$((size / 1048576)) rest=$((size % 1048576)) copied=1
  [ "$whole" -eq 0 ] || dd bs=1048576 count="$whole" iflag=fullblock >&5 || exit 88
  [ "$rest" -eq 0 ] || dd bs="$rest" count=1 iflag=fullblock >&5 || exit 88
  IFS= read -r end && [ "$end" = end ] || exit 89
}

# Find the directory and the name of the path.
enter() {
  [ ! -d "$at" ] || return 83
  if [ -L "$at" ]; then
    real=$(readlink -f -- "$at" && echo x) || return 82
    at=${real%??}
  fi
  up=${at%/*}/ leaf=${at##*/}
  if [ -z "$leaf" ]; then why "$at"; return; fi
  if [ ! -d "$up" ] && [ -n "$parents" ] && ! [ -e "${up%/}" ]; then
    mkdir -p -- "$up" || return 88
  fi
  [ -d "$up" ] || { why "$at"; return; }
  cd -P -- "$up" || return 85
}

store() {
  enter || return
  if [ "$size" = - ]; then rm -f "./$temporary"; return; fi
  old=
  if [ -e "./$leaf" ]; then
    [ -w "./$leaf" ] || return 85
    [ -f "./$leaf" ] && old=yes || { into; return; }
  fi
  if [ "$mode$old" = - ]; then beside; return; fi
  bits=$((0${mode#-}))
  [ "$mode" != - ] || bits=$((0600)) # until it has that of the file that it replaces
  [ -n "$mask$single" ] || find_mask
  umask $((7 & ~(bits >> 6)))$((7 & ~(bits >> 3)))$((7 & ~bits)) # nobody may read it before it has its mode
  beside
  code=$?
  [ -n "$single" ] || umask "$mask"
  return "$code"
}

# Set $mask to the umask; without a fork where /proc has it.
find_mask() {
  { read -r mask && read -r key mask; } </proc/self/status
  [ "$key" = Umask: ] || mask=$(umask)
}

# Give the file $2 its mode, unless it is new and the umask did.
set_mode() {
  [ "$mode" = - ] || [ $((bits & 07111)) -eq 0 -a "$1" = new ] || chmod "$mode" "$2"
}

# Write a temporary file, then rename it.
beside() {
  { command exec 5>"./$temporary"; } 2>/dev/null || { into; return; }
  trap 'rm -f "./$temporary"' EXIT
  copy
  exec 5>&-
  [ -z "$old" ] || keep 2>/dev/null || { over; return; }
  set_mode new "./$temporary" || return 88
  mv -f -- "./$temporary" "./$leaf" 2>/dev/null || { over; return; }
  trap - EXIT # else the shell would start rm for nothing
}

# Give the temporary file the owner of the file that it replaces and, without another mode, its mode. Not all chmod have
# --reference, but where they do they start faster than stat.
keep() {
  if ! [ -O "./$leaf" -a -G "./$leaf" -a -G "./$temporary" ]; then
    had=$(stat -c %u:%g -- "./$leaf") && chown "$had" "./$temporary" || return
  fi
  [ "$mode" != - ] || chmod --reference="./$leaf" "./$temporary" ||
    { had=$(stat -c %a -- "./$leaf") && chmod "$had" "./$temporary"; }
}

# Write into the file.
into() {
  command exec 5>"./$leaf" || return 88
  copy
  exec 5>&-
  [ ! -f "./$leaf" ] || set_mode old "./$leaf" || return 88
}

# Write the complete temporary file into the file.
over() {
  cat <"./$temporary" >"./$leaf" || return 88 # opened before the other is emptied
  set_mode old "./$leaf" 2>/dev/null
  rm -f "./$temporary"
}

if [ "$single" ]; then
  size=env mode=$3 at=$4
  store
  code=$?
  echo "$code" >&6
  printf '\0' >&2
  exit
fi
while IFS=' ' read -r lines size mode; do
  IFS= read -r at
  while [ "$lines" -gt 1 ]; do
    IFS= read -r more
    at=$at$newline$more lines=$((lines - 1))
  done
  copied=
  store
  code=$?
  if [ -z "$copied" ] && [ "$size" != - ]; then exec 5>/dev/null && copy && exec 5>&-; fi
  echo "$code" >&6
  printf '\0' >&2
done
