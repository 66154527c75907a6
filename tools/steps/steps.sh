# All steps of the gate and of the deep checks. A line `#= NAME WORDS...` begins a step (`#+` has more words), the next says what it checks,
# and its commands follow; without any they are `scripts/NAME.sh`. Before them stands `scripts/prelude.sh`, and the first that fails ends
# the step.
#
#   prepare lint build job other alone ssh last beside=S   where it runs in the gate (src/test/gate.rs), and its seconds on 2 cores
#   with=A,B      of `beside`: the steps of `last` with which it takes its turn
#   deep          it is a part of the deep checks, too
#   after=A,B     steps whose products it uses: it is not run when one of them failed
#   all others    what it asks of the machine (src/test/requirements.rs)
#
# The commands have the variables of the tests' scope (tools/scope), and
#
#   BUILT PYTHON COMITY TOOLBOX WORK   cargo's folder, the interpreter of the tests, the command, `xtask`, a folder that goes away
#   SIZE HALF QUARTER HAND             nextest's profile, its flag for a gate's share of so many, a hand of four

#= prepare prepare=200 nextest linux nightly python
#+ programs=ip:iproute2,mpirun.openmpi:openmpi-bin,mpiexec.mpich:mpich,c++:g++,cmake:cmake,make:make,pkg-config:pkg-config
#+ programs=/usr/include/infiniband/verbs.h:libibverbs-dev,ibv_rc_pingpong:ibverbs-utils
# install the programs and Python packages that the tests use
echo 'all there'

#= format lint=6
# rustfmt; `rustfmt --edition 2024 FILE` mends a file
# (`cargo fmt` does not find modules that a macro declares.)
git ls-files -z --cached --others --exclude-standard '*.rs' | xargs -0 ls -d 2> /dev/null | xargs rustfmt --edition 2024 --check

#= gates lint=6
# imports, waits and doc comments are as they should be
python3 tools/gates.py

#= clippy lint=200
# lints, none allowed
cargo clippy --workspace --all-targets -- -D warnings

#= documents build=60
# rustdoc, no warning allowed
# (With the examples, whose dependencies clippy has looked at: without them all would be looked at once more, with other features.)
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --lib --bins --examples

#= build build=320
# everything that the tests use, once
cargo build --workspace --all-targets

#= tests build=200 deep after=build nextest
# unit, property, integration and documentation tests; deep: every matrix whole
# (Tests in documents get time that the others leave, which wait a good deal.)
nice -n 19 cargo test --workspace --doc > "$BUILT/doctests.txt" 2>&1 & docs=$!
cargo nextest run --workspace --no-fail-fast --status-level slow --profile "$SIZE" || failed=1
wait $docs || failed=1
cat "$BUILT/doctests.txt"
[ -z "${failed-}" ]

#= conformance job=150 deep after=build linux programs=mpirun.openmpi:openmpi-bin,mpiexec.mpich:mpich
# every operation over each link and backend; deep: all rank counts

#= counts job=90 after=build x86 python
# instructions of one small call: Rust, C, NumPy and torch
exec "$TOOLBOX" step counts

#= demo other=30 after=build
# train on 1, 2 and 4 ranks; the weights agree
exec "$TOOLBOX" step demo

#= launchers other=65 deep after=build linux programs=mpirun.openmpi:openmpi-bin,mpiexec.mpich:mpich
# under torch's variables, Open MPI and MPICH

#= c other=40 deep after=build linux programs=cc:gcc,c++:g++,nm:binutils,pkg-config:pkg-config,cmake:cmake,make:make
# libcomity installed: its symbols, C programs as jobs, pkg-config, CMake; deep: every rank count, link and fault; leaks; JAX

#= rdma alone=45 deep after=build linux nextest programs=/usr/include/infiniband/verbs.h:libibverbs-dev,ibv_rc_pingpong:ibverbs-utils
# rdma-core's programs and Comity's links on a software device

#= hosts alone=70 deep after=build linux root programs=ip:iproute2
# two and three hosts as network namespaces, IPv4 and IPv6, a relay, cables cut
exec "$TOOLBOX" step hosts

#= python alone=220 deep after=build python
# the Python package, installed; 1 to 4 processes; deep: as released

#= book alone=60 after=build package apart=book:docs/requirements.txt
# the documents as a book: no warning; links, paths, examples in Python
# (The step `python` has installed the package of this state; by itself this step takes what is there. Not `--quiet`: then no warning counts.)
"$BUILT/book/bin/properdocs" build --strict
"$PYTHON" docs/make/check.py names
timeout 180 "$PYTHON" docs/make/check.py examples

#= chaos alone=50 deep after=build namespaces
# jobs broken at random, for half a minute; deep: for an hour
[ "$SIZE" = gate ] && minutes=0.5 || minutes=60
exec "$TOOLBOX" chaos --minutes "${CHAOS_MINUTES:-$minutes}" --seed "${CHAOS_SEED:-$COMITY_TEST_SEED}"

#= ssh ssh=60 deep after=build linux root programs=ip:iproute2,ssh:openssh-client unpacked=sshd:usr/sbin/sshd:openssh-server,libwrap0
# comity launch over ssh, hosts with an sshd each: a switch; a triangle and a chain (deep: both)
exec "$TOOLBOX" step ssh

#= cluster ssh=60 deep after=build linux root programs=ip:iproute2,tc:iproute2,ssh:openssh-client,perl:perl-base,setpriv:util-linux
#+ unpacked=sshd:usr/sbin/sshd:openssh-server,libwrap0
# comity cluster and doctor on three hosts; planted faults found (deep: all twelve)
exec "$TOOLBOX" step cluster

#= address-build beside=300 with=address linux nightly nextest
# what `address` runs, compiled
NAME=address BUILD=1
. tools/steps/scripts/sanitizers.sh

#= thread-build beside=300 with=thread linux nightly nextest
# what `thread` runs, compiled
NAME=thread BUILD=1
. tools/steps/scripts/sanitizers.sh

#= macos beside=300 with=guest,swift deep target=aarch64-apple-darwin
# type-check for aarch64-apple-darwin; deep: of everything
# (The packages with code of their own for a system; a dependency's C has no compiler of that system here, and types are checked without
# its objects.)
export CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true
what="-p comity -p comity-base -p comity-channel -p comity-transport -p comity-settings -p comity-rendezvous -p comity-job
    -p comity-kernel -p comity-launch -p comity-cli -p comity-py -p toolbox -p xtask"
[ "$SIZE" = gate ] || what="--workspace --features comity-candle/metal"
cargo check --target aarch64-apple-darwin --target-dir target/macos $what

#= fuzz beside=300 with=guest deep nightly
# decoders on hostile bytes; deep: 10 minutes each

#= loom beside=300 with=swift deep nextest
# all interleavings of the lock-free parts
# (Other flags would build everything anew, so they have a folder of their own.)
native
export RUSTFLAGS='--cfg loom' CARGO_PROFILE_DEV_DEBUG=0 LOOM_MAX_PREEMPTIONS=$((2 + ${COMITY_TEST_DEEP:-0}))
cargo nextest run --profile long --config "$NATIVE" --target-dir target/loom -p comity -p comity-base -p comity-transport --lib loom

#= miri beside=300 with=swift deep nextest nightly
# undefined behaviour in pure code: the one crate with unsafe code and without system calls
cargo +nightly miri nextest run -p comity-kernel --lib $QUARTER

#= swift-build beside=300 with=swift linux root programs=debootstrap:debootstrap,unshare:util-linux
# what `swift` runs, compiled; once a Debian with Swift
# (The last of those beside `swift`: it takes libcomity from the step `build`.)
BUILD=1
. tools/steps/scripts/swift.sh

#= arm-build beside=300 with=arm x86 nextest
#+ programs=aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu,/usr/aarch64-linux-gnu/lib/crt1.o:libc6-dev-arm64-cross,qemu-aarch64:qemu-user
#+ target=aarch64-unknown-linux-gnu
# what `arm` runs, compiled for aarch64
BUILD=1
. tools/steps/scripts/arm.sh

#= address last=150 deep after=address-build linux nightly nextest
# threads and processes under AddressSanitizer; deep: all tests
NAME=address
. tools/steps/scripts/sanitizers.sh

#= thread last=100 deep after=thread-build linux nightly nextest
# threads and processes under ThreadSanitizer; deep: all tests
NAME=thread
. tools/steps/scripts/sanitizers.sh

#= guest last=200 deep after=build x86 guest
# the kernel's Soft-RoCE and rdma-core's library, in QEMU; deep: every case

#= swift last=90 deep after=build,swift-build linux root programs=debootstrap:debootstrap,unshare:util-linux
# the Swift package: its tests, examples under comity launch

#= arm last=200 deep after=build,arm-build x86 nextest
#+ programs=aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu,/usr/aarch64-linux-gnu/lib/crt1.o:libc6-dev-arm64-cross,qemu-aarch64:qemu-user
#+ target=aarch64-unknown-linux-gnu
# Linux on aarch64, emulated: unit tests, larger pages, check, Python with NumPy

#= simulator deep nextest
# 100,000 seeds of failing jobs
COMITY_SIM_SEEDS=100000 cargo nextest run --profile long -p comity-membership --lib -E 'test(=simulate::the_promise_is_kept)'

#= vast deep nextest
# jobs of 4,096 simulated ranks, and the same mistakes found in them
COMITY_SIM_VAST=4096 cargo nextest run --profile long -p comity-membership --lib --no-capture simulate::vast::

#= hours deep nextest
# 10,000 simulated hours of crowded jobs, nobody given up
COMITY_SIM_HOURS=10000 cargo nextest run --profile long -p comity-membership --lib --no-capture simulate::hours_pass_without_a_false_alarm

#= full deep
# every operation, type and size, 4 processes, as released
cargo build --release -p comity-cli
comity=$BUILT/release/comity
$comity launch -n 2 --timeout 1200 -- $comity check --quick --large --ops all_reduce
$comity launch -n 4 --timeout 1200 -- $comity check

#= load deep after=build
# 64 ranks, 1,000 calls in flight; 1,000 groups and 20 s of calls; nothing grows
load() { $COMITY launch -n $1 --timeout 1200 -- "$BUILT/debug/examples/load" $2 $3; }
load 64 flight 1000
load 4 groups 1000
load 3 grow 20

#= candle deep after=build python
# candle's examples beside transformers; checkpoints read by others
"$PYTHON" python/suites/candle_suite.py "$BUILT/debug" "$BUILT/minilm"

#= others deep
# burn, candle's own models and the page for other Rust libraries
cargo test --locked --manifest-path tools/others/Cargo.toml --target-dir "$BUILT/others"

#= browser deep nextest programs=chromium:chromium
# the page of comity top in headless Chromium
for name in chromium chromium-browser google-chrome chrome; do
    if command -v $name; then export COMITY_TEST_CHROMIUM=$(command -v $name); break; fi
done
cargo nextest run --profile deep -p comity-cli --test live --run-ignored only chromium

#= slurm deep after=build x86 root programs=ip:iproute2,apt-get:apt
#+ unpacked=slurm:usr/sbin/slurmd-wlm:slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,munge,libmunge2,liblua5.1-0,libhwloc15
# under srun: two nodes of a real Slurm, whose libraries a plain Debian lacks

#= torch-suite deep released=python/suites/requirements.txt
# torch's own tests of a backend, beside gloo
"$PYTHON" python/suites/torch_suite.py --ranks 2 3 8

#= reconfigure deep checkout=COMITY_TORCH_SOURCE:github.com/pytorch/pytorch released=python/suites/requirements.txt
# torch's own tests of groups whose members change, beside gloo
"$PYTHON" python/suites/torch_reconfigure.py --source "$COMITY_TORCH_SOURCE"

#= torchft deep released=python/suites/torchft.txt
# torchft's manager over Comity, beside gloo: a replica dies and comes back
if [ -n "${COMITY_TORCHFT_SOURCE-}" ]; then
    "$PYTHON" python/suites/torchft_examples.py --source "$COMITY_TORCHFT_SOURCE" --over gloo comity
fi
"$PYTHON" python/suites/torchft_suite.py

#= strangers deep released=python/suites/requirements.txt
# small programs after other systems' reports, beside gloo
"$PYTHON" python/suites/strangers.py

#= shells deep after=build linux root programs=ssh:openssh-client,fish:fish,tcsh:tcsh unpacked=sshd:usr/sbin/sshd:openssh-server,libwrap0
# hosts over ssh whose login shells are fish and tcsh
exec "$TOOLBOX" step shells

#= ray deep after=build x86 root programs=ip:iproute2,unshare:util-linux apart=ray:python/suites/ray.txt
# actors of a real Ray: every operation, two groups, a killed actor

#= mlx-suite deep checkout=COMITY_MLX_SOURCE:github.com/ml-explore/mlx released=python/suites/requirements.txt
# MLX's own distributed tests, beside its ring
"$PYTHON" python/suites/mlx_suite.py --source "$COMITY_MLX_SOURCE"

#= elastic-chaos deep after=build
# a job that loses ranks and takes in others, for an hour
"$BUILT/debug/examples/elastic" chaos --minutes 60 --detection 2 --seed "$COMITY_TEST_SEED"

#= soak deep
# eight ranks to a core for 2 hours, nobody given up
exec "$TOOLBOX" chaos --soak 120

#= licences deep
#+ tool=deny:https://github.com/EmbarkStudios/cargo-deny/releases/download/0.20.2/cargo-deny-0.20.2-x86_64-unknown-linux-musl.tar.gz
# licences, bans and sources of all dependencies, by cargo-deny
# (The fuzz targets are a workspace of their own.)
for manifest in Cargo.toml fuzz/Cargo.toml; do
    cargo deny --manifest-path $manifest --config deny.toml check licenses bans sources
done

#= advisories deep
#+ tool=deny:https://github.com/EmbarkStudios/cargo-deny/releases/download/0.20.2/cargo-deny-0.20.2-x86_64-unknown-linux-musl.tar.gz
# known faults of dependencies, by cargo-deny
cargo deny check advisories

#= semver deep
#+ tool=semver-checks:https://github.com/obi1kenobi/cargo-semver-checks/releases/latest/download/cargo-semver-checks-x86_64-unknown-linux-gnu.tar.gz
# what the public API changed since the last release, by cargo-semver-checks
release=$(git describe --tags --abbrev=0 --match 'v*') || { echo '=> nothing is released yet'; exit; }
cargo semver-checks --baseline-rev "$release" -p comity -p comity-base -p comity-channel -p comity-transport -p comity-settings \
    -p comity-rendezvous -p comity-job -p comity-kernel -p comity-plan -p comity-membership -p comity-candle
echo "=> nothing breaks users of $release"
