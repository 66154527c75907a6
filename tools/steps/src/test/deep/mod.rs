//! Everything at full size, in parts that run by themselves, and in pieces of minutes: a run that was cut off goes on after
//! the last piece that passed. [`page`] is where it is written down.

mod page;
mod progress;

use super::{
    Done, Outcome, Step, arm, browser, c, candle, cargo, chaos, cluster, conformance, dependencies, fuzz,
    hosts, launchers, others, processes, python, ray, rdma, rdma_vm, sanitizers,
    scope::Scope,
    slurm, ssh,
    step::{Row, table},
    suites, swift,
};
use progress::{Progress, State};
use std::time::Duration;
use tasks::child::Task;

/// The soak, where `--hours` says nothing.
pub(super) const SOAK_HOURS: f64 = 2.0;

/// Minutes of a piece of chaos; six make an hour.
const CHAOS: f64 = 10.0;
/// Seeds of a piece of the simulator, some two minutes on 2 cores; ten make 100,000.
const SEEDS: u64 = 10_000;
/// Ranks of the largest simulated job.
const VAST: usize = 4096;
/// Hours of virtual time for jobs that nothing ends.
const HOURS: u64 = 10_000;
/// Seconds for each fuzz target.
pub(super) const FUZZ: u64 = 600;

/// Something that runs by itself.
pub(super) struct Part {
    pub(super) step: Step,
    pieces: usize,
}

const fn part(name: &'static str, about: &'static str, pieces: usize, run: fn(&Scope) -> Outcome) -> Part {
    // Each command in it has a limit of its own.
    Part { step: Step { name, about, usual: 0, needs: None, run }, pieces }
}

pub(super) const PARTS: &[Part] = &[
    part("tests", "all tests, every matrix whole", 1, cargo::tests),
    part("simulator", "100,000 seeds of failing jobs", 10, simulator),
    part("vast", "jobs of 4,096 simulated ranks, and the same mistakes found in them", 1, vast),
    part("hours", "10,000 simulated hours of crowded jobs, nobody given up", 1, hours),
    part("conformance", "every operation over each link and backend, all rank counts", 1, conformance::run),
    part("full", "every operation, type and size, 4 processes, as released", 1, processes::full),
    part("load", "64 ranks, 1,000 calls in flight; nothing grows", 1, processes::load),
    part("c", "the C interface: every rank count, link and fault; leaks; JAX", 1, c::run),
    part("swift", "the Swift package", 1, swift::check),
    part("arm", "Linux on aarch64, emulated: unit tests, larger pages, check, the wheel, C", 1, arm::run),
    part(
        "candle",
        "candle's examples as processes, beside transformers; checkpoints read by others",
        1,
        candle::check,
    ),
    part("others", "burn, candle's own models and the page for other Rust libraries", 1, others::check),
    part("rdma", "rdma-core's programs on a software device; Comity's links over it", 1, rdma::run),
    part("guest", "the kernel's Soft-RoCE in a QEMU guest, every case", 1, rdma_vm::run),
    part("hosts", "two hosts, as network namespaces, IPv4 and IPv6", 1, hosts::check),
    part("ssh", "comity launch over ssh: a switch, a triangle, a chain", 1, ssh::check),
    part("cluster", "comity cluster and doctor on three hosts, all twelve planted faults", 1, cluster::check),
    part("browser", "the page of comity top in headless Chromium", 1, browser::check),
    part("launchers", "under torch's variables, Open MPI and MPICH", 1, launchers::run),
    part("slurm", "under srun: two nodes of a real Slurm", 1, slurm::check),
    part("python", "the Python package as released, every framework", 1, python::check),
    part("torch-suite", "torch's own tests of a backend, beside gloo", 1, suites::torch),
    part(
        "reconfigure",
        "torch's own tests of groups whose members change, beside gloo",
        1,
        suites::reconfigure,
    ),
    part(
        "torchft",
        "torchft's manager over Comity, beside gloo: a replica dies and comes back",
        1,
        suites::torchft,
    ),
    part("strangers", "small programs after other systems' reports, beside gloo", 1, suites::strangers),
    part("ray", "actors of a real Ray: every operation, two groups, a killed actor", 1, ray::check),
    part("mlx-suite", "MLX's own distributed tests, beside its ring", 1, suites::mlx),
    part("address", "all tests under AddressSanitizer", sanitizers::PIECES, sanitizers::address),
    part("thread", "all tests under ThreadSanitizer", sanitizers::PIECES, sanitizers::thread),
    part("miri", "undefined behaviour in pure code", 1, cargo::miri),
    part("loom", "all interleavings of the lock-free parts", 1, cargo::loom),
    part("fuzz", "decoders on hostile bytes, 10 minutes each", fuzz::PIECES, fuzz::run),
    part("chaos", "jobs broken at random, for an hour", 6, an_hour_of_chaos),
    part("elastic-chaos", "a job that loses ranks and takes in others, for an hour", 1, chaos::elastic),
    part("soak", "eight ranks to a core for 2 hours (--hours), nobody given up", 1, soak),
    part(
        "licences",
        "licences, bans and sources of all dependencies, by cargo-deny",
        1,
        dependencies::licences,
    ),
    part("advisories", "known faults of dependencies, by cargo-deny", 1, dependencies::advisories),
    part("semver", "what the public API changed, by cargo-semver-checks", 1, dependencies::semver),
    part("macos", "type-check of everything for aarch64-apple-darwin", 1, cargo::macos),
];

fn simulator(scope: &Scope) -> Outcome {
    let first = scope.piece as u64 * SEEDS;
    const TEST: &str = "simulate::the_promise_is_kept";
    let task = Task::cargo().args(["test", "--workspace", "--lib", TEST, "--", "--exact"]);
    let task = task.env("COMITY_SIM_SEEDS", format!("{first}..{}", first + SEEDS));
    cargo::count(&task.limit(3600).echo().run()?)?;
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
    // A seed that broke something is in the failure; those of all pieces add up to nothing.
    Ok(match chaos::for_minutes(CHAOS, scope.seed.wrapping_add(scope.piece as u64))? {
        Done::Passed(note) => Done::Passed(note.split(", seed").next().unwrap_or_default().into()),
        not_run @ Done::NotRun(_) => not_run,
    })
}

fn soak(scope: &Scope) -> Outcome {
    ::chaos::run(&::chaos::Choice::soak(scope.hours)).map(Done::Passed)
}

/// These parts, or all; each is written down when it has ended. One that fails does not stop the others.
pub(super) fn run(names: &[&str], hours: f64, again: bool) -> Result<(), String> {
    let scope = Scope::deep(hours);
    let state = State::now()?;
    let mut rows = Vec::new();
    for part in PARTS.iter().filter(|p| names.is_empty() || names.contains(&p.step.name)) {
        let mut progress = Progress::read(part.step.name, &state);
        if again {
            progress.pieces.clear();
        }
        // What has passed keeps its line, with the day on which it did.
        let passed = progress.pieces.len() >= part.pieces;
        let row = part.run(&scope, progress)?;
        if !passed {
            page::write(&row, &state)?;
        }
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

impl Part {
    fn run(&self, scope: &Scope, mut progress: Progress) -> Result<Row, String> {
        let name = self.step.name;
        if progress.pieces.len() >= self.pieces {
            println!("\n=== {name}: passed already at this state of the code; --again runs it anew");
        } else if !progress.pieces.is_empty() {
            println!("\n=== {name}: goes on after piece {} of {}", progress.pieces.len(), self.pieces);
        }
        while progress.pieces.len() < self.pieces {
            let row = self.step.apart(&Scope { piece: progress.pieces.len(), ..*scope }, true);
            let before: Duration = progress.took();
            match row.outcome {
                Ok(Done::Passed(note)) => progress.add(row.took, &note)?,
                other => return Ok(Row { took: before + row.took, outcome: other, ..row }),
            }
        }
        Ok(Row { name: name.into(), took: progress.took(), outcome: Ok(Done::Passed(progress.note())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts() {
        let mut names: Vec<_> = PARTS.iter().map(|p| p.step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
        assert!(PARTS.iter().all(|p| p.pieces > 0));
    }
}
