# One persistent shell. $1 is the exchange directory; $_hr_name is the lane's secret name in it. This shell waits for bash
# and reports how it ended. Bash evaluates each text that the host writes to `c`, so that changes to the shell persist.
# The program is one line, so that bash counts the lines of each text from 1. A text that breaks out of it ends the inner
# loop, or the shell.
_hr_lane=$1/$_hr_name
unset _hr_name
trap : HUP INT QUIT USR1 USR2 ALRM TERM
exec 4>"$_hr_lane/s"
echo "0 up $$" >&4
_hr_program='. "${_hr_lane%/*}/state.sh"; . "$_hr_lane/c"; while :; do while _hr_next "$@"; do if _hr_was; then builtin eval "$_hr_text"; else builtin eval "$_hr_text"; fi <"$_hr_source" >"$_hr_lane/o" 2>"$_hr_errors"; _hr_end "$?" "$@"; done; _hr_end "$?" "$@"; done'
if command -v bash >/dev/null; then
    command eval '_hr_lane=$_hr_lane bash --noprofile --norc -c "$_hr_program" bash </dev/null >/dev/null 2>&1 4>&-'
    echo "0 end $?" >&4
else
    echo "0 bash" >&4
fi
