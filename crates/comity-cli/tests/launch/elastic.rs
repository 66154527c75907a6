//! Jobs that go on without ranks: who dies is started again and joins, and the others are not ended.
use super::harness::*;
use comity::{Group, ReduceOp, ReformOptions, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

/// Directory in which a rank finds the word to end; it makes this program one.
const PLACE: &str = "LAUNCH_TEST_ELASTIC";
const NAME: &str = "elastic::jobs_go_on";

/// Adds up until the word comes, with whoever is there.
fn work(dir: &Path) -> Result<()> {
    let options = ReformOptions::new();
    let mut group = comity::init()?;
    let place = std::env::var("COMITY_RANK").unwrap_or_default();
    let mut size = 0;
    loop {
        let mut told = [1.0, f32::from(u8::from(dir.join("end").exists())), group.joiners() as f32];
        match group.all_reduce(&mut told, ReduceOp::Sum) {
            Ok(()) if told[1] > 0.0 => return group.close(),
            Ok(()) if told[2] > 0.0 => group = group.reform(&options)?.group,
            Ok(()) => {
                assert_eq!(told[0], group.size() as f32);
                say_size(&group, &mut size, &place);
            }
            Err(_) => group = group.reform(&options)?.group,
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn say_size(group: &Group, size: &mut usize, place: &str) {
    if std::mem::replace(size, group.size()) != group.size() {
        let restart = std::env::var("COMITY_RESTART").unwrap_or_default();
        println!("\n{} ranks, place {place}, start {restart}", group.size());
    }
}

/// A job of this program's, in which each rank says how many there are.
struct Elastic {
    job: Job,
    dir: tempfile::TempDir,
}

impl Elastic {
    fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        let own = std::env::current_exe().unwrap();
        let place = format!("{PLACE}={}", dir.path().display());
        let log_dir = logs.display().to_string();
        let flags = [flags, &["--log-dir", &log_dir, "--env", &place, "--"]].concat();
        let rank = [own.to_str().unwrap(), "--exact", NAME, "--nocapture", "--test-threads=1"];
        let mut job = start(&[&flags[..], &rank].concat());
        job.logs = Some(logs);
        Self { job, dir }
    }

    /// Waits until a rank's last word is this.
    fn await_word(&self, rank: usize, word: &str) {
        wait_for(&format!("rank {rank} to say '{word}'"), || {
            let log = self.job.log_of(rank);
            let last = log.lines().rfind(|line| line.contains(" ranks, place "))?;
            last.starts_with(word).then_some(())
        });
    }

    fn kill(&self, rank: usize) {
        let is_it = |pid: Pid| {
            let env = std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
            let has = |word: &str| env.split(|b| *b == 0).any(|v| v == word.as_bytes());
            has(&format!("COMITY_RANK={rank}"))
        };
        let pid = wait_for("the rank's process", || {
            self.job.processes().iter().map(|p| p.pid).find(|pid| is_it(*pid))
        });
        kill_process(pid, Signal::KILL).unwrap();
    }

    fn finish(self) -> Done {
        std::fs::write(self.dir.path().join("end"), "").unwrap();
        self.job.finish()
    }
}

/// Rank 1 is killed, then rank 0: both come back, and all end with 0.
fn come_back() {
    let job = Elastic::start(&["-n", "3", "--elastic", "2"]);
    (0..3).for_each(|rank| job.await_word(rank, &format!("3 ranks, place {rank}, start 0")));
    for dead in [1, 0] {
        job.kill(dead);
        job.await_word(dead, &format!("3 ranks, place {dead}, start 1"));
        (0..3).for_each(|rank| job.await_word(rank, "3 ranks"));
    }
    let done = job.finish();
    assert_eq!(done.code, 0, "{}", done.err);
    for words in [
        "killed by signal 9 (SIGKILL); the job goes on, and the rank is started again in 1 s (1 of 10)",
        "has joined",
    ] {
        assert_eq!(done.err.matches(words).count(), 2, "{}", done.err);
    }
}

/// Two of three are killed, and two are asked for: the last one cannot go on, and the job says so.
fn too_few() {
    let job = Elastic::start(&["-n", "3", "--elastic", "2", "--max-restarts", "0"]);
    (0..3).for_each(|rank| job.await_word(rank, "3 ranks"));
    job.kill(2);
    [0, 1].into_iter().for_each(|rank| job.await_word(rank, "2 ranks"));
    job.kill(1);
    let done = job.job.finish();
    assert_eq!(done.code, 137, "{}", done.err);
    assert!(done.err.contains("(SIGKILL); the job goes on without it\n"), "{}", done.err);
    let last = done.last();
    assert!(last.starts_with("comity launch: rank 1 (pid "), "{}", done.err);
    assert!(last.ends_with("; 1 rank was left then, and --elastic asks for 2 at least"), "{}", done.err);
}

/// A test that is also the program of the ranks.
#[test]
fn jobs_go_on() {
    match std::env::var_os(PLACE) {
        Some(dir) => work(Path::new(&dir)).unwrap(),
        None => {
            come_back();
            too_few();
        }
    }
}

#[test]
fn flags_that_do_not_go_with_it_are_refused() {
    for (flags, word) in [
        (&["-n", "1", "--elastic", "1"][..], "-n 2"),
        (&["-n", "2", "--elastic", "3"], "needs 3"),
        (&["-n", "2", "--elastic", "two"], "2:8"),
        (&["-n", "2", "--elastic", "1", "--wait-for-hosts", "9"], "--wait-for-hosts"),
        (&["-n", "2", "--elastic", "1", "--backend", "mpi"], "--backend mpi"),
        (&["--elastic", "1", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "localhost"], "--nnodes"),
    ] {
        let done = run(&[flags, &["true"]].concat());
        assert!(done.code == 2 && done.err.contains(word), "{flags:?}: {} {}", done.code, done.err);
    }
}
