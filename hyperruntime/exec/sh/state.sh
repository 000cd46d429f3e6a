# The functions of a persistent shell; for bash. Streams to the host are open only while they are used, so that a text
# cannot close or keep them. Options that a text sets (such as `set -e`) must not end these functions, hence `|| builtin :`.
# Names begin with _hr_; all other names belong to the user.
builtin declare +x _hr_lane
_hr_open= _hr_trace= _hr_code=0

# Wait for the next text. The line before it holds: number, limit option and value of the mark, exit code for $?, stream
# of the errors, and input. bash reads a FIFO byte by byte, but a file at once, so that line is in the file.
_hr_next() {
    [[ $_hr_open ]] && _hr_end 0 "$@" # the text ran `continue`
    while :; do
        builtin read -r _hr_text <"$_hr_lane/go" && builtin break
        [[ $? -gt 128 ]] || builtin exit 0 # a status above 128 is a trap or $TMOUT, not the end
    done
    {
        IFS=' ' builtin read -r _hr_number _hr_limit _hr_mark _hr_code _hr_errors _hr_source
        IFS= builtin read -r -d '' _hr_text || builtin :
    } <"$_hr_lane/c"
    builtin ulimit "$_hr_limit" "$_hr_mark" || builtin :
    [[ $_hr_trace ]] && _hr_text="set -x; $_hr_text"
    _hr_errors=$_hr_lane/$_hr_errors
    [[ $_hr_source == /dev/null ]] || _hr_source=$_hr_lane/i
    _hr_open=1
}

# Start a text, inside its own streams.
_hr_was() {
    [[ $_hr_source == /dev/null ]] || builtin printf '%s in\n' "$_hr_number" >"$_hr_lane/s"
    builtin return "$_hr_code"
}

# Report the exit code of a text, and write the state that it left.
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

# Write a script that makes another bash like this one. Options come last, because they could stop the lines before them.
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
