//! The gate's steps: what runs in each of its parts, and how long each takes.

use crate::test::{
    Done, Outcome, Step, book, c, cargo, chaos, cluster, conformance, counts, fuzz, hosts, launchers, python,
    rdma, rdma_vm, sanitizers, scope::Scope, ssh, swift,
};
use tasks::place::root;

/// A step that needs nothing of another one: its name, the seconds that it takes on 2 cores, and what it is about.
const fn free(name: &'static str, usual: u64, run: fn(&Scope) -> Outcome, about: &'static str) -> Step {
    Step { name, about, usual, needs: None, run }
}

/// A step that needs the build of everything.
const fn built(name: &'static str, usual: u64, run: fn(&Scope) -> Outcome, about: &'static str) -> Step {
    Step { needs: Some("build"), ..free(name, usual, run, about) }
}

/// Steps that only read and check: `prepare` runs beside them.
pub(super) const LINTS: &[Step] = &[
    free("format", 6, cargo::format, "rustfmt"),
    free("gates", 6, gates, "imports, waits and doc comments are as they should be"),
    free("clippy", 200, cargo::clippy, "lints, none allowed"),
];

/// Then these, which compile.
pub(super) const BUILD: &[Step] = &[
    free("documents", 60, cargo::documents, "rustdoc, no warning allowed"),
    free("build", 320, cargo::build, "everything that the tests use, once"),
];

/// First of all that runs something.
pub(super) const TESTS: Step =
    built("tests", 200, cargo::tests, "unit, property, integration and documentation tests");

/// Jobs that hold no time, in two rows at once: each waits a good deal.
pub(super) const SIDE_BY_SIDE: [&[Step]; 2] = [
    &[
        built("conformance", 150, conformance::run, "every operation over each link and backend"),
        built("counts", 90, counts::run, "instructions of one small call: Rust, C, NumPy and torch"),
    ],
    &[
        built("demo", 30, demo, "train on 1, 2 and 4 ranks; the weights agree"),
        built("launchers", 65, launchers::run, "under torch's variables, Open MPI and MPICH"),
        built("c", 40, c::run, "libcomity installed: its symbols, C programs as jobs, pkg-config, CMake"),
    ],
];

/// Then these, which hold times, one after the other.
pub(super) const EVERY: &[Step] = &[
    built("rdma", 45, rdma::run, "rdma-core's programs and Comity's links on a software device"),
    built("hosts", 70, hosts::check, "two and three hosts as network namespaces, a relay, cables cut"),
    built("python", 220, python::check, "the Python package, installed; 1 to 4 processes"),
    built("book", 60, book::check, "the documents as a book: no warning; links, paths, examples in Python"),
    built("chaos", 50, chaos::run, "jobs broken at random, for half a minute"),
];

/// Jobs on three hosts over ssh; one of them a run.
pub(super) const OVER_SSH: [Step; 2] = [
    built("ssh", 60, ssh::check, "comity launch over ssh: three hosts with their own sshd"),
    built("cluster", 60, cluster::check, "comity cluster and doctor on three hosts; planted faults found"),
];

/// Two of them a run, and what they need compiled.
pub(super) struct Turn {
    /// Only computes, and holds no time: in time that [`EVERY`] leaves.
    pub(super) beside: &'static [Step],
    /// Alone, at the end.
    pub(super) last: Step,
}

/// Seconds of a step that runs in the time of others: it only compiles, or tries a bounded number of things.
pub(super) const BESIDE: u64 = 300;

/// With the turns that compile little else.
const MACOS: Step = free("macos", BESIDE, cargo::macos, "type-check for aarch64-apple-darwin");

pub(super) const TURNS: [Turn; 4] = [
    Turn {
        beside: &[free("address-build", BESIDE, sanitizers::build_address, "what `address` runs, compiled")],
        last: Step {
            needs: Some("address-build"),
            ..free("address", 150, sanitizers::address, "threads and processes under AddressSanitizer")
        },
    },
    Turn {
        beside: &[free("thread-build", BESIDE, sanitizers::build_thread, "what `thread` runs, compiled")],
        last: Step {
            needs: Some("thread-build"),
            ..free("thread", 100, sanitizers::thread, "threads and processes under ThreadSanitizer")
        },
    },
    Turn {
        beside: &[MACOS, free("fuzz", BESIDE, fuzz::run, "decoders on hostile bytes")],
        last: built("guest", 200, rdma_vm::run, "the kernel's Soft-RoCE and rdma-core's library, in QEMU"),
    },
    Turn {
        beside: &[
            MACOS,
            free("loom", BESIDE, cargo::loom, "all interleavings of the lock-free parts"),
            free("miri", BESIDE, cargo::miri, "undefined behaviour in pure code"),
            // Last: it takes libcomity from the step `build`.
            free(
                "swift-build",
                BESIDE,
                swift::build,
                "what `swift` runs, compiled; once a Debian with Swift",
            ),
        ],
        last: Step {
            needs: Some("swift-build"),
            ..free("swift", 90, swift::check, "the Swift package: its tests, examples under comity launch")
        },
    },
];

fn gates(_: &Scope) -> Outcome {
    ::gates::check(root()).map(|count| Done::Passed(format!("{count} files")))
}

fn demo(_: &Scope) -> Outcome {
    tasks::demo::run(tasks::demo::Profile::Tests).map(Done::Passed)
}
