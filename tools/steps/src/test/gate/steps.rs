//! The gate's steps: what runs in each of its parts, and how long each takes on 2 cores.

use crate::test::{
    chaos, cluster, counts, hosts, python, rdma_vm,
    requirements::Ask,
    scope::Scope,
    ssh,
    step::{Outcome, Step, code, lines},
};
use tasks::demo;

/// Declares scripts of `tools/steps/scripts`, each after variables of its own.
macro_rules! scripts {
    ($($name:ident = $variables:literal $file:literal)*) => {
        $(pub(in crate::test) const $name: &str = concat!($variables, include_str!(concat!("../../../scripts/", $file)));)*
    };
}
scripts! {
    C = "" "c.sh"
    CONFORMANCE = "" "conformance.sh"
    LAUNCHERS = "" "launchers.sh"
    RDMA = "" "rdma.sh"
    SWIFT = "" "swift.sh"
    SWIFT_BUILD = "BUILD=1\n" "swift.sh"
    FUZZ = "" "fuzz.sh"
    ADDRESS = "NAME=address\n" "sanitizers.sh"
    ADDRESS_BUILD = "NAME=address BUILD=1\n" "sanitizers.sh"
    THREAD = "NAME=thread\n" "sanitizers.sh"
    THREAD_BUILD = "NAME=thread BUILD=1\n" "sanitizers.sh"
    ARM = "" "arm.sh"
    ARM_BUILD = "BUILD=1\n" "arm.sh"
}

pub(in crate::test) const MPI: &[Ask] =
    &[Ask::Linux, Ask::Program("mpirun.openmpi", "openmpi-bin"), Ask::Program("mpiexec.mpich", "mpich")];
pub(in crate::test) const IN_C: &[Ask] = &[
    Ask::Linux,
    Ask::Program("cc", "gcc"),
    Ask::Program("c++", "g++"),
    Ask::Program("nm", "binutils"),
    Ask::Program("pkg-config", "pkg-config"),
    Ask::Program("cmake", "cmake"),
    Ask::Program("make", "make"),
];
pub(in crate::test) const VERBS: &[Ask] = &[
    Ask::Linux,
    Ask::Nextest,
    Ask::Program("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    Ask::Program("ibv_rc_pingpong", "ibverbs-utils"),
];
/// The toolchain is that of Debian's packages.
pub(in crate::test) const IN_SWIFT: &[Ask] = &[
    Ask::Linux,
    Ask::Root,
    Ask::Program("debootstrap", "debootstrap"),
    Ask::Program("unshare", "util-linux"),
];
pub(in crate::test) const SANITIZERS: &[Ask] = &[Ask::Linux, Ask::Nightly, Ask::Nextest];
pub(in crate::test) const ON_ARM: &[Ask] = &[
    Ask::X86,
    Ask::Nextest,
    Ask::Program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    Ask::Program("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
    Ask::Program("qemu-aarch64", "qemu-user"),
    Ask::Target("aarch64-unknown-linux-gnu"),
];

/// Brings what later steps need, beside the first of them.
pub(in crate::test) const PREPARE: Step =
    lines("prepare", 200, "echo 'all there'", "install the programs and Python packages that the tests use")
        .asks(&[Ask::Nextest, Ask::Linux, Ask::Nightly, Ask::Debian, Ask::Python]);

/// Steps that only read and check: [`PREPARE`] runs beside them.
pub(super) const LINTS: &[Step] = &[
    // `cargo fmt` does not find modules that a macro declares.
    lines(
        "format",
        6,
        "git ls-files -z --cached --others --exclude-standard '*.rs' | xargs -0 ls -d 2> /dev/null | xargs rustfmt --edition 2024 --check",
        "rustfmt; `rustfmt --edition 2024 FILE` mends a file",
    ),
    lines("gates", 6, "python3 tools/gates.py", "imports, waits and doc comments are as they should be"),
    lines("clippy", 200, "cargo clippy --workspace --all-targets -- -D warnings", "lints, none allowed"),
];

/// Then these, which compile.
pub(super) const BUILD: &[Step] = &[
    // With the examples, whose dependencies clippy has looked at: without them all would be looked at once more, with other features.
    lines(
        "documents",
        60,
        "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --lib --bins --examples",
        "rustdoc, no warning allowed",
    ),
    lines("build", 320, "cargo build --workspace --all-targets", "everything that the tests use, once"),
];

/// The workspace's tests. Those in documents get time that the others leave, which wait a good deal.
pub(in crate::test) const ALL_TESTS: &str =
    "nice -n 19 cargo test --workspace --doc > \"$BUILT/doctests.txt\" 2>&1 & docs=$!
cargo nextest run --workspace --no-fail-fast --status-level slow --profile \"$SIZE\" || failed=1
wait $docs || failed=1
cat \"$BUILT/doctests.txt\"
[ -z \"${failed-}\" ]";

/// First of all that runs something.
pub(super) const TESTS: Step =
    lines("tests", 200, ALL_TESTS, "unit, property, integration and documentation tests")
        .built()
        .asks(&[Ask::Nextest]);

/// Jobs that hold no time, in two rows at once: each waits a good deal.
pub(super) const SIDE_BY_SIDE: [&[Step]; 2] = [
    &[
        lines("conformance", 150, CONFORMANCE, "every operation over each link and backend")
            .built()
            .asks(MPI),
        code("counts", 90, counts::run, "instructions of one small call: Rust, C, NumPy and torch")
            .built()
            .asks(&[Ask::X86, Ask::Python]),
    ],
    &[
        code("demo", 30, demo, "train on 1, 2 and 4 ranks; the weights agree").built(),
        lines("launchers", 65, LAUNCHERS, "under torch's variables, Open MPI and MPICH").built().asks(MPI),
        lines("c", 40, C, "libcomity installed: its symbols, C programs as jobs, pkg-config, CMake")
            .built()
            .asks(IN_C),
    ],
];

/// Then these, which hold times, one after the other.
pub(super) const EVERY: &[Step] = &[
    lines("rdma", 45, RDMA, "rdma-core's programs and Comity's links on a software device")
        .built()
        .asks(VERBS),
    code("hosts", 70, hosts::check, "two and three hosts as network namespaces, a relay, cables cut")
        .built()
        .asks(hosts::ASKS),
    code("python", 220, python::check, "the Python package, installed; 1 to 4 processes")
        .built()
        .asks(&[Ask::Python]),
    // The step `python` has installed the package of this state; by itself this step takes what is there. Not `--quiet`: then no warning
    // counts.
    lines(
        "book",
        60,
        "\"$BUILT/book/bin/properdocs\" build --strict
\"$PYTHON\" docs/make/check.py names
timeout 180 \"$PYTHON\" docs/make/check.py examples",
        "the documents as a book: no warning; links, paths, examples in Python",
    )
    .built()
    .asks(&[Ask::Package, Ask::Apart("book", "docs/requirements.txt")]),
    code("chaos", 50, chaos::run, "jobs broken at random, for half a minute").built(),
];

/// Jobs on three hosts over ssh; one of them a run.
pub(super) const OVER_SSH: [Step; 2] = [
    code("ssh", 60, ssh::check, "comity launch over ssh: three hosts with their own sshd")
        .built()
        .asks(ssh::ASKS),
    code("cluster", 60, cluster::check, "comity cluster and doctor on three hosts; planted faults found")
        .built()
        .asks(cluster::ASKS),
];

/// Two of them a run, and what they need compiled.
pub(super) struct Turn {
    /// Only computes, and holds no time: in time that [`EVERY`] leaves.
    pub(super) beside: &'static [Step],
    /// Alone, at the end.
    pub(super) last: Step,
}

/// Seconds of a step that runs in the time of others: it only compiles, or tries a bounded number of things.
const BESIDE: u64 = 300;

/// The packages with code of their own for a system; a dependency's C has no compiler of that system here, and types are checked without
/// its objects.
const MACOS: Step = lines(
    "macos",
    BESIDE,
    "export CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true
cargo check --target aarch64-apple-darwin --target-dir target/macos -p comity -p comity-base -p comity-channel -p comity-transport \
    -p comity-settings -p comity-rendezvous -p comity-job -p comity-kernel -p comity-launch -p comity-cli -p comity-py -p toolbox -p xtask",
    "type-check for aarch64-apple-darwin",
)
.asks(&[Ask::Target("aarch64-apple-darwin")]);

/// Models of the lock-free parts. Other flags would build everything anew, so they have a folder of their own.
pub(in crate::test) const LOOM: &str = "native
export RUSTFLAGS='--cfg loom' CARGO_PROFILE_DEV_DEBUG=0 LOOM_MAX_PREEMPTIONS=$((2 + ${COMITY_TEST_DEEP:-0}))
cargo nextest run --profile long --config \"$NATIVE\" --target-dir target/loom -p comity -p comity-base -p comity-transport --lib loom";

/// The one crate with unsafe code and without system calls.
pub(in crate::test) const MIRI: &str = "cargo +nightly miri nextest run -p comity-kernel --lib $QUARTER";

pub(super) const TURNS: [Turn; 5] = [
    Turn {
        beside: &[
            lines("address-build", BESIDE, ADDRESS_BUILD, "what `address` runs, compiled").asks(SANITIZERS)
        ],
        last: lines("address", 150, ADDRESS, "threads and processes under AddressSanitizer")
            .after(&["address-build"])
            .asks(SANITIZERS),
    },
    Turn {
        beside: &[
            lines("thread-build", BESIDE, THREAD_BUILD, "what `thread` runs, compiled").asks(SANITIZERS)
        ],
        last: lines("thread", 100, THREAD, "threads and processes under ThreadSanitizer")
            .after(&["thread-build"])
            .asks(SANITIZERS),
    },
    Turn {
        beside: &[MACOS, lines("fuzz", BESIDE, FUZZ, "decoders on hostile bytes").asks(&[Ask::Nightly])],
        last: code("guest", 200, rdma_vm::run, "the kernel's Soft-RoCE and rdma-core's library, in QEMU")
            .built()
            .asks(rdma_vm::ASKS),
    },
    Turn {
        beside: &[
            MACOS,
            lines("loom", BESIDE, LOOM, "all interleavings of the lock-free parts").asks(&[Ask::Nextest]),
            lines("miri", BESIDE, MIRI, "undefined behaviour in pure code")
                .asks(&[Ask::Nextest, Ask::Nightly]),
            // Last: it takes libcomity from the step `build`.
            lines(
                "swift-build",
                BESIDE,
                SWIFT_BUILD,
                "what `swift` runs, compiled; once a Debian with Swift",
            )
            .asks(IN_SWIFT),
        ],
        last: lines("swift", 90, SWIFT, "the Swift package: its tests, examples under comity launch")
            .after(&["build", "swift-build"])
            .asks(IN_SWIFT),
    },
    Turn {
        beside: &[lines("arm-build", BESIDE, ARM_BUILD, "what `arm` runs, compiled for aarch64").asks(ON_ARM)],
        last: lines("arm", 200, ARM, "Linux on aarch64, emulated: unit tests, check, Python with NumPy")
            .after(&["build", "arm-build"])
            .asks(ON_ARM),
    },
];

fn demo(_: &Scope) -> Outcome {
    Ok(demo::run(demo::Profile::Tests)?)
}
