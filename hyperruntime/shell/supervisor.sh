# Runs inside a container as the attached shell; POSIX sh, needs no program of the image. $HR_DIR is the exchange
# directory. Reads one request a line from standard input, answers on standard output, and when standard input ends
# (the owner is gone) ends everything. It never waits in the foreground for a command of the user.
HR_DIR=${HR_DIR:-/run/hyperruntime}
exec 2>/dev/null
# `read` fails at the end of input and, in dash, alike when a signal comes: the trap tells them apart.
signalled=
trap signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
HR_SETSID=
command -v setsid >/dev/null && HR_SETSID=setsid

# A lane is a shell that runs one exec at a time. The pipeline's right side kills the shell that waits for it, so the
# lane becomes a child of init: unlike `lane &`, which would make every command of it ignore SIGINT for ever.
start_lane() {
    command eval '$HR_SETSID /bin/sh -c ". \"\$1/lane.sh\" | kill -KILL \$\$" hyperruntime "$HR_DIR" "$1" </dev/null >/dev/null'
    [ $? -gt 128 ] || echo "0 fork" >"$HR_DIR/$1/s"
}

# Set $hard to the hard RSS limit of process $1 (a directory of /proc), in bytes. The kernel's table is itself a list
# of shell commands: `Max resident set 1 2 bytes`. Sourcing it costs one read; `read` costs a system call a byte.
Limit() { :; }
Max() { case "$1 $2" in "resident set") hard=$4 ;; esac; }
hard=
command . /proc/self/limits
if [ "$hard" ]; then
    read_hard() { hard= && command . "$1/limits"; }
else
    read_hard() {
        while read -r max what set soft hard rest; do
            case "$max $what" in "Max resident") return ;; esac
        done <"$1/limits"
        hard=
    }
fi
read_hard /proc/self
HR_HARD=$hard

# Set $newest to the pid that was given out last in this container: unchanged means that nothing was born.
read_newest() { read -r _ _ _ _ newest </proc/loadavg; }

# Kill every process among $2... that carries the tag $1 (bytes of its hard RSS limit, which Linux does not act on and
# nothing can raise again), and count them in $found. All at one stroke, so that the dying do not slow the search; no
# fork, for it must work when no process is left to make.
kill_tagged() {
    found=0 doomed= tag=$1
    shift
    for process; do
        read_hard "$process"
        [ "$hard" = "$tag" ] || continue
        state=
        while read -r key state rest; do
            case $key in State:) break ;; esac
        done <"$process/status"
        case $state in Z | X) continue ;; esac
        doomed="$doomed ${process#/proc/}"
        found=$((found + 1))
    done
    [ "$doomed" ] && kill -KILL $doomed
}

# End what carries the tag $1, and leave in $left a sign that another round is needed: something was found, or was born
# while we looked. With many processes about there is no keeping up with them: all are stopped for the moment.
sweep() {
    read_newest
    first=$newest tag=$1
    set -- /proc/[0-9]*
    if [ $# -gt 150 ]; then
        sweep_frozen "$tag"
        return
    fi
    kill_tagged "$tag" "$@"
    read_newest
    left=$((found + newest - first))
}

# Stop everything for the moment of a sweep: exact, whatever the processes do.
sweep_frozen() {
    kill -STOP -1
    kill_tagged "$1" /proc/[0-9]*
    kill -CONT -1
    left=0
}

echo "ready ${HR_SETSID:-shared} $HR_HARD"
while :; do
    if ! read -r verb one two three; then
        [ "$signalled" ] || break
        signalled= verb=
    fi
    case $verb in
    lane) start_lane "$one" ;;
    kill)
        [ "$HR_SETSID" ] && [ "$one" -gt 1 ] && kill -KILL -- "-$one"
        sweep "$two"
        echo "killed $three $left"
        ;;
    freeze)
        sweep_frozen "$two"
        echo "killed $three $left"
        ;;
    ping) echo "pong $one" ;;
    esac
done
kill -KILL -1
exit 0
