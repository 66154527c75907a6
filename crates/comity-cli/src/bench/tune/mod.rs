//! `comity bench --tune`: what the cost model goes by, measured on this host; `--predict`: how near it is.
//!
//! ```text
//!   --tune      jobs of 2 ranks to as many as there are cores, over shared memory and over TCP (jobs.rs)
//!                 each: every algorithm at every size (survey.rs)
//!                 ──> comity_plan::fit ──> a file that jobs on this host find: tools::costs_place
//!   --predict   the same jobs, by that file, at other sizes and rank counts: report.rs
//! ```
mod jobs;
mod report;
mod survey;

use super::BenchArgs;
use comity::tools::{self, TunedFile};
use comity_plan::{HostLink, Kind, Timing, fit};
use jobs::{SurveyJob, Timings};
use std::{
    env, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
pub(super) use survey::survey;

/// Sizes that are measured: from one to the next a line is close enough. From 1 MiB on buffers are cut into segments.
const KNOTS: [u64; 11] =
    [8, 64, 512, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Sizes at which predictions are held against measurements, most of them others.
const PROBES: [u64; 9] = [8, 128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Rank counts that are measured, up to the number of cores, and that number.
const RANKS: [usize; 13] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Rank counts at which predictions are held against measurements.
const PROBED_RANKS: [usize; 11] = [2, 3, 4, 5, 8, 11, 16, 28, 32, 64, 128];
/// Time that each of the two may take, in seconds, about.
const WITHIN: f64 = 140.0;
/// Time for one algorithm at one size in a round, in seconds.
const BUDGET: f64 = 3e-3;

/// Arguments of `comity bench` for this.
#[derive(Debug, clap::Args)]
pub(super) struct TuneArgs {
    /// Measure the cost model's numbers on this host, for a file that jobs find
    #[arg(long, conflicts_with_all = ["ops", "algorithm", "device", "backend"])]
    tune: bool,

    /// Expected and measured time of every algorithm (after --tune, if both)
    #[arg(long, conflicts_with_all = ["algorithm", "device", "backend", "csv", "compare", "html"])]
    predict: bool,

    /// With --tune, --predict: what each may take [default: 140]
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    within: Option<f64>,

    /// With --predict: write PATH.md and PATH.json too
    #[arg(long, value_name = "PATH", requires = "predict")]
    report: Option<PathBuf>,

    /// With --tune, --predict: these numbers of ranks, in place of those chosen by the cores
    #[arg(long, value_name = "N", value_delimiter = ',', hide = true, value_parser = clap::value_parser!(u64).range(2..=1024))]
    at_ranks: Vec<u64>,

    /// The same for bytes
    #[arg(long, value_name = "N", value_delimiter = ',', hide = true)]
    pub(super) at_sizes: Vec<u64>,

    /// Be a rank of such a job
    #[arg(long, hide = true, requires = "at_sizes")]
    survey: bool,
}

impl TuneArgs {
    /// Returns whether this process only starts jobs.
    pub(super) fn runs_jobs(&self) -> bool {
        self.tune || self.predict
    }

    /// Returns whether this is a rank of such a job.
    pub(super) fn is_survey(&self) -> bool {
        self.survey
    }

    /// Returns whether an operation is among those named, or none is named.
    fn wants(&self, ops: &[String], kind: Kind) -> bool {
        ops.is_empty() || ops.iter().any(|op| op == kind.name() || op == "all")
    }

    fn ranks(&self, usual: &[usize], cores: usize) -> Vec<usize> {
        if !self.at_ranks.is_empty() {
            return self.at_ranks.iter().map(|&n| n as usize).collect();
        }
        let mut all: Vec<usize> = usual.iter().copied().filter(|&n| n <= cores).collect();
        if all.last() != Some(&cores) {
            all.push(cores);
        }
        all
    }

    fn sizes(&self, usual: &[u64]) -> Vec<u64> {
        if self.at_sizes.is_empty() { usual.to_vec() } else { self.at_sizes.clone() }
    }

    fn within(&self) -> Duration {
        Duration::from_secs_f64(self.within.unwrap_or(WITHIN))
    }
}

/// `comity bench --tune`, `--predict`; the exit code.
pub(super) fn tune(args: &BenchArgs) -> u8 {
    let done = check().and_then(|cores| {
        if args.tune.tune {
            measure(args, cores)?;
        }
        if args.tune.predict {
            predict(args, cores)?;
        }
        Ok(())
    });
    match done {
        Ok(()) => 0,
        Err((code, why)) => {
            eprintln!("comity bench: {why}");
            code
        }
    }
}

/// An exit code, and what to say.
type Refused = (u8, String);

/// The cores of this host.
fn check() -> Result<usize, Refused> {
    // Under whatever launcher: all of them would measure at once.
    if env::var_os("COMITY_RANK").is_some() || comity::Config::from_env().is_ok_and(|c| c.size() > 1) {
        let words = "--tune and --predict start jobs of their own: run them without a launcher";
        return Err((2, words.into()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        let words = "--tune and --predict need 2 cores; this process may use 1: the usual costs hold";
        return Err((2, words.into()));
    }
    Ok(cores)
}

/// `--tune`.
fn measure(args: &BenchArgs, cores: usize) -> Result<(), Refused> {
    let home = config_home().ok_or_else(|| {
        let words = "--tune writes a file below $XDG_CONFIG_HOME or $HOME/.config, and neither is set to a whole path";
        (2, words.to_owned())
    })?;
    let path = tools::costs_place(&home);
    // Known before minutes of measuring.
    TunedFile::check_place(&path).map_err(|e| unwritable(&path, &e))?;
    let (ranks, sizes) = (args.tune.ranks(&RANKS, cores), args.tune.sizes(&KNOTS));
    let job = SurveyJob { name: "--tune", ops: &[], sizes: &sizes, budget: BUDGET, usual: true };
    let found = jobs::run(&job, &ranks, args.tune.within()).map_err(|why| (1, why))?;
    let [shm, tcp] = HostLink::ALL.map(|link| timings(&found, link));
    let costs = fit(&shm, &tcp);
    let costs = costs.ok_or_else(|| (1, "--tune: some timings are missing, or are no numbers".to_owned()))?;
    let file = TunedFile::here(costs, cores, now());
    file.save(&path).map_err(|e| unwritable(&path, &e))?;
    let gb = |per_byte: f64| 1e-9 / per_byte;
    for link in HostLink::ALL {
        let class = file.costs.class(link);
        let (alpha, beta) = (class.cost.alpha * 1e6, gb(class.cost.beta));
        println!("# {}: {alpha:.2} us a message, {beta:.1} GB/s", link.name());
    }
    println!("# added: {:.1} GB/s", gb(file.costs.gamma()));
    println!("# {} timings in {} rounds: {}", shm.len() + tcp.len(), found.rounds, path.display());
    println!("# Jobs whose rank 0 is on this host choose plans by it; COMITY_COSTS=off leaves it out.");
    Ok(())
}

fn unwritable(path: &Path, e: &io::Error) -> Refused {
    let path = path.display();
    (
        1,
        format!(
            "--tune: {path} cannot be written: {e}; XDG_CONFIG_HOME=FOLDER names another folder, for jobs, too"
        ),
    )
}

/// The timings over one kind of link, as the fit takes them.
fn timings(found: &Timings, link: HostLink) -> Vec<Timing> {
    let all = found.all.iter().filter(|(at, _)| at.link == link);
    all.filter_map(|(at, timed)| {
        let (kind, algorithm) = (Kind::from_name(&at.op)?, comity::Algorithm::from_name(&timed.algorithm)?);
        Some(Timing { kind, algorithm, ranks: at.ranks, bytes: at.bytes, seconds: timed.us() * 1e-6 })
    })
    .collect()
}

/// `--predict`.
fn predict(args: &BenchArgs, cores: usize) -> Result<(), Refused> {
    let (ranks, sizes) = (args.tune.ranks(&PROBED_RANKS, cores), args.tune.sizes(&PROBES));
    let job = SurveyJob { name: "--predict", ops: &args.ops, sizes: &sizes, budget: BUDGET, usual: false };
    let found = jobs::run(&job, &ranks, args.tune.within()).map_err(|why| (1, why))?;
    let config = comity::Config::from_env().map_err(|e| (2, e.to_string()))?;
    let report = report::PredictReport::new(&found, &tools::costs_note(&config), cores, now());
    let (text, json) = (report.markdown(), report.json());
    if let Some(path) = &args.tune.report {
        for (end, text) in [("md", &text), ("json", &json)] {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{end}"));
            std::fs::write(&name, text)
                .map_err(|e| (2, format!("--report {}: {e}", PathBuf::from(&name).display())))?;
        }
        println!("{}", report.summary());
    } else {
        println!("{}", if args.json { json } else { text });
    }
    Ok(())
}

/// Directory in which the user keeps configurations.
fn config_home() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_counts_end_with_the_cores() {
        let args = |at_ranks| TuneArgs {
            tune: true,
            predict: false,
            within: None,
            report: None,
            at_ranks,
            at_sizes: Vec::new(),
            survey: false,
        };
        assert_eq!(args(vec![]).ranks(&RANKS, 2), [2]);
        assert_eq!(args(vec![]).ranks(&RANKS, 10), [2, 3, 4, 6, 8, 10]);
        assert_eq!(args(vec![]).ranks(&PROBED_RANKS, 16), [2, 3, 4, 5, 8, 11, 16]);
        assert_eq!(args(vec![3]).ranks(&RANKS, 16), [3]);
        assert_eq!(args(vec![]).sizes(&KNOTS), KNOTS);
    }
}
