# RDMA over the real stack: rdma-core, the kernel's verbs and Soft-RoCE, in a guest that `xtask rdma-vm` boots. `guest-cases.sh` has the cases.
# A gate takes a third of them and always the first, without which the rest says nothing; RDMA_VM_ONLY takes those with this in their names.
scripts=tools/steps/scripts conform=tools/steps/src/test/rdma/conform
# Without what only debuggers read: the guest has it in memory.
strip --strip-debug -o "$WORK/comity" "$COMITY"
# The cases that the software device is tested with too, compiled against the real header, for whichever library is there when it runs.
cc -O1 -Wall -Werror -o "$WORK/conform" $conform.c -libverbs
before=$(cat $scripts/guest-network.sh $scripts/guest-cases.sh; echo 'wanted() { cat << "END"'; cat $conform.txt; printf 'END\n}\nclear')
hand=$(python3 -c "print($COMITY_TEST_SEED % 3)") number=-1
set --
for name in $(sed -n 's/^\(case_[a-z_]*\)() {.*/\1/p' $scripts/guest-cases.sh); do
    number=$((number + 1))
    if [ -n "${RDMA_VM_ONLY-}" ]; then
        case $name in *"$RDMA_VM_ONLY"*) ;; *) continue ;; esac
    elif [ "$SIZE" = gate ]; then
        # The last waits more than it works: two minutes.
        if [ $name = case_far ] || [ $number != 0 ] && [ $((number % 3)) != "$hand" ]; then continue; fi
    fi
    set -- "$@" "$before
$name"
done
[ $# != 0 ] || { echo "no case has '$RDMA_VM_ONLY' in its name"; exit 1; }
echo "=> $# cases in a guest with Soft-RoCE"
exec "$TOOLBOX" rdma-vm --file "$WORK/comity" --file "$WORK/conform" --limit 250 "$@"
