//! The gate's steps: what runs in each of its parts, and how long each takes.

use crate::test::{
    Done, Outcome, Step, book, c, cargo, chaos, cluster, conformance, counts, fuzz, hosts, launchers, python,
    rdma, rdma_vm, sanitizers, scope::Scope, ssh, swift,
};
use tasks::place::root;

/// Steps that only read and check: `prepare` runs beside them.
pub(super) const LINTS: &[Step] = &[
    Step { name: "format", about: "rustfmt", usual: 6, needs: None, run: cargo::format },
    Step {
        name: "gates",
        about: "imports, unsafe code, waits and doc comments are as they should be",
        usual: 6,
        needs: None,
        run: gates,
    },
    Step { name: "clippy", about: "lints, none allowed", usual: 200, needs: None, run: cargo::clippy },
];

/// Then these, which compile.
pub(super) const BUILD: &[Step] = &[
    Step {
        name: "documents",
        about: "rustdoc, no warning allowed",
        usual: 60,
        needs: None,
        run: cargo::documents,
    },
    Step {
        name: "build",
        about: "everything that the tests use, once",
        usual: 320,
        needs: None,
        run: cargo::build,
    },
];

/// First of all that runs something.
pub(super) const TESTS: Step = Step {
    name: "tests",
    about: "unit, property, integration and documentation tests",
    usual: 200,
    needs: Some("build"),
    run: cargo::tests,
};

/// Jobs that hold no time, in two rows at once: each waits a good deal.
pub(super) const SIDE_BY_SIDE: [&[Step]; 2] = [
    &[
        Step {
            name: "conformance",
            about: "every operation over each link and backend: shared memory, TCP, MPI, NCCL's stand-in",
            usual: 150,
            needs: Some("build"),
            run: conformance::run,
        },
        Step {
            name: "counts",
            about: "instructions of one small call, by single steps: Rust, C, NumPy and torch, each below its limit",
            usual: 90,
            needs: Some("build"),
            run: counts::run,
        },
    ],
    &[
        Step {
            name: "demo",
            about: "train on 1, 2 and 4 ranks; the weights agree",
            usual: 30,
            needs: Some("build"),
            run: demo,
        },
        Step {
            name: "launchers",
            about: "under torch's variables, Open MPI and MPICH",
            usual: 65,
            needs: Some("build"),
            run: launchers::run,
        },
        Step {
            name: "c",
            about: "libcomity installed: its symbols, C programs as jobs, examples by pkg-config and CMake",
            usual: 40,
            needs: Some("build"),
            run: c::run,
        },
    ],
];

/// Then these, which hold times, one after the other.
pub(super) const EVERY: &[Step] = &[
    Step {
        name: "rdma",
        about: "rdma-core's programs on a software device; layouts against its header",
        usual: 45,
        needs: Some("build"),
        run: rdma::run,
    },
    Step {
        name: "hosts",
        about: "two and three hosts as network namespaces: IPv4 and IPv6, cables without a switch, a relay",
        usual: 70,
        needs: Some("build"),
        run: hosts::check,
    },
    Step {
        name: "python",
        about: "the Python package, installed; 1 to 4 processes",
        usual: 220,
        needs: Some("build"),
        run: python::check,
    },
    Step {
        name: "book",
        about: "the documents as a book: no warning; links, paths, examples in Python",
        usual: 60,
        needs: Some("build"),
        run: book::check,
    },
    Step {
        name: "chaos",
        about: "jobs broken at random, for half a minute",
        usual: 50,
        needs: Some("build"),
        run: chaos::run,
    },
];

/// Jobs on three hosts over ssh; one of them a run.
pub(super) const OVER_SSH: [Step; 2] = [
    Step {
        name: "ssh",
        about: "comity launch over ssh: three hosts with their own sshd, and what can happen to them",
        usual: 60,
        needs: Some("build"),
        run: ssh::check,
    },
    Step {
        name: "cluster",
        about: "comity cluster and doctor on three hosts: cables found, set up, undone; planted faults found",
        usual: 60,
        needs: Some("build"),
        run: cluster::check,
    },
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
const MACOS: Step = Step {
    name: "macos",
    about: "type-check for aarch64-apple-darwin",
    usual: BESIDE,
    needs: None,
    run: cargo::macos,
};

pub(super) const TURNS: [Turn; 4] = [
    Turn {
        beside: &[Step {
            name: "address-build",
            about: "what the step address runs, compiled",
            usual: BESIDE,
            needs: None,
            run: sanitizers::build_address,
        }],
        last: Step {
            name: "address",
            about: "threads and processes under AddressSanitizer",
            usual: 150,
            needs: Some("address-build"),
            run: sanitizers::address,
        },
    },
    Turn {
        beside: &[Step {
            name: "thread-build",
            about: "what the step thread runs, compiled",
            usual: BESIDE,
            needs: None,
            run: sanitizers::build_thread,
        }],
        last: Step {
            name: "thread",
            about: "threads and processes under ThreadSanitizer",
            usual: 100,
            needs: Some("thread-build"),
            run: sanitizers::thread,
        },
    },
    Turn {
        beside: &[
            MACOS,
            Step {
                name: "fuzz",
                about: "decoders on hostile bytes",
                usual: BESIDE,
                needs: None,
                run: fuzz::run,
            },
        ],
        last: Step {
            name: "guest",
            about: "the kernel's Soft-RoCE and rdma-core's library, in a QEMU guest",
            usual: 200,
            needs: Some("build"),
            run: rdma_vm::run,
        },
    },
    Turn {
        beside: &[
            MACOS,
            Step {
                name: "loom",
                about: "all interleavings of the lock-free parts",
                usual: BESIDE,
                needs: None,
                run: cargo::loom,
            },
            Step {
                name: "miri",
                about: "undefined behaviour in pure code",
                usual: BESIDE,
                needs: None,
                run: cargo::miri,
            },
            Step {
                // Last: it takes libcomity from the step `build`.
                name: "swift-build",
                about: "what the step swift runs, compiled; once a Debian with Swift",
                usual: BESIDE,
                needs: None,
                run: swift::build,
            },
        ],
        last: Step {
            name: "swift",
            about: "the Swift package: its tests, examples under comity launch",
            usual: 90,
            needs: Some("swift-build"),
            run: swift::check,
        },
    },
];

fn gates(_: &Scope) -> Outcome {
    ::gates::check(root()).map(|count| Done::Passed(format!("{count} files")))
}

fn demo(_: &Scope) -> Outcome {
    tasks::demo::run(tasks::demo::Profile::Tests).map(Done::Passed)
}
