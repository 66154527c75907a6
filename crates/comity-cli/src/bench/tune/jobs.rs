//! The jobs of `--tune` and `--predict`: each kind of link, each number of ranks, round after round.

use super::survey::SurveyRow;
use crate::here::own_words;
use comity_plan::HostLink;
use std::{
    collections::BTreeMap,
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// More rounds say nothing more.
const MOST_ROUNDS: usize = 5;
/// A job that takes longer hangs.
const JOB_LIMIT: &str = "600";

/// Measurements that every job makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurveyJob<'a> {
    pub(super) name: &'a str,
    /// All, if none.
    pub(super) ops: &'a [String],
    pub(super) sizes: &'a [u64],
    /// Seconds for an algorithm at a size.
    pub(super) budget: f64,
    /// By the usual costs, whatever file there is.
    pub(super) usual: bool,
}

/// Circumstances of a measurement: timings with the same ones can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimingPlace {
    pub(super) op: String,
    pub(super) link: HostLink,
    pub(super) ranks: usize,
    pub(super) bytes: u64,
}

/// Timings of one algorithm there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timed {
    pub(super) algorithm: String,
    /// Microseconds, round by round.
    pub(super) rounds: Vec<f64>,
    pub(super) predicted_us: f64,
    pub(super) chosen: bool,
}

/// Timings of all jobs.
#[derive(Debug, Default)]
pub(super) struct Timings {
    pub(super) all: Vec<(TimingPlace, Timed)>,
    pub(super) rounds: usize,
}

impl Timed {
    /// The middle of the rounds; of two in the middle the shorter, for what disturbs makes longer.
    pub(super) fn us(&self) -> f64 {
        middle(self.rounds.clone())
    }
}

/// The middle of some, or the lower of two in the middle.
pub(super) fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Runs at least one round; another if it is likely to fit into `within`.
pub(super) fn run(job: &SurveyJob<'_>, ranks: &[usize], within: Duration) -> Result<Timings, String> {
    let start = Instant::now();
    let mut found = Timings::default();
    let mut at = BTreeMap::new();
    while found.rounds < MOST_ROUNDS {
        let round = Instant::now();
        for (link, &n) in HostLink::ALL.into_iter().flat_map(|l| ranks.iter().map(move |n| (l, n))) {
            eprintln!("comity bench {}: round {}, {}, {n} ranks", job.name, found.rounds + 1, link.name());
            for row in one(job, link, n)? {
                let place = TimingPlace { op: row.op, link, ranks: n, bytes: row.bytes };
                let key = (place.clone(), row.algorithm.clone());
                let i = *at.entry(key).or_insert_with(|| {
                    let (algorithm, rounds) = (row.algorithm, Vec::new());
                    let timed =
                        Timed { algorithm, rounds, predicted_us: row.predicted_us, chosen: row.chosen };
                    found.all.push((place, timed));
                    found.all.len() - 1
                });
                found.all[i].1.rounds.push(row.us);
            }
        }
        found.rounds += 1;
        if start.elapsed() + round.elapsed() > within {
            break;
        }
    }
    Ok(found)
}

/// Runs a job of this very program.
fn one(job: &SurveyJob<'_>, link: HostLink, n: usize) -> Result<Vec<SurveyRow>, String> {
    let bad = |why: String| format!("{}: the job of {n} ranks over {} {why}", job.name, link.name());
    let me = own_words().map_err(|e| bad(format!("cannot be started: {e}")))?;
    let sizes: Vec<_> = job.sizes.iter().map(u64::to_string).collect();
    let mut command = Command::new(&me[0]);
    command.args(&me[1..]).args([
        "launch",
        "--timeout",
        JOB_LIMIT,
        "--tag-output=never",
        "-n",
        &n.to_string(),
        "--",
    ]);
    command.args(&me).arg("bench").args(job.ops).args(["--survey", "--at-sizes", &sizes.join(",")]);
    command.args(["--budget", &job.budget.to_string()]).env("COMITY_LINKS", link.name());
    // What a user has set for jobs is no property of the host.
    let of_comity =
        env::vars_os().map(|(name, _)| name).filter(|n| n.as_encoded_bytes().starts_with(b"COMITY_"));
    let mine = of_comity.filter(|n| job.usual || n == "COMITY_ALGORITHM" || n == "COMITY_BACKEND");
    for name in mine.filter(|n| n != "COMITY_LINKS") {
        command.env_remove(name);
    }
    if job.usual {
        command.env("COMITY_COSTS", "off");
    }
    let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let out = out.map_err(|e| bad(format!("cannot be started: {e}")))?;
    if !out.status.success() {
        return Err(bad(format!("failed ({})", out.status)));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let rows = text.lines().map(serde_json::from_str).collect::<Result<Vec<SurveyRow>, _>>();
    let rows = rows.map_err(|e| bad(format!("said what is no timing: {e}")))?;
    if rows.is_empty() { Err(bad("said nothing".into())) } else { Ok(rows) }
}
