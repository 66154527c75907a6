//! Counts the instructions of small calls, so that a slower path shows at once, also on a busy machine.
//!
//! ```text
//!   counts.rs   the jobs: Rust, C, NumPy, torch; 8 bytes on one rank and on two
//!   tracer.rs   single steps between two markers
//! ```
//!
//! Code as the gate has built it is counted, unoptimised but for the loops of reductions: the numbers are larger than a user's.

#[cfg(target_os = "linux")]
mod tracer;
/// Elsewhere the step is not run: it asks for Linux.
#[cfg(not(target_os = "linux"))]
mod tracer {
    use crate::test::step::Outcome;
    use tasks::child::Task;

    pub(super) fn count(_: Task, _: usize, _: usize) -> Outcome<Vec<u64>> {
        Err("programs are stepped through on Linux".into())
    }
}

use super::{jobs::comity, python, scope::Scope, step::Outcome};
use crate::c;
use std::fmt;
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

/// The day on which the numbers were counted: Rust 1.95, Python 3.11, torch 2.15.
const DATE: &str = "2026-11-29";

/// A case, with its limit.
#[derive(Debug)]
struct Limit {
    /// `Rust`, `C`, or an argument of `eight_bytes.py`.
    language: &'static str,
    ranks: usize,
    /// The median on that day.
    seen: u64,
    /// More fails. A tenth is for others' processors, which copy by other instructions, and for compilers.
    most: u64,
}

const fn limit(language: &'static str, ranks: usize, seen: u64, most: u64) -> Limit {
    Limit { language, ranks, seen, most }
}

/// Limits for debug builds, which leave the library as it is: see `profile.dev` in the workspace's manifest.
///
/// A second rank adds the same from every language, so Python's calls are counted on one.
const LIMITS: &[Limit] = &[
    limit("Rust", 1, 5_281, 5_850),
    limit("Rust", 2, 19_236, 21_200),
    limit("C", 1, 6_818, 7_500),
    limit("C", 2, 20_773, 22_900),
    limit("numpy", 1, 17_276, 19_000),
    // Since the group returns its own works: a call in Python more on the way there and on the way back.
    limit("torch", 1, 90_166, 99_200),
];

impl Limit {
    fn is_python(&self) -> bool {
        matches!(self.language, "numpy" | "torch")
    }

    /// Advice about so many instructions, if they are too many.
    fn exceeded(&self, now: u64) -> Option<String> {
        (now > self.most).then(|| {
            format!(
                "{self}: one call takes {now} instructions; it took {} on {DATE}, and {} are allowed. Profile the call (perf, or gdb with \
                 `record`), or raise the limit in tools/steps/src/test/counts.rs, in the commit that says what they are for",
                self.seen, self.most
            )
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks == 1 { "1 rank".into() } else { format!("{} ranks", self.ranks) };
        write!(f, "{}, {ranks}", self.language)
    }
}

/// Programs of the jobs: in C, and the package.
struct Programs {
    folder: Scratch,
}

impl Programs {
    fn new() -> Result<Self, String> {
        let folder = Scratch::new("programs")?;
        c::install(&folder.join("prefix"), "debug")?;
        let include = format!("-I{}", folder.text("prefix/include"));
        let lib = folder.text("prefix/lib");
        let libraries = [format!("-L{lib}"), "-lcomity".into(), format!("-Wl,-rpath,{lib}")];
        let task = Task::new("cc").args([
            "-std=gnu99",
            "-g",
            &include,
            "crates/comity-c/tests/c/eight_bytes.c",
            "-o",
        ]);
        task.arg(folder.join("eight_bytes")).args(libraries).args(["-pthread", "-ldl"]).run()?;
        lay_out(&folder)?;
        Ok(Self { folder })
    }

    /// Instructions of one call of rank 0, in a job of so many ranks that makes the calls of this language.
    fn count(&self, language: &str, ranks: usize, more: usize) -> Outcome<u64> {
        let job = Task::new(comity())
            .args(["launch", "-n", &ranks.to_string(), "--timeout", "100", "--"])
            .limit(120);
        let job = if ranks > 1 { job.env("COMITY_LINKS", "shm") } else { job };
        let numbers = [EMPTY, CALLS, more].map(|n| n.to_string());
        let job = match language {
            "Rust" => job.arg(built("debug", "examples/eight_bytes")).args(numbers),
            "C" => job.arg(self.folder.join("eight_bytes")).args(&numbers[..2]),
            _ => job
                .arg(python::interpreter())
                .arg(root().join("python/tests/scripts/eight_bytes.py"))
                .args(&numbers[..2])
                .arg(language)
                .env("PYTHONPATH", self.folder.join("package"))
                // Dictionaries ask as many slots each time.
                .env("PYTHONHASHSEED", "0")
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("OMP_NUM_THREADS", "1"),
        };
        let mut empty = tracer::count(job, ranks, EMPTY + CALLS)?;
        let calls = empty.split_off(EMPTY);
        Ok(median(calls).saturating_sub(median(empty)))
    }
}

fn median(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

/// The package of this build, for an interpreter: its sources, and the extension that cargo has built.
fn lay_out(folder: &Scratch) -> Result<(), String> {
    let links = r#"mkdir -p "$0" && ln -s "$PWD"/python/comity/* "$0" && rm -f "$0"/*.so && ln -s "$1" "$0/_core.abi3.so""#;
    let package = folder.join("package/comity");
    Task::sh(links).arg(package).arg(built("debug", "lib_core.so")).run().map(drop)
}

/// Counts all cases, then one that has more to do and must be found.
pub(super) fn run(_: &Scope) -> Outcome {
    let programs = Programs::new()?;
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let of_python = python::own().args(["-c", version]).run()?.trim() == PYTHON;
    let mut too_many = Vec::new();
    println!("{:24} {:>9} {:>9} {:>9}", "one call of 8 bytes", "now", DATE, "limit");
    for limit in LIMITS {
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
        return Err(too_many.join("\n").into());
    }
    // A check that cannot fail shows nothing.
    let limit = &LIMITS[0];
    let now = programs.count(limit.language, limit.ranks, PLANTED)?;
    if limit.exceeded(now).is_none() {
        return Err(format!(
            "{limit}: a loop of {PLANTED} turns in the call was not found: {now} instructions"
        )
        .into());
    }
    Ok(format!("{} calls of 8 bytes within their limits; a planted loop was found", LIMITS.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_calls_may_be_disturbed() {
        assert_eq!((median(vec![9000, 10, 9000, 11, 10]), median(Vec::new())), (11, 0));
    }

    #[test]
    fn limits_are_near_what_was_seen() {
        for Limit { seen, most, .. } in LIMITS {
            assert!(*most >= seen + seen / 20 && *most <= seen + seen / 5, "{seen} {most}");
        }
    }
}
