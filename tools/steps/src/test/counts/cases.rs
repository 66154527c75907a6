//! The jobs whose calls are counted.

use super::{
    limits::{self, DATE},
    tracer::{self, Uncounted},
};
use crate::test::{Done, Outcome, c, missing, python, scope::Scope};
use std::{fs, os::unix::fs::symlink, path::Path};
use tasks::{
    child::Task,
    place::{Scratch, built, root},
};

/// Pairs of markers with nothing between them, whose count is taken off.
const EMPTY: usize = 3;
/// Calls, whose median counts: a signal or another thread's lock disturbs few. A step takes 20 us in a nested virtual machine.
const CALLS: usize = 3;
/// Turns of a loop in each call of a job that must be found too slow.
const PLANTED: usize = 100;
/// The interpreter that the limits are of: others take other numbers for the same code.
const PYTHON: &str = "3.11";

/// Programs of the jobs.
struct Programs {
    installed: c::Installed,
    /// The same program as [`c::Installed`] has, through Rust.
    rust: std::path::PathBuf,
    c: std::path::PathBuf,
    package: Scratch,
}

impl Programs {
    fn new() -> Result<Self, String> {
        let installed = c::Installed::new()?;
        let source = c::sources().join("eight_bytes.c");
        let program = installed.compile("cc", &["-std=gnu99"], &source, "eight_bytes")?;
        Ok(Self { installed, rust: built("debug", "examples/eight_bytes"), c: program, package: package()? })
    }

    /// A job of so many ranks that makes the calls of this language.
    fn job(&self, language: &str, ranks: usize, more: usize) -> Task {
        let job = self.installed.job(ranks).limit(120);
        let job = if ranks > 1 { job.env("COMITY_LINKS", "shm") } else { job };
        let empty = EMPTY.to_string();
        let calls = CALLS.to_string();
        match language {
            "Rust" => job.args([&self.rust]).args([empty, calls, more.to_string()]),
            "C" => job.args([&self.c]).args([empty, calls]),
            _ => {
                let script = root().join("python/tests/scripts/eight_bytes.py");
                let job = job.args([python::interpreter()]).args([script]).args([&empty, &calls, language]);
                // Dictionaries ask as many slots each time.
                let job = job.env("PYTHONPATH", self.package.join("")).env("PYTHONHASHSEED", "0");
                job.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1")
            }
        }
    }

    /// Instructions of one call of rank 0.
    fn count(&self, language: &str, ranks: usize, more: usize) -> Result<u64, Uncounted> {
        let mut counts = tracer::count(self.job(language, ranks, more), ranks, EMPTY + CALLS)?;
        let calls = counts.split_off(EMPTY);
        Ok(median(calls).saturating_sub(median(counts)))
    }
}

fn median(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

/// The package of this build, for an interpreter: its sources, and the extension that cargo has built.
fn package() -> Result<Scratch, String> {
    let folder = Scratch::new("package").map_err(|e| format!("cannot make a folder: {e}"))?;
    let from = root().join("python/comity");
    let to = folder.join("comity");
    let lay_out = || -> std::io::Result<()> {
        fs::create_dir(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            if Path::new(&entry.file_name()).extension().is_none_or(|e| e != "so") {
                symlink(entry.path(), to.join(entry.file_name()))?;
            }
        }
        symlink(built("debug", "lib_core.so"), to.join("_core.abi3.so"))
    };
    lay_out().map_err(|e| format!("cannot lay out the package: {e}"))?;
    Ok(folder)
}

pub(in crate::test) fn run(_: &Scope) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Done::NotRun("the limits are of x86_64".into()));
    }
    if let Some(why) = c::lacking() {
        return missing(why);
    }
    if let not_run @ Done::NotRun(_) = python::prepare()? {
        return Ok(not_run);
    }
    match judged() {
        Ok(note) => Ok(Done::Passed(note)),
        Err(Uncounted::NotPermitted(why)) => missing(why),
        Err(Uncounted::Failed(why)) => Err(why),
    }
}

/// Counts all cases, then one that has more to do and must be found.
fn judged() -> Result<String, Uncounted> {
    let programs = Programs::new().map_err(Uncounted::Failed)?;
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = python::own().args(["-c", version]).run().map_err(Uncounted::Failed)?;
    let of_python = version.trim() == PYTHON;
    let mut too_many = Vec::new();
    println!("{:24} {:>9} {:>9} {:>9}", "one call of 8 bytes", "now", DATE, "limit");
    for limit in limits::LIMITS {
        let now = programs.count(limit.language, limit.ranks, 0)?;
        let note = if !of_python && limit.is_python() {
            "not judged: the limit is of another Python"
        } else if now < limit.seen - limit.seen / 5 {
            "a fifth fewer than the limit's: lower it"
        } else {
            too_many.extend(limit.exceeded(now));
            ""
        };
        println!("{:24} {now:>9} {:>9} {:>9}  {note}", limit.to_string(), limit.seen, limit.most);
    }
    if !too_many.is_empty() {
        return Err(Uncounted::Failed(too_many.join("\n")));
    }
    planted(&programs)?;
    let count = limits::LIMITS.iter().filter(|l| of_python || !l.is_python()).count();
    Ok(format!("{count} calls of 8 bytes within their limits; a planted loop was found"))
}

/// A check that cannot fail shows nothing.
fn planted(programs: &Programs) -> Result<(), Uncounted> {
    let limit = &limits::LIMITS[0];
    let now = programs.count(limit.language, limit.ranks, PLANTED)?;
    if limit.exceeded(now).is_none() {
        return Err(Uncounted::Failed(format!(
            "{limit}: a loop of {PLANTED} turns in the call was not found: {now} instructions, and {} are allowed",
            limit.most
        )));
    }
    println!("{limit}, with a loop of {PLANTED} turns: {now}, too many, as it should be");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_calls_may_be_disturbed() {
        assert_eq!(median(vec![9000, 10, 9000, 11, 10]), 11);
        assert_eq!(median(Vec::new()), 0);
    }
}
