# Suite over every way that data can travel: `comity check`, or a call of each line of `comity bench`, which compares it too. RDMA has the
# tests of crates/comity-cli/tests/rdma.rs, which the step `rdma` runs.
#
# A gate runs half of the jobs, and none of more than 5 ranks: with 8 on 2 cores one takes a minute.
jobs=0

# row NAME "RANKS..." WORDS "VARIABLE=VALUE..." COMMAND...: a job for each number of ranks, which take that way by these variables. The
# first line of two ranks or more has these words: nothing may fall back to another way in silence. A new link or backend is a new row.
row() {
    name=$1 ranks=$2 first=$3 variables=$4; shift 4
    for n in $ranks; do
        jobs=$((jobs + 1))
        if [ -z "${COMITY_TEST_DEEP-}" ] && { [ "$n" -gt 5 ] || [ $(((jobs + HAND) % 2)) = 1 ]; }; then continue; fi
        case $1 in check) wanted="all ok" ;; *) wanted= ;; esac
        says "$wanted" env $variables timeout 630 "$COMITY" launch -n "$n" $launch -- $before "$COMITY" "$@"
        if [ "$n" -gt 1 ] && ! grep comity "$WORK/said" | grep -qF -- "$first"; then
            cat "$WORK/said"
            echo "$name on $n: it did not say '$first'"
            exit 1
        fi
        echo "=> $name on $n"
    done
}
# Ranks of hosts by name, two to each, that share memory with no other.
printf 'export COMITY_HOST=h$((COMITY_RANK / 2))\nexec "$@"\n' > "$WORK/pairs"
launch="--timeout 600" before=
long="bench all --sizes 256K,4M --dtype bf16 --iters 5"
pulled="where they lay in the memory of other ranks"
shm=COMITY_LINKS=shm tcp=COMITY_LINKS=tcp

row "shared memory" "1 2 3 4 5 8" "links shm" $shm check --quick
row "shared memory, buffers that peers read" "2 3 4" "shared buffers" $shm $long --shared-buffers
row "shared memory, lanes" "2 3" "MiB in lanes" "$shm COMITY_LANES=3" $long
row "shared memory, messages that peers read" "2 3" "$pulled" "$shm COMITY_PULL=65536" $long
row "shared memory, exchanges that the system copies" "2 3" "$pulled" $shm \
    bench all_gather all_to_all all_reduce --sizes 256K,4M --dtype bf16 --iters 5
row "Unix sockets" "2 3" "links unix" COMITY_LINKS=unix check --quick
row "TCP" "1 2 3 4 5 8" "links tcp" $tcp check --quick
row "TCP, a connection each way" 3 "links tcp" "$tcp COMITY_CONNECTIONS=2" check --quick
row "TCP, threads that send" "2 3" "links tcp" "$tcp COMITY_SEND_THREADS=1" check --quick
row "TCP, threads that send, encrypted" 3 "links tcp" "$tcp COMITY_SEND_THREADS=2 COMITY_SECURE=data" check --quick
row "TCP, 3 connections" 3 "links tcp" "$tcp COMITY_CONNECTIONS=3" check --quick
row "TCP, encrypted" 2 "links tcp" "$tcp COMITY_SECURE=data" check --quick
before="sh $WORK/pairs"
row "two to a host" "3 5 8" "links shm and tcp" "" check --quick
row "two to a host, lanes" 4 "MiB in lanes" COMITY_LANES=3 $long
row "plans by measured costs" 4 "links shm and tcp" COMITY_COSTS=measure check --quick
before=
softnccl=$BUILT/debug/libsoftnccl.so
row "NCCL's stand-in" "2 4" "ranks on 1 host" "COMITY_NCCL=$softnccl COMITY_CUDA=$softnccl" check --quick --device cuda
# A job of an MPI ends by its launcher. Its ranks spin while they wait, so four of them are slow on two cores.
launch="--backend mpi"
some="--ops all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn --dtypes bf16,f32,bool,c64"
for library in "Open MPI:mpirun.openmpi" "MPICH:mpiexec.mpich"; do
    row "${library%:*}" 2 "links mpi" "COMITY_MPIRUN=${library#*:}" check --quick
    row "${library%:*}, some of it" 4 "links mpi" "COMITY_MPIRUN=${library#*:}" check --quick $some
done
