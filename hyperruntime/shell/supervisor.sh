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

# Set $_hr_as to what runs a program as uid $1 and gid $2, nothing where no uid is given.
_hr_set_switch() {
    _hr_as=
    case ${1:+$_hr_switch} in
    2) _hr_as="setpriv --reuid $1 --regid $2 --clear-groups --inh-caps=-all --no-new-privs" ;;
    3) _hr_as="chroot --userspec=$1:$2 --groups= --skip-chdir /" ;;
    esac
}

# A lane is a shell that runs one exec at a time. The pipeline's right side kills the shell that waits for it, so the
# lane becomes a child of init: unlike `lane &`, which would make every command of it ignore SIGINT for ever.
# $1 is its program, $2 its name, kept out of every command line; $3 and $4 are uid and gid where it shall run as another
# user. That one's process group is told before the user owns a process that could tell another.
_hr_enter='exec 4>"$1/$_hr_name/s"; echo "0 up $$" >&4; exec $2 /bin/sh -c "$3" hyperruntime "$1"'
_hr_start_lane() {
    _hr_set_switch "$3" "$4"
    _hr_begin=". \"\$1/$1.sh\" | kill -KILL \$\$" _hr_new=$2
    if [ "$_hr_as" ]; then
        set -- /bin/sh -c "$_hr_enter" hyperruntime "$_hr_dir" "$_hr_as" "$_hr_begin"
    else
        set -- /bin/sh -c "$_hr_begin" hyperruntime "$_hr_dir"
    fi
    # Held open meanwhile, so that the host does not see an end before it hears of the reason.
    {
        command eval '_hr_name=$_hr_new $_hr_setsid "$@" </dev/null >/dev/null 5>&-'
        _hr_ended=$? _hr_why=fork
        case $_hr_as$_hr_ended in *?125 | *?127) _hr_why=user ;; esac # source: chroot(1), setpriv.c: ids that cannot be set
        [ $_hr_ended -gt 128 ] || echo "0 $_hr_why" >&5
    } 5>"$_hr_dir/$_hr_new/s"
}

# Set $_hr_switch to how a lane becomes another user's: 0 not at all, for this is not root; 1 not by anything that the
# image has; 2 by setpriv; 3 by chroot.
_hr_find_switch() {
    _hr_uid=
    while read -r _hr_key _hr_uid _hr_rest; do
        case $_hr_key in Uid:) break ;; esac
    done </proc/self/status
    _hr_switch=0
    [ "$_hr_uid" = 0 ] || return
    _hr_switch=2
    _hr_set_switch 65534 65534
    $_hr_as /bin/sh -c : && return
    _hr_switch=3
    _hr_set_switch 65534 65534
    $_hr_as /bin/sh -c : || _hr_switch=1
} </dev/null >/dev/null

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

# Tell whether $_hr_hard is one of $_hr_tags or in one of $_hr_spans.
_hr_is_tagged() {
    case $_hr_hard in '' | *[!0-9]*) return 1 ;; esac
    case $_hr_tags in *" $_hr_hard "*) return ;; esac
    for _hr_span in $_hr_spans; do
        [ "$_hr_hard" -ge "${_hr_span%-*}" ] && [ "$_hr_hard" -le "${_hr_span#*-}" ] && return
    done
    return 1
}

# Set $_hr_doomed to the living processes among $@ that are tagged (by bytes of their hard RSS limit, which Linux does
# not act on and nothing can raise again), and $_hr_found to their number.
_hr_find_tagged() {
    _hr_found=0 _hr_doomed=
    for _hr_process; do
        _hr_read_hard "$_hr_process"
        _hr_is_tagged || continue
        _hr_state=
        while read -r _hr_key _hr_state _hr_rest; do
            case $_hr_key in State:) break ;; esac
        done <"$_hr_process/status"
        _hr_doom
    done
}

# The same for those that have $_hr_user among their four uids.
_hr_find_owned() {
    _hr_found=0 _hr_doomed=
    for _hr_process; do
        _hr_state= _hr_uids=
        while read -r _hr_key _hr_a _hr_b _hr_c _hr_d _hr_rest; do
            case $_hr_key in
            State:) _hr_state=$_hr_a ;;
            Uid:) _hr_uids=" $_hr_a $_hr_b $_hr_c $_hr_d " && break ;;
            esac
        done <"$_hr_process/status"
        case $_hr_uids in *" $_hr_user "*) _hr_doom ;; esac
    done
}

_hr_doom() {
    case $_hr_state in Z | X | '') return ;; esac
    _hr_doomed="$_hr_doomed ${_hr_process#/proc/}"
    _hr_found=$((_hr_found + 1))
}

# Sweep once with $_hr_find, and leave in $_hr_left a sign that another round is needed: something was found, or was born
# meanwhile. All are killed at one stroke, so that the dying do not slow the search; no fork, for it must work when no
# process is left to make.
_hr_sweep_once() {
    _hr_read_newest
    _hr_first=$_hr_newest
    $_hr_find /proc/[0-9]*
    [ "$_hr_doomed" ] && kill -KILL $_hr_doomed
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

# End the trees $@, each GROUP:TAG or GROUP:LEAST-MOST (group 0: none of its own). With many processes about there is no keeping up with
# them, so they are stopped for the moment.
_hr_end_trees() {
    _hr_find=_hr_find_tagged _hr_tags=' ' _hr_spans=
    for _hr_tree; do
        _hr_group=${_hr_tree%%:*}
        [ "$_hr_setsid" ] && [ "$_hr_group" -gt 1 ] && kill -KILL -- "-$_hr_group"
        case $_hr_tree in
        *-*) _hr_spans="$_hr_spans ${_hr_tree#*:}" ;;
        *) _hr_tags="$_hr_tags${_hr_tree#*:} " ;;
        esac
    done
    set -- /proc/[0-9]*
    if [ "$_hr_freeze" ] || [ $# -gt 150 ]; then _hr_sweep_frozen; else _hr_sweep_once; fi
}

# Leave 0 in $_hr_left if no process has uid $1, by asking the kernel to start one where no other is allowed: what flees
# from pid to pid is counted all the same, and so are processes of the same uid in other containers. dash calls -p what
# the others call -u.
_hr_ask_alone() {
    _hr_left=1 _hr_user=$1
    _hr_set_switch "$1" "$2"
    command eval '({ ulimit -u 0 || ulimit -p 0; } && exec $_hr_as /bin/sh -c :) </dev/null >/dev/null'
    [ $? -eq 0 ] && [ "$_hr_as" ] && _hr_left=0
}

# bash goes on after a fork# bash goes on after a fork that failed, as if the command had ended; the host must know whom it talks to.
echo "ready ${_hr_setsid:-shared} $_hr_own_hard ${BASH_VERSION:+bash}"
while :; do
    if ! read -r _hr_verb _hr_one _hr_trees; then
        [ "$_hr_signalled" ] || break
        _hr_signalled= _hr_verb=
    fi
    case $_hr_verb in
    lane | shell) _hr_start_lane $_hr_verb "$_hr_one" $_hr_trees ;;
    switch)
        _hr_find_switch
        echo "done $_hr_one $_hr_switch"
        ;;
    kill | freeze)
        _hr_freeze=${_hr_verb#kill}
        _hr_end_trees $_hr_trees
        echo "done $_hr_one $_hr_left"
        ;;
    alone)
        _hr_ask_alone $_hr_trees
        echo "done $_hr_one $_hr_left"
        ;;
    reap)
        _hr_user=${_hr_trees%% *} _hr_find=_hr_find_owned
        _hr_sweep_frozen
        echo "done $_hr_one $_hr_left"
        ;;
    ping) echo "done $_hr_one 0" ;;
    esac
done
kill -KILL -1
exit 0
