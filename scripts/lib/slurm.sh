# shellcheck shell=bash
# Slurm with eight nodes on this machine, for tests: Debian's packages, with daemons that this script starts and ends.
# Needs common.sh. For root on Debian.
#
# All its files are in $SLURM_PLACE, and it has its own ports. It does not read or write the files of another cluster in
# /etc, and the packages start no service.

readonly SLURM_PLACE=/run/hyperruntime-slurm
readonly SLURM_COUNT=${SLURM_COUNT:-8}       # nodes; at least four
mapfile -t SLURM_NODES < <(seq --format 'n%g' "$SLURM_COUNT")
readonly SLURM_NODES SLURM_PORT=17000 # of the control daemon; the nodes have the next ones

# prepare_slurm: install the missing programs.
prepare_slurm() {
    if find_program slurmctld && find_program slurmd && find_program srun && find_program munged; then return; fi
    is_root && has_apt || die "only root on Debian can install Slurm (slurmctld, slurmd, slurm-client, munge) for the tests."
    without_services install_packages slurmctld slurmd slurm-client munge
}

# without_services COMMAND...: run a command; packages that it installs start no service. Source: policy-rc.d(8).
without_services() {
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e "$policy" ]; then
        made=yes
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    # A subshell: a failed installation ends only this shell, and the policy is still removed.
    (
        trap '[ -z "$made" ] || rm -f "$policy"' EXIT
        "$@"
    )
}

# start_slurm: end the daemons of a killed run, start new ones and wait until all nodes are idle.
start_slurm() {
    local node
    stop_slurm
    say "starting Slurm with ${#SLURM_NODES[@]} nodes; its files are in $SLURM_PLACE"
    write_slurm_files
    setpriv --reuid munge --regid munge --clear-groups munged --key-file="$SLURM_PLACE/munge/key" \
        --socket="$SLURM_PLACE/munge/socket" --pid-file="$SLURM_PLACE/munge/munged.pid" \
        --log-file="$SLURM_PLACE/munge/log" --seed-file="$SLURM_PLACE/munge/seed" \
        || die "munged does not start; see $SLURM_PLACE/munge/log."
    slurmctld -f "$SLURM_PLACE/slurm.conf" || die "slurmctld does not start; see $SLURM_PLACE/control/slurmctld.log."
    for node in "${SLURM_NODES[@]}"; do
        slurmd -N "$node" -f "$SLURM_PLACE/slurm.conf" || die "slurmd does not start; see $SLURM_PLACE/slurmd-$node.log."
    done
    for _ in $(seq "$((120 + 2 * SLURM_COUNT))"); do
        if [ "$(SLURM_CONF=$SLURM_PLACE/slurm.conf sinfo --noheader --Node --partition=wide --states=idle 2>/dev/null | wc -l)" \
            = "${#SLURM_NODES[@]}" ]; then return; fi
        sleep 0.5
    done
    die "Slurm's nodes do not become idle; see the logs in $SLURM_PLACE."
}

# write_slurm_files: write the configuration and make the directories with the owners that the daemons need. Jobs get one
# of the first four nodes, in the partition "wide" any node. A job of the partition "urgent" preempts one of the others,
# which gets SIGTERM and 30 s later SIGKILL (KillWait, slurm.conf(5)).
write_slurm_files() {
    local host
    host=$(hostname -s)
    install -d -m 0755 "$SLURM_PLACE"
    install -d -m 0755 -o munge -g munge "$SLURM_PLACE/munge"
    install -d -m 0755 -o slurm -g slurm "$SLURM_PLACE/state" "$SLURM_PLACE/control"
    install -d -m 0755 "$SLURM_PLACE/spool"
    head -c 1024 /dev/urandom | install -m 0400 -o munge -g munge /dev/stdin "$SLURM_PLACE/munge/key"
    cat >"$SLURM_PLACE/slurm.conf" <<CONF
ClusterName=hyperruntime
SlurmctldHost=$host(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$SLURM_PLACE/munge/socket
SlurmctldPort=$SLURM_PORT
SlurmctldPidFile=$SLURM_PLACE/control/slurmctld.pid
SlurmctldLogFile=$SLURM_PLACE/control/slurmctld.log
StateSaveLocation=$SLURM_PLACE/state
SlurmdPidFile=$SLURM_PLACE/slurmd-%n.pid
SlurmdLogFile=$SLURM_PLACE/slurmd-%n.log
SlurmdSpoolDir=$SLURM_PLACE/spool/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
PropagateResourceLimits=NONE
GresTypes=gpu
MpiDefault=none
NodeName=n[1-$SLURM_COUNT] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((SLURM_PORT + 1))-$((SLURM_PORT + SLURM_COUNT))] CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
SchedulerParameters=bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=wide Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
CONF
    # Two devices that every machine has: Slurm sets CUDA_VISIBLE_DEVICES to their numbers.
    printf "NodeName=n[1-$SLURM_COUNT] Name=gpu File=%s\n" /dev/null /dev/zero >"$SLURM_PLACE/gres.conf"
}

# lose_nodes: lose each node whose name the user of the tests writes to $SLURM_PLACE/lose, as when its power fails; until
# "end" is written there.
lose_nodes() {
    local node
    rm -f "$SLURM_PLACE/lose"
    mkfifo --mode 0600 "$SLURM_PLACE/lose"
    chown "$TEST_USER" "$SLURM_PLACE/lose"
    export SLURM_CONF=$SLURM_PLACE/slurm.conf
    while read -r node && [ "$node" != end ]; do
        case " ${SLURM_NODES[*]} " in *" $node "*) lose_node "$node" ;; esac
    done <>"$SLURM_PLACE/lose"
}

# lose_node NAME: kill the daemon of a node and all processes of its jobs at the same time. The node boots later: for 15 s,
# the control daemon takes jobs that it misses for new ones (MessageTimeout, slurm.conf(5), and 5 s).
lose_node() {
    local daemon job tops all more
    daemon=$(cat "$SLURM_PLACE/slurmd-$1.pid")
    tops=$daemon
    for job in $(squeue --noheader --nodelist="$1" --states=running --format=%i); do
        tops+=" $(pgrep --full "^slurmstepd: \\[$job\\.")"
    done
    # shellcheck disable=SC2086
    more=$(list_trees $tops | sort -u)
    while [ "$more" != "${all-}" ]; do # a process that is stopped starts no other one
        all=$more
        # shellcheck disable=SC2086
        kill -STOP $all 2>/dev/null
        # shellcheck disable=SC2086
        more=$(list_trees $all | sort -u)
    done
    # shellcheck disable=SC2086
    kill -KILL $all 2>/dev/null
    {
        sleep 20
        [ "$(cat "$SLURM_PLACE/slurmd-$1.pid" 2>/dev/null)" != "$daemon" ] || slurmd -b -N "$1" -f "$SLURM_PLACE/slurm.conf"
    } &
}

# list_trees PID...: print processes, their children, and the children of those.
list_trees() {
    local pid
    for pid in "$@"; do
        echo "$pid"
        # shellcheck disable=SC2046
        list_trees $(pgrep --parent "$pid")
    done
}

# end_jobs: end all jobs and wait for their end; do nothing if no control daemon answers.
end_jobs() {
    export SLURM_CONF=$SLURM_PLACE/slurm.conf
    timeout 10 scancel --signal=KILL --full --state=RUNNING 2>/dev/null || return 0
    timeout 10 scancel --state=PENDING 2>/dev/null || true
    for _ in $(seq 60); do
        if [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ]; then break; fi
        sleep 0.5
    done
}

# stop_slurm: end all jobs, end our daemons by their pid files, and remove the files; do nothing if there are none.
stop_slurm() {
    local file pid
    if [ -e "$SLURM_PLACE/slurm.conf" ]; then (end_jobs); fi
    for file in "$SLURM_PLACE"/slurmd-*.pid "$SLURM_PLACE"/control/slurmctld.pid "$SLURM_PLACE"/munge/munged.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        case $(cat "/proc/$pid/comm" 2>/dev/null) in slurmd | slurmctld | munged) ;; *) continue ;; esac
        kill "$pid"
        timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
    done
    rm -rf "$SLURM_PLACE"
}
