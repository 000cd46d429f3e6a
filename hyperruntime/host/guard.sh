# The guard of an owner: it outlives a killed owner and removes what that left. $1 is the owner's private directory, the
# other arguments are the command that removes its containers from the engine. It waits at a pipe of the owner. At
# end-of-file it first kills the processes in the containers itself, at once and without the engine: they are those that
# see a mount of a directory of theirs in the private directory. Then it calls the engine, which on a busy machine may take
# many seconds or fail: again until it reports success while no program on the host holds or starts a container of the
# owner. Design: docs/design/containers.md#owners.
read -r word && [ "$word" = done ] && exit 0
private=$1
# It does not match the command line of the search itself. A private directory has a name of plain characters.
pattern="${private##*/}/hyperruntime-[0-9a-f]"
shift

find_processes() { # print the pids for which the file $1 in /proc/PID names a container of this owner
    for found in $(grep -ls -- "$pattern" /proc/[0-9]*/"$1"); do
        found=${found#/proc/}
        echo "${found%%/*}"
    done
}
kill_containers() { # if the guard sees such a mount itself, it is no sign of a container
    grep -qs -- "$pattern" "/proc/$$/mountinfo" && return
    for pid in $(find_processes mountinfo); do kill -KILL "$pid"; done
}
wait_for_programs() { # about 3 s
    tries=30
    while kill_containers; [ "$(find_processes cmdline)" ] && [ "$tries" -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.1 || { sleep 1 && tries=$((tries - 9)); }
    done
}

round=0 good=0
while [ "$round" -lt 60 ]; do # half an hour
    round=$((round + 1))
    kill_containers
    "$@"
    case $? in
    126 | 127) break ;; # there is no such program any more
    0)
        good=$((good + 1))
        [ "$good" -lt 3 ] && [ "$(find_processes cmdline)" ] || break # after three times, they are programs of others
        ;;
    *) sleep "$round" ;;
    esac
    wait_for_programs
done
if [ -r "$private/also" ]; then
    while read -r directory; do rm -rf -- "$directory"; done <"$private/also"
fi
rm -rf -- "$private"
