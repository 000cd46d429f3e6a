# Runs inside a container as the attached shell; POSIX sh, needs no program of the image. $_hr_dir is the exchange
# directory. Reads one request a line from standard input, answers on standard output, and when standard input ends
# (the owner is gone) ends everything. It never waits in the foreground for a command of the user.
# Names begin with _hr_, for whatever the environment of the container holds reaches the commands as it is.
_hr_dir=${_hr_dir:-/run/hyperruntime}
exec 2>/dev/null
# `read` fails at the end of input and, in dash, alike when a signal comes: the trap tells them apart.
_hr_signalled=
trap _hr_signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
_hr_setsid=
command -v setsid >/dev/null && _hr_setsid=setsid

# A lane is a shell that runs one exec at a time. The pipeline's right side kills the shell that waits for it, so the
# lane becomes a child of init: unlike `lane &`, which would make every command of it ignore SIGINT for ever.
_hr_start_lane() {
    command eval '$_hr_setsid /bin/sh -c ". \"\$1/lane.sh\" | kill -KILL \$\$" hyperruntime "$_hr_dir" "$1" </dev/null >/dev/null'
    [ $? -gt 128 ] || echo "0 fork" >"$_hr_dir/$1/s"
}

# Set $_hr_hard to the hard RSS limit of process $1 (a directory of /proc), in bytes. The kernel's table is itself a
# list of shell commands: `Max resident set 1 2 bytes`. Sourcing it costs one read; `read` costs a system call a byte.
Limit() { :; }
Max() { case "$1 $2" in "resident set") _hr_hard=$4 ;; esac; }
_hr_hard=
command . /proc/self/limits
if [ "$_hr_hard" ]; then
    _hr_read_hard() { _hr_hard= && command . "$1/limits"; }
else
    _hr_read_hard() {
        while read -r _hr_max _hr_what _hr_set _hr_soft _hr_hard _hr_rest; do
            case "$_hr_max $_hr_what" in "Max resident") return ;; esac
        done <"$1/limits"
        _hr_hard=
    }
fi
_hr_read_hard /proc/self
_hr_own_hard=$_hr_hard

# Set $_hr_newest to the pid that was given out last in this container: unchanged means that nothing was born.
_hr_read_newest() { read -r _hr_a _hr_b _hr_c _hr_d _hr_newest </proc/loadavg; }

# Kill every living process among $@ that carries one of $_hr_tags (bytes of its hard RSS limit, which Linux does not
# act on and nothing can raise again), and count them in $_hr_found. All at one stroke, so that the dying do not slow
# the search; no fork, for it must work when no process is left to make.
_hr_kill_tagged() {
    _hr_found=0 _hr_doomed=
    for _hr_process; do
        _hr_read_hard "$_hr_process"
        [ "$_hr_hard" ] || continue
        case $_hr_tags in *" $_hr_hard "*) ;; *) continue ;; esac
        _hr_state=
        while read -r _hr_key _hr_state _hr_rest; do
            case $_hr_key in State:) break ;; esac
        done <"$_hr_process/status"
        case $_hr_state in Z | X | '') continue ;; esac
        _hr_doomed="$_hr_doomed ${_hr_process#/proc/}"
        _hr_found=$((_hr_found + 1))
    done
    [ "$_hr_doomed" ] && kill -KILL $_hr_doomed
}

# Sweep once, and leave in $_hr_left a sign that another round is needed: something was found, or was born meanwhile.
_hr_sweep_once() {
    _hr_read_newest
    _hr_first=$_hr_newest
    _hr_kill_tagged /proc/[0-9]*
    _hr_read_newest
    _hr_left=$_hr_found
    [ "$_hr_newest" = "$_hr_first" ] || _hr_left=$((_hr_left + 1))
}

# Stop everything while sweeping, which leaves nowhere to run to. One sweep is not enough: a fork that was under way
# when the signal came still gives birth, and what was killed takes a while to die.
_hr_sweep_frozen() {
    kill -STOP -1
    _hr_rounds=0 _hr_left=1
    while [ "$_hr_left" -ne 0 ] && [ $_hr_rounds -lt 200 ]; do
        _hr_rounds=$((_hr_rounds + 1))
        _hr_sweep_once
    done
    kill -CONT -1
}

# End the trees $@, each GROUP:TAG (group 0: none of its own). With many processes about there is no keeping up with
# them, so they are stopped for the moment.
_hr_end_trees() {
    _hr_tags=' '
    for _hr_tree; do
        _hr_group=${_hr_tree%%:*}
        [ "$_hr_setsid" ] && [ "$_hr_group" -gt 1 ] && kill -KILL -- "-$_hr_group"
        _hr_tags="$_hr_tags${_hr_tree#*:} "
    done
    set -- /proc/[0-9]*
    if [ "$_hr_freeze" ] || [ $# -gt 150 ]; then _hr_sweep_frozen; else _hr_sweep_once; fi
}

# bash goes on after a fork that failed, as if the command had ended; the host must know whom it talks to.
echo "ready ${_hr_setsid:-shared} $_hr_own_hard ${BASH_VERSION:+bash}"
while :; do
    if ! read -r _hr_verb _hr_one _hr_trees; then
        [ "$_hr_signalled" ] || break
        _hr_signalled= _hr_verb=
    fi
    case $_hr_verb in
    lane) _hr_start_lane "$_hr_one" ;;
    kill | freeze)
        _hr_freeze=${_hr_verb#kill}
        _hr_end_trees $_hr_trees
        echo "done $_hr_one $_hr_left"
        ;;
    ping) echo "done $_hr_one 0" ;;
    esac
done
kill -KILL -1
exit 0
