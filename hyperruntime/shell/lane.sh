# One lane: $1 is the exchange directory, $2 the lane's number. Each byte line on `go` means: source `c`, which runs one
# exec in a subshell and reports on `s`. Signals a command sends to its own group do not end the lane.
HR_LANE=$1/$2
signalled=
trap signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
exec 3<"$HR_LANE/go" 4>"$HR_LANE/s"
echo "0 up $$" >&4
while read -r _ <&3 || { [ "$signalled" ] && signalled= && continue; }; do
    command . "$HR_LANE/c" || echo "0 fork" >&4
done
