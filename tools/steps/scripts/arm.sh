# Linux on aarch64, emulated by qemu: unit tests, those of crates that map memory with pages of 16 and 64 KiB too, `comity check`, and the
# Python package with Debian's Python and NumPy. The files of a release are tried on a machine of that kind (.github/workflows/release.yml).
#
# On x86 qemu keeps x86's order of memory, which is stronger than that of an aarch64 core: loom tries the weaker one. This machine's launcher
# starts the ranks: qemu-user 7.2 refuses the emulated one the call by which it takes in orphans (PR_SET_CHILD_SUBREAPER).
#
# The gate runs half of the unit tests, and of the larger pages those of 64 KiB.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1
# Nobody debugs it.
export CARGO_PROFILE_DEV_DEBUG=0
there="--target aarch64-unknown-linux-gnu --target-dir $BUILT/arm"
mapping="-p comity-base -p comity-transport"
units="-p comity-kernel -p comity-plan -p comity-membership -p comity-channel"
if [ -n "${BUILD-}" ]; then
    cargo build $there -p comity-cli
    cargo nextest run --no-run $there --lib $mapping $units
    cargo build $there -p comity-py
    exit
fi
# qemu-user 7.2 lacks what these ask of Linux: most of madvise, process_vm_readv, what TCP and MPTCP tell of a connection, and a program that
# starts itself. The last needs 64 handshakes in 15 s. Without simulations, which have no processor in them; larger pages with
# what maps memory.
lacking="/(without_a_default_route|dumps_leave|two_mappings_of|several_paths_are|peer_memory::|loans::|trip::tests::a_conn|forked_child)/"
tests="not test($lacking) and not test(was_answered) and not test(simulate)"
for page in 4096 ${COMITY_TEST_DEEP:+16384} 65536; do
    QEMU_PAGESIZE=$page cargo nextest run --profile check --test-threads 2 $there --lib $mapping $units $HALF -E "$tests"
    units= tests="not test($lacking) and test(/^(shm|sys)::/)"
done
few="--ops all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn --dtypes bf16,f32,bool,c64"
for row in "2 shm 4096" "3 shm 4096" "2 tcp 4096" "3 tcp 4096" "2 shm 65536"; do
    set -- $row
    export COMITY_LINKS=$2 QEMU_PAGESIZE=$3
    says "links $2" "$COMITY" launch -n "$1" --timeout 550 -- qemu-aarch64 "$BUILT/arm/aarch64-unknown-linux-gnu/debug/comity" check --quick $few
    grep -q "all ok" "$WORK/said"
done
unset COMITY_LINKS QEMU_PAGESIZE

# Debian's packages for aarch64, unpacked and never installed, once: apt works as if nothing were here, with lists and files of its own.
arm=$BUILT/arm-root
if [ ! -d "$arm" ]; then
    apt=$WORK/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    : > "$apt/status"
    arm_apt() {
        apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root -o Acquire::Retries=5 \
            -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" "$@"
    }
    arm_apt -qq update
    arm_apt -qq install --download-only --yes --no-install-recommends python3-numpy
    for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$WORK/arm"; done
    mv "$WORK/arm" "$arm"
fi
cargo build $there -p comity-py
cp -r python/comity "$WORK/comity"
cp "$BUILT/arm/aarch64-unknown-linux-gnu/debug/lib_core.so" "$WORK/comity/_core.abi3.so"
export QEMU_LD_PREFIX="$arm" PYTHONPATH="$WORK"
lib=$arm/usr/lib/aarch64-linux-gnu
python="qemu-aarch64 -E LD_LIBRARY_PATH=$lib/blas:$lib/lapack $arm/usr/bin/python3"
says "every rank has the same plane" "$COMITY" launch -n 4 --timeout 550 -- $python -m comity.demo
for part in array numpy; do
    says "$part on 2 ranks: all ok" "$COMITY" launch -n 2 --timeout 550 -- $python -m comity.selftest $part
done
echo "=> check on 2 and 3 ranks over shm and tcp; comity.demo on 4 ranks, arrays and NumPy's on 2, under Debian's Python"
