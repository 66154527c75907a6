# Under Slurm for real: a controller and two nodes on this machine, as network namespaces, from Debian's packages (they lie unpacked in
# $BUILT/slurm: to install them would start them here).
#
#     n1 10.77.9.1 (munged, slurmctld, slurmd, and where srun is typed) --- cable --- n2 10.77.9.2 (slurmd)
#
# All of it runs in namespaces of processes and of mounts, so that nothing outlives this shell, however it ends.
if [ -z "${INSIDE-}" ]; then INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc sh "$0"; fi
slurm=$BUILT/slurm
export LD_LIBRARY_PATH="$slurm/usr/lib/x86_64-linux-gnu:$slurm/usr/lib/x86_64-linux-gnu/slurm-wlm" SLURM_CONF="$WORK/slurm.conf"
mkdir -p /run/netns "$WORK/n1" "$WORK/n2" "$WORK/ctld"
chmod 755 "$WORK"
mount -t tmpfs none /run/netns
ip netns add n1
ip netns add n2
ip link add cable netns n1 type veth peer name cable netns n2
for n in 1 2; do
    ip -n n$n link set lo up
    ip -n n$n addr add 10.77.9.$n/24 dev cable
    ip -n n$n link set cable up
done
printf '127.0.0.1 localhost\n10.77.9.1 n1\n10.77.9.2 n2\n' > "$WORK/hosts"
cat > "$SLURM_CONF" << END
ClusterName=t
SlurmctldHost=n1(10.77.9.1)
AuthType=auth/munge
AuthInfo=socket=$WORK/munge.sock
PluginDir=$slurm/usr/lib/x86_64-linux-gnu/slurm-wlm
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$WORK/ctld
SlurmdSpoolDir=$WORK/%n
SlurmctldPidFile=$WORK/ctld.pid
SlurmdPidFile=$WORK/%n.pid
SlurmctldLogFile=$WORK/ctld.log
SlurmdLogFile=$WORK/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeAddr=10.77.9.1 CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr=10.77.9.2 CPUs=2 State=UNKNOWN
PartitionName=p Nodes=n1,n2 Default=YES State=UP
END

# on NODE COMMAND...: under the node's name, and in the folder of this step. client PROGRAM...: one of a user, on the first node.
on() {
    node=$1; shift
    nsenter --net=/run/netns/$node unshare --uts --mount \
        sh -c "hostname $node && mount --bind '$WORK/hosts' /etc/hosts && cd '$WORK' && exec \"\$@\"" sh "$@"
}
client() { program=$1; shift; on n1 timeout 180 "$slurm/usr/bin/$program" "$@"; }
# until WHAT COMMAND...: within 40 s.
until_there() {
    what=$1; shift
    for try in $(seq 400); do
        if "$@" > "$WORK/said" 2>&1; then return; fi
        sleep 0.1
    done
    cat "$WORK/said" "$WORK/ctld.log"
    echo "$what is not there after 40 s"
    exit 1
}

(umask 077; head -c 1024 /dev/urandom > "$WORK/munge.key")
on n1 "$slurm/usr/sbin/munged" --foreground --force --socket="$WORK/munge.sock" --key-file="$WORK/munge.key" --pid-file="$WORK/munged.pid" \
    --log-file="$WORK/munged.log" --seed-file="$WORK/munge.seed" > "$WORK/munged.out" 2>&1 &
until_there "munged's socket" test -e "$WORK/munge.sock"
on n1 "$slurm/usr/sbin/slurmctld-wlm" -D -f "$SLURM_CONF" > "$WORK/ctld.out" 2>&1 &
for node in n1 n2; do
    on $node "$slurm/usr/sbin/slurmd-wlm" -D -N $node -f "$SLURM_CONF" -d "$slurm/usr/sbin/slurmstepd-wlm" > "$WORK/$node.out" 2>&1 &
done
idle() { [ "$(client sinfo --noheader --Node '--format=%N %T' | grep -c idle)" = 2 ]; }
until_there "a node that takes jobs" idle

key=$WORK/key
"$COMITY" key new "$key" > "$WORK/said"
check="$COMITY check --quick --ops all_reduce,all_gather"
# four NAME COMMAND...: four ranks check.
four() { says "4 ranks" "$@"; grep -qF "cases on each rank" "$WORK/said"; }
four client srun --mpi=pmi2 -N 2 -n 4 $check
fails COMITY_KEY_FILE client srun -N 2 -n 2 $check
grep -qF -- --mpi=pmi2 "$WORK/said"
export COMITY_KEY_FILE="$key"
four client srun -N 2 -n 4 $check
# A launcher on each node. The controller is reached at the first; each node has two ranks.
launcher="exec $COMITY launch --nnodes 2 --node-rank \$SLURM_NODEID --rendezvous 10.77.9.1:29511 -n 2 -- $check"
four client srun -N 2 --ntasks-per-node=1 sh -c "$launcher"
# A rank that is killed: the others name it and its host, and srun ends with their failure.
bench='bench all_reduce --sizes 64K --budget 60'
killed="if [ \$SLURM_PROCID = 3 ]; then \"\$0\" $bench & sleep 4; kill -9 \$!; wait \$!; sleep 5; exit 3; fi; exec \"\$0\" $bench"
fails "rank 3" client srun -N 2 -n 4 sh -c "$killed" "$COMITY"
grep -qF n2 "$WORK/said"
echo "=> 5 jobs on 2 nodes under $(client srun --version)"
