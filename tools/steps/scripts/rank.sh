# One rank of a job of MPI that breaks: rank.sh FOLDER RANKS KILLED COMMAND...
#
# Its words go to a file, and it ends when all have said theirs: MPI ends the others with the first that fails, or dies.
folder=$1 ranks=$2 killed=$3
shift 3
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}

# until_true COMMAND...: half a minute at most.
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ $tries -gt 300 ]; then return 1; fi
        sleep 0.1
    done
}

all_ended() {
    for r in $(seq 0 $((ranks - 1))); do
        if [ ! -e "$folder/ended.$r" ]; then return 1; fi
    done
}

"$@" > "$folder/said.$rank" 2>&1 &
child=$!
if [ "$rank" = "$killed" ]; then
    # Rank 0 tells the links when there is a group, and data move soon after.
    until_true grep -qs 'links mpi' "$folder/said.0"
    sleep 0.5
    kill -KILL $child
fi
wait $child
code=$?
touch "$folder/ended.$rank"
until_true all_ended
exit $code
