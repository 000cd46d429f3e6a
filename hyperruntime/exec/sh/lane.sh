# One lane. $1 is the exchange directory; $_hr_name is the lane's secret name in it. No command line shows that name, and
# the commands do not inherit it. For each line on `go` the lane sources `c`, which runs one exec in a subshell and reports
# on `s`. Signals that a command sends to its own process group do not end the lane.
# Names begin with _hr_, so that they do not change a variable that the commands inherit from the container.
_hr_lane=$1/$_hr_name
unset _hr_name
_hr_signalled=
trap _hr_signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
exec 3<"$_hr_lane/go" 4>"$_hr_lane/s"
echo "0 up $$" >&4
while read -r _hr_go <&3 || { [ "$_hr_signalled" ] && _hr_signalled= && continue; }; do
    command . "$_hr_lane/c" || echo "0 fork" >&4
done
