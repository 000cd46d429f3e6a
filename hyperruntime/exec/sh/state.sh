# The functions of a shell that lasts; for bash. Streams to the host are opened for the moment they are needed: nothing that
# a text closes, or leaves open, is ours. Whatever options a text sets must not stop us, hence every `|| builtin :`.
# Names begin with _hr_, for all others are the user's.
builtin declare +x _hr_lane
_hr_open= _hr_trace= _hr_code=0

# Wait for the next text: its number, the limit and value that mark what it starts, the exit code that it sees in $?, and its input.
_hr_next() {
    [[ $_hr_open ]] && _hr_end 0 "$@" # it said `continue`
    while :; do
        IFS=' ' builtin read -r _hr_number _hr_limit _hr_mark _hr_code _hr_source <"$_hr_lane/go" && builtin break
        [[ $? -gt 128 ]] || builtin exit 0 # a trap or $TMOUT is no end
    done
    IFS= builtin read -r -d '' _hr_text <"$_hr_lane/c" || builtin :
    builtin ulimit "$_hr_limit" "$_hr_mark" || builtin :
    [[ $_hr_trace ]] && _hr_text="set -x; $_hr_text"
    [[ $_hr_source == /dev/null ]] || _hr_source=$_hr_lane/i
    _hr_open=1
}

# Begin inside the text's own streams.
_hr_was() {
    [[ $_hr_source == /dev/null ]] || builtin printf '%s in\n' "$_hr_number" >"$_hr_lane/s"
    builtin return "$_hr_code"
}

# Tell how a text ended, and what it left.
_hr_end() {
    [[ $- == *x* ]] && _hr_trace=1 || _hr_trace=
    builtin set +x
    [[ $_hr_open ]] && builtin printf '%s %s\n' "$_hr_number" "$1" >"$_hr_lane/s"
    _hr_open= _hr_text=
    builtin shift
    _hr_state "$@" >"$_hr_lane/d" || builtin :
}

_hr_leave() {
    [[ $- == *x* ]] && _hr_trace=1 || _hr_trace=
    builtin set +x
    _hr_open= _hr_text=
    _hr_state "$@" >"$_hr_lane/d"
}

# Write what makes another bash like this one. Options come last: they might stop what is read before.
_hr_state() {
    {
        builtin declare -p
        builtin declare -f
        builtin declare -F
        builtin alias -p
        builtin umask -p
        builtin printf 'builtin cd -- %q\n' "$PWD"
        builtin printf 'builtin set --'
        [[ $# -eq 0 ]] || builtin printf ' %q' "$@"
        builtin printf '\n'
        builtin trap -p
        builtin shopt -p
        builtin set +o
        builtin printf '# end %s %s\n' "${_hr_lane##*/}" "${_hr_number:-0}"
    } 2>/dev/null || builtin :
}
