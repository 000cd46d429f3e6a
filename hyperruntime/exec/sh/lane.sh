# One lane: $1 is the exchange directory, $_hr_name the lane's secret name in it, which no command line shows and which
# its commands do not inherit. Each line on `go` means: source `c`, which runs one exec in a subshell and reports on `s`.
# Signals that a command sends to its own group do not end the lane.
# Names begin with _hr_, for whatever the environment of the container holds reaches the commands as it is.
_hr_lane=$1/$_hr_name
unset _hr_name
_hr_signalled=
trap _hr_signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
exec 3<"$_hr_lane/go" 4>"$_hr_lane/s"
echo "0 up $$" >&4
while read -r _hr_go <&3 || { [ "$_hr_signalled" ] && _hr_signalled= && continue; }; do
    command . "$_hr_lane/c" || echo "0 fork" >&4
done
