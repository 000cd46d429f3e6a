# Stores files. Standard input has for each file: a line `LINES SIZE MODE`, its path in so many lines, its content, and
# the line `end`. For each file a line with a code is written. $1 is the name of temporary files; $2 is not empty if
# missing directories are made. The size `-` removes what an ended call left. With the size `env`, the content is
# $hyperruntime_content, and neither it nor `end` follows: the shell writes it without another program.
#
# A new content is written beside the file and renamed. If that cannot be, it is written into the file: a device, a pipe,
# a mount point, a file of another user, a directory without write permission.
temporary=$1 parents=$2 mask= newline='
'
exec 6>&1 >&2 # only codes go to standard output
need mv rm
[ "${hyperruntime_content+set}" ] || need dd

# Copy the content to the descriptor 5.
copy() {
  if [ "$size" = env ]; then
    copied=1
    printf %s "$hyperruntime_content" 2>/dev/null >&5 && return
    printf %s "$hyperruntime_content" | dd >&5 # it says why, which not all shells do
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
    [ -f "./$leaf" ] && old=$(stat -c '%a %u:%g' -- "./$leaf") || { into; return; }
    [ "$mode" != - ] || mode=${old% *}
  fi
  if [ "$mode" = - ]; then beside; return; fi
  bits=$((0$mode))
  [ -n "$mask" ] || find_mask
  umask $((7 & ~(bits >> 6)))$((7 & ~(bits >> 3)))$((7 & ~bits)) # nobody may read it before it has its mode
  beside
  code=$?
  umask "$mask"
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
  if [ -n "$old" ] && ! [ -O "./$leaf" -a -G "./$leaf" -a -G "./$temporary" ]; then
    chown "${old#* }" "./$temporary" 2>/dev/null || { over; return; }
  fi
  set_mode new "./$temporary" || return 88
  mv -f -- "./$temporary" "./$leaf" 2>/dev/null || { over; return; }
  trap - EXIT # else the shell would start rm for nothing
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
  cat "./$temporary" >"./$leaf" || return 88
  set_mode old "./$leaf" 2>/dev/null
  rm -f "./$temporary"
}

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
