//! Everything at full size, in parts that run by themselves. [`page`] has each part as it ended last; one that has passed at this state
//! of the code is not run again.

mod page;

use super::{
    Done, Outcome, Step, arm, browser, c, cargo, chaos, cluster, conformance, dependencies, fuzz, hosts,
    launchers, others, processes, python, ray, rdma, rdma_vm, sanitizers, scope::Scope, slurm, ssh,
    step::table, suites, swift,
};
use tasks::child::Task;

/// The soak, where `--hours` says nothing.
pub(super) const SOAK_HOURS: f64 = 2.0;

/// Minutes of chaos.
const CHAOS: f64 = 60.0;
/// Seeds of the simulator, some twenty minutes on 2 cores.
const SEEDS: u64 = 100_000;
/// Ranks of the largest simulated job.
const VAST: usize = 4096;
/// Hours of virtual time for jobs that nothing ends.
const HOURS: u64 = 10_000;
/// Seconds for each fuzz target.
pub(super) const FUZZ: u64 = 600;

const fn part(name: &'static str, about: &'static str, run: fn(&Scope) -> Outcome) -> Step {
    // Each command in it has a limit of its own.
    Step { name, about, usual: 0, needs: None, run }
}

pub(super) const PARTS: &[Step] = &[
    part("tests", "all tests, every matrix whole", cargo::tests),
    part("simulator", "100,000 seeds of failing jobs", simulator),
    part("vast", "jobs of 4,096 simulated ranks, and the same mistakes found in them", vast),
    part("hours", "10,000 simulated hours of crowded jobs, nobody given up", hours),
    part("conformance", "every operation over each link and backend, all rank counts", conformance::run),
    part("full", "every operation, type and size, 4 processes, as released", processes::full),
    part("load", "64 ranks, 1,000 calls in flight; nothing grows", processes::load),
    part("c", "the C interface: every rank count, link and fault; leaks; JAX", c::run),
    part("swift", "the Swift package", swift::check),
    part("arm", "Linux on aarch64, emulated: unit tests, larger pages, check, the wheel, C", arm::run),
    part("candle", "candle's examples beside transformers; checkpoints read by others", suites::candle),
    part("others", "burn, candle's own models and the page for other Rust libraries", others::check),
    part("rdma", "rdma-core's programs on a software device; Comity's links over it", rdma::run),
    part("guest", "the kernel's Soft-RoCE in a QEMU guest, every case", rdma_vm::run),
    part("hosts", "two hosts, as network namespaces, IPv4 and IPv6", hosts::check),
    part("ssh", "comity launch over ssh: a switch, a triangle, a chain", ssh::check),
    part("cluster", "comity cluster and doctor on three hosts, all twelve planted faults", cluster::check),
    part("browser", "the page of comity top in headless Chromium", browser::check),
    part("launchers", "under torch's variables, Open MPI and MPICH", launchers::run),
    part("slurm", "under srun: two nodes of a real Slurm", slurm::check),
    part("python", "the Python package as released, every framework", python::check),
    part("torch-suite", "torch's own tests of a backend, beside gloo", suites::torch),
    part("reconfigure", "torch's own tests of groups whose members change, beside gloo", suites::reconfigure),
    part(
        "torchft",
        "torchft's manager over Comity, beside gloo: a replica dies and comes back",
        suites::torchft,
    ),
    part("strangers", "small programs after other systems' reports, beside gloo", suites::strangers),
    part("ray", "actors of a real Ray: every operation, two groups, a killed actor", ray::check),
    part("mlx-suite", "MLX's own distributed tests, beside its ring", suites::mlx),
    part("address", "all tests under AddressSanitizer", sanitizers::address),
    part("thread", "all tests under ThreadSanitizer", sanitizers::thread),
    part("miri", "undefined behaviour in pure code", cargo::miri),
    part("loom", "all interleavings of the lock-free parts", cargo::loom),
    part("fuzz", "decoders on hostile bytes, 10 minutes each", fuzz::run),
    part("chaos", "jobs broken at random, for an hour", an_hour_of_chaos),
    part("elastic-chaos", "a job that loses ranks and takes in others, for an hour", chaos::elastic),
    part("soak", "eight ranks to a core for 2 hours (--hours), nobody given up", soak),
    part("licences", "licences, bans and sources of all dependencies, by cargo-deny", dependencies::licences),
    part("advisories", "known faults of dependencies, by cargo-deny", dependencies::advisories),
    part("semver", "what the public API changed, by cargo-semver-checks", dependencies::semver),
    part("macos", "type-check of everything for aarch64-apple-darwin", cargo::macos),
];

fn simulator(_: &Scope) -> Outcome {
    const TEST: &str = "simulate::the_promise_is_kept";
    let task = Task::cargo().args(["test", "--workspace", "--lib", TEST, "--", "--exact"]);
    cargo::count(&task.env("COMITY_SIM_SEEDS", SEEDS.to_string()).limit(3 * 3600).echo().run()?)?;
    Ok(Done::Passed(format!("{SEEDS} seeds")))
}

fn vast(_: &Scope) -> Outcome {
    let task = Task::cargo().args(["test", "-p", "comity-membership", "--lib", "simulate::vast::"]);
    let task = task.args(["--", "--nocapture", "--test-threads=1"]).env("COMITY_SIM_VAST", VAST.to_string());
    cargo::count(&task.limit(3 * 3600).echo().run()?)?;
    Ok(Done::Passed(format!("{VAST} ranks, every fault and every mistake")))
}

fn hours(_: &Scope) -> Outcome {
    const TEST: &str = "simulate::hours_pass_without_a_false_alarm";
    let task = Task::cargo().args(["test", "--workspace", "--lib", TEST, "--", "--exact", "--nocapture"]);
    let out = task.env("COMITY_SIM_HOURS", HOURS.to_string()).limit(3 * 3600).echo().run()?;
    cargo::count(&out)?;
    Ok(Done::Passed(format!("{HOURS} simulated hours, no false alarm")))
}

fn an_hour_of_chaos(scope: &Scope) -> Outcome {
    chaos::for_minutes(CHAOS, scope.seed)
}

fn soak(scope: &Scope) -> Outcome {
    ::chaos::run(&::chaos::Choice::soak(scope.hours)).map(Done::Passed)
}

/// These parts, or all; each is written down when it has ended. One that fails does not stop the others.
pub(super) fn run(names: &[&str], hours: f64, again: bool) -> Result<(), String> {
    let scope = Scope::deep(hours);
    let state = page::state()?;
    let mut rows = Vec::new();
    for part in PARTS.iter().filter(|p| names.is_empty() || names.contains(&p.name)) {
        if !again && page::has_passed(part.name, &state)? {
            println!("\n=== {}: passed already at {state}; --again runs it anew", part.name);
            continue;
        }
        let row = part.apart(&scope, true, false);
        page::write(&row, &state)?;
        rows.push(row);
    }
    println!("\n{}\nwritten to {}", table(&rows), page::PAGE);
    let failed: Vec<_> = rows.iter().filter(|r| r.outcome.is_err()).map(|r| r.name.as_str()).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}; each alone: cargo xtask test --deep NAME", failed.join(", ")))
    }
}
