# Linux on aarch64, emulated by qemu: unit tests, those of crates that map memory with pages of 16 and 64 KiB too, and `comity check`. The
# wheel and libcomity for aarch64 are tried on a machine of that kind (.github/workflows/release.yml).
#
# On x86 qemu keeps x86's order of memory, which is stronger than that of an aarch64 core: loom tries the weaker one. This machine's launcher
# starts the ranks: qemu-user 7.2 refuses the emulated one the call by which it takes in orphans (PR_SET_CHILD_SUBREAPER).
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
# Nobody debugs it.
export CARGO_PROFILE_DEV_DEBUG=0
there="--target aarch64-unknown-linux-gnu --target-dir $BUILT/arm"
mapping="-p comity-base -p comity-transport"
units="-p comity-kernel -p comity-plan -p comity-membership -p comity-channel"
cargo build $there -p comity-cli
for page in 4096 16384 65536; do
    QEMU_PAGESIZE=$page cargo nextest run --profile deep $there --lib $mapping $units
    units=
done
few="--ops all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn --dtypes bf16,f32,bool,c64"
for row in "2 shm 4096" "3 shm 4096" "2 tcp 4096" "3 tcp 4096" "2 shm 65536"; do
    set -- $row
    export COMITY_LINKS=$2 QEMU_PAGESIZE=$3
    says "links $2" "$COMITY" launch -n "$1" --timeout 550 -- qemu-aarch64 "$BUILT/arm/aarch64-unknown-linux-gnu/debug/comity" check --quick $few
    grep -q "all ok" "$WORK/said"
done
