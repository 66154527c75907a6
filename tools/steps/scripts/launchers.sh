# `comity check` started by others than `comity launch`: by hand with torch's variables, by Open MPI, by MPICH.
key=$WORK/key
"$COMITY" key new "$key" > "$WORK/said"

# Four ranks with torch's variables. The port can be taken between the look and its use.
torch() {
    pids= bad=0
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 COMITY_KEY_FILE=$key \
            timeout 600 "$COMITY" check --quick > "$WORK/torch.$rank" 2>&1 &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || bad=1; done
    return $bad
}
for try in 1 2 3; do
    if torch "$(free_port)"; then echo "right: 4 ranks with torch's variables"; break; fi
    if [ $try = 3 ] || ! grep -q "in use" "$WORK"/torch.*; then cat "$WORK"/torch.*; exit 1; fi
done

# broken NAME JOIN_TIMEOUT WORDS...: a job of $launcher that is to end by itself, and not well. What a killed rank leaves of MPI goes away
# with the folder.
broken() {
    name=$1 wait=$2; shift 2
    code=0
    OMPI_MCA_btl_vader_backing_directory="$WORK/$name" OMPI_MCA_orte_tmpdir_base="$WORK/$name" COMITY_JOIN_TIMEOUT=$wait \
        timeout 100 $launcher "$@" > "$WORK/said" 2>&1 || code=$?
    case $code in 0 | 124) cat "$WORK/said"; echo "$name under $launcher ended with $code"; exit 1 ;; esac
}

# told NAME RANK WORDS...: what that rank has said by itself before MPI ended the job in its own way.
told() {
    file="$WORK/$1/said.$2"; shift 2
    for words; do
        grep -qF -- "$words" "$file" || { cat "$file"; echo "'$words' is not in $file, under $launcher"; exit 1; }
    done
}

# rank NAME RANKS KILLED ...: words of a rank whose output is kept.
rank() { mkdir -p "$WORK/$1"; echo sh tools/steps/scripts/rank.sh "$WORK/$1" "$2" "$3" "$COMITY"; }

# mpi LIBRARY COMMAND: jobs of $launcher; of the command's ranks one is killed.
mpi() {
    # No key is given: rank 0 shares one over what the launcher has.
    says "all ok" timeout 600 $launcher -n 4 "$COMITY" check --quick
    # Ranks that call different things.
    check="check --quick --ops all_reduce --backend mpi --dtypes"
    broken mismatch 60 -n 1 $(rank mismatch 2 none) $check f32 : -n 1 $(rank mismatch 2 none) $check f64
    for r in 0 1; do told mismatch $r "ranks disagree in dtype: " "rank 0" "rank 1" f32 f64; done
    # One that is killed.
    broken killed 60 -n 3 $(rank killed 3 1) $2 --backend mpi
    for r in 0 2; do told killed $r ": rank 1 (host " " died: "; done
    # One that MPI has started and that never comes: it is in MPI and nowhere else, for longer than the job may take.
    printf 'import ctypes, sys, time\nmpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))\ntime.sleep(120)\n' > "$WORK/absent.py"
    broken absent 5 -n 1 $(rank absent 1 none) check --quick --backend mpi : -n 1 python3 "$WORK/absent.py" "$1"
    told absent 0 "comity check: rank 0 was not joined by all other ranks" " within 5s; "
    rm -r "$WORK/mismatch" "$WORK/killed" "$WORK/absent"
    echo "right: what breaks under $launcher"
}
launcher="mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none"
# It would not end for long: all operations, types and sizes.
mpi libmpi.so.40 "check"
launcher="mpiexec.mpich"
# Of longer messages its UCX may end the rank that reads them (docs/transports-reference.md).
mpi libmpich.so.12 "bench all_reduce --sizes 1K --budget 60"
echo "=> 4 ranks with torch's variables, under Open MPI and MPICH"
