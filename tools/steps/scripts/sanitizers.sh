# Tests under AddressSanitizer with its search for leaks, or under ThreadSanitizer: $NAME is `address` or `thread`. No finding is suppressed
# but one: a program whose processes exit in the middle of things leaves threads that have ended and that nobody has waited for, which the
# thread sanitizer calls a leak.
#
# The gate runs half of the library's own tests, unoptimised: to optimise them under a sanitizer takes three times as long as to run them.
# The deep checks run all of them, and every program of tests that plays a fault or a mistake with processes. The profiles of
# .config/nextest.toml leave out what a sanitizer is too slow for.
case $NAME in
    address)
        options=ASAN_OPTIONS=detect_leaks=1:exitcode=86 more= std= COMITY_SLOWNESS=6 ;;
    thread)
        # The standard library is watched too: its own synchronisation counts.
        options=TSAN_OPTIONS=halt_on_error=1:exitcode=86 more=:report_thread_leaks=0 std=-Zbuild-std COMITY_SLOWNESS=20 ;;
esac
native
folder=target/$NAME-sanitizer
# The system is called through libc, where the sanitizer sees memory mapped and unmapped: else an address that one thread had and another
# gets later looks like one thing that both write. A library finds the sanitizer in the program that loads it, which exports it.
export RUSTFLAGS="-Zsanitizer=$NAME --cfg=rustix_use_libc -Clink-arg=-rdynamic"

# watched COMMAND...: of nightly's cargo.
watched() { cargo +nightly "$@" $std --config "$NATIVE" --target "$MACHINE" --target-dir "$folder"; }
tests() { watched nextest run --profile "$NAME" --status-level slow "$@"; }

# Packages whose unit tests run, and of `comity` the jobs of threads.
library="-p comity -p comity-base -p comity-channel -p comity-transport -p comity-settings -p comity-rendezvous -p comity-job -p comity-kernel"
which="--lib --test local"
# Tests that a gate leaves to the deep checks.
long="/any_order_of_calls|connect::tests|sealed|four_apart|three_connections|hello::tests::a|measure|all_that_is_put|apart_back|moves_both_ways\
|connections_are_replaced|as_any_other_afterwards|does_not_lend/"
# Programs of tests whose processes are watched. The last three need stand-ins for a library.
programs="binary(/^(mismatch|report|faults|launch|hostile|slow|links|check|refusals|nccl|rdma)$/) | package(comity-transport) & test(/^verbs::/)"

if [ -n "${BUILD-}" ]; then
    tests $library $which --no-run
elif [ -z "${COMITY_TEST_DEEP-}" ]; then
    export "$options"
    tests $library $which "$HALF" -E "not test($long)"
else
    (export "$options"; tests $library -p comity-launch -p comity-cli $which)
    env -u RUSTFLAGS "$TOOLBOX" softverbs "$WORK/verbs"
    # The stand-ins for libraries are watched too: else the sanitizer of threads does not see their locks.
    if [ "$NAME" = thread ]; then
        watched build -p softverbs -p softnccl
        cp "$folder/$MACHINE/debug/libsoftverbs.so" "$WORK/verbs/libibverbs.so.1"
    fi
    # Reports of processes that tests start, whatever becomes of their output and exit codes.
    mkdir "$WORK/findings"
    export "$options$more:log_path=$WORK/findings/process" COMITY_TEST_SLOWNESS=$COMITY_SLOWNESS
    export COMITY_VERBS="$WORK/verbs/libibverbs.so.1" SOFTVERBS_DEVICES="soft=127.0.0.1*3"
    code=0
    tests -p comity -p comity-cli -p comity-transport --lib --tests --ignore-default-filter --run-ignored all --test-threads 2 -E "$programs" || code=$?
    [ -z "$(ls "$WORK/findings")" ] || { cat "$WORK/findings"/*; exit 1; }
    exit $code
fi
