# The fuzz targets, each for a while, two at a time. They are built as cargo-fuzz builds them, but without it: to compile it takes longer
# than to compile them. A gate's get the time that others leave, are less optimised, which is there in half the time, and may need longer.
native
if [ -n "${COMITY_TEST_DEEP-}" ]; then
    seconds=600 patience=10 quick=
else
    seconds=20 patience=60 quick="--config profile.release.opt-level=1"
fi
seconds=${FUZZ_SECONDS:-$seconds}
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address \
-Ccodegen-units=1 -Cdebug-assertions=yes" \
    cargo +nightly build --release --manifest-path fuzz/Cargo.toml --target-dir fuzz/target --target "$MACHINE" --config "$NATIVE" $quick
mkdir -p fuzz/artifacts

# target NAME LONGEST MEMORY: bytes of an input, of which no seed has more, and MiB of a single allocation: no length that came over the wire may
# be believed before it was bounded. New inputs are kept in fuzz/corpus where that exists, for a longer search; else they go.
target() {
    [ -z "$(find "fuzz/seeds/$1" -type f -size "+$2c")" ] || { echo "$1: a seed longer than $2 bytes"; return 1; }
    corpus=fuzz/corpus/$1
    [ -d "$corpus" ] || { corpus=$WORK/$1; mkdir "$corpus"; }
    ran=0
    # Fewer than 1,000 inputs have looked at nothing.
    for time in "$seconds" $((4 * seconds)); do
        timeout $((time + 120)) "fuzz/target/$MACHINE/release/$1" "$corpus" "fuzz/seeds/$1" -max_total_time="$time" -max_len="$2" \
            -malloc_limit_mb="$3" -rss_limit_mb=768 -timeout=$patience -artifact_prefix="fuzz/artifacts/$1-" > "$WORK/$1.txt" 2>&1 || {
            cat "$WORK/$1.txt"
            echo "$1: the input is in fuzz/artifacts; give it to the program to see it again"
            return 1
        }
        ran=$((ran + $(sed -n 's/^Done \([0-9]*\) runs in .*/\1/p' "$WORK/$1.txt")))
        if [ $ran -ge 1000 ]; then echo "=> $1: nothing found in $ran runs"; return; fi
    done
    echo "$1: $ran inputs, of 1000 at least"
    return 1
}

# both TARGET TARGET: at once.
both() {
    target $1 & first=$!
    target $2
    wait $first
}
both "frame 65536 1" "handshake 4096 1"
# A hostfile of the longest that is read, as JSON values.
both "messages 73728 1" "config 65536 2"
both "stream 65536 1" "flight 65536 2"
# All that the manifest lists.
[ "$(grep -c '^\[\[bin\]\]' fuzz/Cargo.toml)" = 6 ]
