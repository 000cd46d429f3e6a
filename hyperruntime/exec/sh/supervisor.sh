# The attached shell of a container. POSIX sh; needs no program of the image. $_hr_dir is the exchange directory. It reads
# one request per line from standard input and answers on standard output. When standard input ends (the owner is gone),
# it kills all processes. It never waits in the foreground for a command of the user.
# Names begin with _hr_, so that they do not change a variable that the commands inherit from the container.
_hr_dir=${_hr_dir:-/run/hyperruntime}
exec 2>/dev/null
# `read` fails at the end of input and, in dash, also on a signal: the trap distinguishes the two.
_hr_signalled=
trap _hr_signalled=1 HUP INT QUIT USR1 USR2 ALRM TERM
trap : PIPE # the host may close a lane's `s` while this shell writes to it
_hr_setsid=
command -v setsid >/dev/null && _hr_setsid=setsid

# Set $_hr_as to the command prefix that runs a program as uid $1 and with the groups $2, the first of which is its own;
# empty if no uid is given.
_hr_set_switch() {
    _hr_as=
    case ${1:+$_hr_switch} in
    2) _hr_as="setpriv --reuid $1 --regid ${2%%,*} --groups $2 --inh-caps=-all --no-new-privs" ;;
    3) _hr_as="chroot --userspec=$1:${2%%,*} --groups=$2 --skip-chdir /" ;;
    esac
}

# A lane is a shell that runs one exec at a time. The right side of the pipeline kills the shell that waits for it, so the
# lane becomes a child of init; with `lane &` all its commands would ignore SIGINT. A lane of another user switches to
# that user only after it has left the supervisor, which must not wait for a process that the user could stop.
# $1 is the exchange directory, $2 the program, $3 the prefix that switches the user; $4 makes it test the switch first.
# The name is passed in the environment, which other users cannot read. The process group is reported first, before the
# user has a process that could report a false one. `begun` says that the right side exists: without it the lane is
# reported as not started although its left side runs, so the host hands over a command only after it.
# To open a FIFO for writing waits for a reader: for ever if the owner has just died, and then the supervisor, which waits
# for this, would not see that its input has ended. Opened for reading and writing first, the FIFO has a reader.
_hr_open='[ ! -r "$1/$_hr_name/s" ] || exec 5<>"$1/$_hr_name/s"
exec 4>"$1/$_hr_name/s" 5>&-
'
_hr_begin=$_hr_open'. "$1/$2.sh" | { trap "" PIPE; echo "0 begun" >&4; kill -KILL $$; }'
_hr_enter=$_hr_open'echo "0 group $$" >&4
{
    if [ "$4" ]; then
        $3 /bin/sh -c :
        case $? in 0) ;; 125 | 127) echo "0 user" >&4; exit ;; *) echo "0 fork" >&4; exit ;; esac
    fi
    exec $3 /bin/sh "$1/$2.sh" "$1"
} | { trap "" PIPE; echo "0 begun" >&4; kill -KILL $$; }'
# Make the user kill all its processes in one call, then report whether its uid has none. The test starts a process with a
# limit that allows no other: the kernel also counts processes that fork all the time, and processes of the same uid in
# other containers. The option is -p in dash and -u in other shells.
_hr_clear=$_hr_open'_hr_as=$3
_hr_is_alone() { ( { ulimit -u 0 || ulimit -p 0; } && exec $_hr_as /bin/sh -c : ); }
{
    _hr_is_alone || { $_hr_as /bin/sh -c "kill -KILL -1"; _hr_is_alone; }
    echo "0 left $?" >&4
} | kill -KILL $$'
# Start $1, the name of a program file or `clear`, in lane $2 with mark $3, as uid $4 with the groups $5 if given; $6 makes it test
# the switch first. The mark is set first, so that a process can be killed by it before it becomes another user's.
_hr_start_lane() {
    _hr_set_switch "$4" "$5"
    _hr_new=$2 _hr_mark=$3 _hr_text=$_hr_begin
    [ "$_hr_as" ] && _hr_text=$_hr_enter
    [ "$1" = clear ] && _hr_text=$_hr_clear
    set -- -c "$_hr_text" hyperruntime "$_hr_dir" "$1" "$_hr_as" "$6"
    command eval '(
        ulimit "-$_hr_option" "$_hr_mark"
        export _hr_name="$_hr_new"
        exec $_hr_setsid /bin/sh "$@" </dev/null >/dev/null
    )'
    [ $? -gt 128 ] && return
    set -- "$_hr_dir/$_hr_new/s" # without a fork, see _hr_open
    if [ -r "$1" ]; then echo "0 fork" 5<>"$1" >"$1"; else echo "0 fork" >"$1"; fi
}

# Set $_hr_switch to the way a lane switches users: 0 cannot, because this is not root; 1 cannot, because the image has no
# program for it; 2 setpriv; 3 chroot.
_hr_find_switch() {
    _hr_uid=
    while read -r _hr_key _hr_uid _hr_rest; do
        case $_hr_key in Uid:) break ;; esac
    done </proc/self/status
    _hr_switch=0
    [ "$_hr_uid" = 0 ] || return
    _hr_switch=2
    _hr_set_switch 65533 65533
    $_hr_as /bin/sh -c : && return
    _hr_switch=3
    _hr_set_switch 65533 65533
    $_hr_as /bin/sh -c : || _hr_switch=1
} </dev/null >/dev/null

# Set $_hr_hard to the hard limit $_hr_title of process $1 (a directory of /proc). The kernel's table is also a list of
# shell commands: `Max file locks 1 2 locks`. Sourcing it takes one system call; `read` takes one per byte.
Limit() { :; }
Max() { case "$1 $2" in "$_hr_title") _hr_hard=$4 ;; esac; }
_hr_hard= _hr_title='file locks'
command . /proc/self/limits
if [ "$_hr_hard" ]; then
    _hr_read_hard() { _hr_hard= && command . "$1/limits"; }
else
    _hr_read_hard() {
        while read -r _hr_max _hr_a _hr_b _hr_soft _hr_hard _hr_rest; do
            case "$_hr_a $_hr_b" in "$_hr_title") return ;; esac
        done <"$1/limits"
        _hr_hard=
    }
fi

# Test whether limit $2 can mark processes: this shell can set it with option letter $1, and its hard value leaves room
# for marks (it has at least $3 digits). Sets $_hr_option to the letter.
_hr_choose_limit() {
    _hr_option=$1 _hr_title=$2
    _hr_read_hard /proc/self
    _hr_own_hard=$_hr_hard
    case $_hr_hard in
    unlimited) ;;
    '' | *[!0-9]*) return 1 ;;
    *) [ ${#_hr_hard} -ge "$3" ] || return ;;
    esac
    (ulimit "-$1" 1000000000000 && _hr_read_hard /proc/self && [ "$_hr_hard" != "$_hr_own_hard" ])
}
if ! { _hr_choose_limit x "file locks" 16 || _hr_choose_limit w "file locks" 16 ||
    { _hr_locks=$_hr_own_hard && _hr_choose_limit m "resident set" 19; }; }; then
    echo "unmarked $_hr_locks $_hr_own_hard"
fi

# Set $_hr_newest to the last pid that was assigned in this container; unchanged means that no process was created.
_hr_read_newest() { read -r _hr_a _hr_b _hr_c _hr_d _hr_newest </proc/loadavg; }

# Return whether $_hr_hard is one of $_hr_marks or in one of $_hr_spans.
_hr_is_marked() {
    case $_hr_hard in '' | *[!0-9]*) return 1 ;; esac
    case $_hr_marks in *" $_hr_hard "*) return ;; esac
    for _hr_span in $_hr_spans; do
        [ "$_hr_hard" -ge "${_hr_span%-*}" ] && [ "$_hr_hard" -le "${_hr_span#*-}" ] && return
    done
    return 1
}

# Set $_hr_doomed to the marked living processes among $@, and $_hr_found to their number.
_hr_find_marked() {
    _hr_found=0 _hr_doomed=
    for _hr_process; do
        _hr_read_hard "$_hr_process"
        _hr_is_marked || continue
        _hr_state=
        while read -r _hr_key _hr_state _hr_rest; do
            case $_hr_key in State:) break ;; esac
        done <"$_hr_process/status"
        _hr_doom
    done
}

# The same for processes that have $_hr_user among their four uids, or are marked.
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
        case $_hr_uids in
        *" $_hr_user "*) _hr_doom ;;
        *) [ "$_hr_marks" = ' ' ] || { _hr_read_hard "$_hr_process" && _hr_is_marked && _hr_doom; } ;;
        esac
    done
}

_hr_doom() {
    case $_hr_state in Z | X | '') return ;; esac
    _hr_doomed="$_hr_doomed ${_hr_process#/proc/}"
    _hr_found=$((_hr_found + 1))
}

# Sweep once with $_hr_find. $_hr_left is not 0 if another round is needed: a process was found, or was created meanwhile.
# All are killed in one call, so that dying processes do not slow the search. It does not fork, because it must work when
# the container has reached its pids limit.
_hr_sweep_once() {
    _hr_read_newest
    _hr_first=$_hr_newest
    $_hr_find /proc/[0-9]*
    if [ "$_hr_doomed" ]; then
        kill -STOP $_hr_doomed # so that no shell among them writes that its child was killed
        kill -KILL $_hr_doomed
    fi
    _hr_read_newest
    _hr_left=$_hr_found
    [ "$_hr_newest" = "$_hr_first" ] || _hr_left=$((_hr_left + 1))
}

# Sweep while all processes are stopped, so that none can escape. One sweep is not enough: a fork that was in progress at
# the signal still creates a process, and killed processes take a while to die.
_hr_sweep_frozen() {
    kill -STOP -1
    _hr_rounds=0 _hr_left=1
    while [ "$_hr_left" -ne 0 ] && [ $_hr_rounds -lt 200 ]; do
        _hr_rounds=$((_hr_rounds + 1))
        _hr_sweep_once
    done
    kill -CONT -1
}

# Set the marks and spans to those of the trees $@, each GROUP:MARK or GROUP:LEAST-MOST.
_hr_set_marks() {
    _hr_find=_hr_find_marked _hr_marks=' ' _hr_spans=
    for _hr_tree; do
        case $_hr_tree in
        *-*) _hr_spans="$_hr_spans ${_hr_tree#*:}" ;;
        *) _hr_marks="$_hr_marks${_hr_tree#*:} " ;;
        esac
    done
}

# Kill the trees $@ (group 0: it has no process group of its own). Among many processes a sweep is too slow to catch all,
# so they are stopped meanwhile.
_hr_end_trees() {
    _hr_set_marks "$@"
    for _hr_tree; do
        _hr_group=${_hr_tree%%:*}
        [ "$_hr_setsid" ] && [ "$_hr_group" -gt 1 ] && kill -KILL -- "-$_hr_group"
    done
    set -- /proc/[0-9]*
    if [ "$_hr_freeze" ] || [ $# -gt 150 ]; then _hr_sweep_frozen; else _hr_sweep_once; fi
}

# Send signal $1 to the processes of the other trees, in one call; $_hr_found is their number.
_hr_signal_trees() {
    _hr_number=$1
    shift
    _hr_set_marks "$@"
    _hr_find_marked /proc/[0-9]*
    [ -z "$_hr_doomed" ] || kill "-$_hr_number" $_hr_doomed
}

# After a failed fork bash continues as if the command had ended, so the host must know that this shell is bash.
echo "ready ${_hr_setsid:-shared} $_hr_option $_hr_own_hard ${BASH_VERSION:+bash}"
while :; do
    if ! read -r _hr_verb _hr_one _hr_trees; then
        [ "$_hr_signalled" ] || break
        _hr_signalled= _hr_verb=
    fi
    case $_hr_verb in
    lane | shell | clear) _hr_start_lane $_hr_verb "$_hr_one" $_hr_trees ;;
    switch)
        _hr_find_switch
        echo "done $_hr_one $_hr_switch"
        ;;
    kill | freeze)
        _hr_freeze=${_hr_verb#kill}
        _hr_end_trees $_hr_trees
        echo "done $_hr_one $_hr_left"
        ;;
    signal)
        _hr_signal_trees $_hr_trees
        echo "done $_hr_one $_hr_found"
        ;;
    reap)
        _hr_user=${_hr_trees%% *} _hr_find=_hr_find_owned _hr_spans=
        _hr_marks="${_hr_trees#"$_hr_user"} "
        _hr_sweep_frozen
        echo "done $_hr_one $_hr_left"
        ;;
    ping) echo "done $_hr_one 0" ;;
    esac
done
kill -KILL -1
exit 0
