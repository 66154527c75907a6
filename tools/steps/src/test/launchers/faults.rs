//! Jobs of MPI that break: ranks that call different things, one that is killed, one that MPI has started and that never comes.
//!
//! MPI ends a job in its own way when a rank goes. What is looked at is what each of the others has said by itself before.

use crate::test::jobs::{fails, has};
use std::{fs, path::Path};
use tasks::{
    child::Task,
    place::{Scratch, write},
};

/// A rank whose words are kept.
const RANK: &str = include_str!("rank.sh");
/// A rank that is in MPI and nowhere else, for longer than the job may take.
const ABSENT: &str = "import ctypes, sys, time
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
time.sleep(120)
";
/// Seconds that a job may take: those that its ranks wait for each other, and some for a slow machine.
const LIMIT: u64 = 100;

/// Launcher of ranks, and the library of MPI that it is for.
pub(super) struct Launcher {
    pub(super) program: &'static str,
    pub(super) flags: &'static [&'static str],
    pub(super) library: &'static str,
    /// Command of the ranks, of which one is killed.
    pub(super) killed: &'static [&'static str],
}

/// All of them.
pub(super) fn check(launcher: &Launcher, comity: &Path) -> Result<(), String> {
    let job = |name| Job::new(launcher, comity, name);

    let mismatch = job("mismatch")?;
    let reduce = |dtype| ["--quick", "--ops", "all_reduce", "--dtypes", dtype];
    let part = |dtype| [vec!["-n".into(), "1".into()], mismatch.rank(2, "none", &reduce(dtype))].concat();
    mismatch.fails(&[part("f32"), part("f64")])?;
    for rank in [0, 1] {
        mismatch.said(rank, &["ranks disagree in dtype: ", "rank 0", "rank 1", "f32", "f64"])?;
    }

    let killed = job("killed")?;
    killed.fails(&[[vec!["-n".into(), "3".into()], killed.runs(3, "1", launcher.killed)].concat()])?;
    for rank in [0, 2] {
        killed.said(rank, &[": rank 1 (host ", " died: "])?;
    }

    let absent = job("absent")?;
    let ours = [vec!["-n".into(), "1".into()], absent.rank(1, "none", &["--quick"])].concat();
    let other = ["-n", "1", "python3", "-c", ABSENT, launcher.library].map(String::from);
    absent.fails(&[ours, other.to_vec()])?;
    absent.said(0, &["comity check: rank 0 was not joined by all other ranks", " within 5s; "])
}

/// A job that is to fail.
struct Job<'a> {
    launcher: &'a Launcher,
    comity: &'a Path,
    name: &'static str,
    folder: Scratch,
}

impl<'a> Job<'a> {
    fn new(launcher: &'a Launcher, comity: &'a Path, name: &'static str) -> Result<Self, String> {
        let folder = Scratch::new(name)?;
        write(folder.join("rank.sh"), RANK)?;
        Ok(Self { launcher, comity, name, folder })
    }

    /// `comity check`, for one of so many ranks that wait for each other's words.
    fn rank(&self, ranks: usize, killed: &str, args: &[&str]) -> Vec<String> {
        self.runs(ranks, killed, &[&["check"], args].concat())
    }

    /// The same of another command of `comity`.
    fn runs(&self, ranks: usize, killed: &str, args: &[&str]) -> Vec<String> {
        let mut all = vec!["sh".into(), self.folder.text("rank.sh"), self.folder.text(""), ranks.to_string()];
        all.extend([killed.into(), self.comity.display().to_string()]);
        all.extend(args.iter().chain(&["--backend", "mpi"]).map(|&a| a.to_owned()));
        all
    }

    /// Start these parts as one job; it is to end by itself, and not well.
    fn fails(&self, parts: &[Vec<String>]) -> Result<(), String> {
        let task =
            Task::new(self.launcher.program).args(self.launcher.flags).args(parts.join(&":".to_owned()));
        // What a killed rank leaves of MPI goes away with the folder.
        let own = self.folder.join("");
        let task = task
            .env("OMPI_MCA_btl_vader_backing_directory", &own)
            .env("OMPI_MCA_orte_tmpdir_base", &own)
            .env("COMITY_JOIN_TIMEOUT", if self.name == "absent" { "5" } else { "60" });
        fails(task.limit(LIMIT).run(), &["` failed ("]).map(drop).map_err(|e| self.about(&e))
    }

    /// Check that a rank's output contains all these texts.
    fn said(&self, rank: usize, words: &[&str]) -> Result<(), String> {
        let said = fs::read_to_string(self.folder.join(&format!("said.{rank}"))).unwrap_or_default();
        has(&said, words).map_err(|e| self.about(&format!("rank {rank}: {e}")))
    }

    fn about(&self, why: &str) -> String {
        format!("{} under {}: {why}", self.name, self.launcher.program)
    }
}
