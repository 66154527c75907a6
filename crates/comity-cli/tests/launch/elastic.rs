//! Jobs that go on without ranks: who dies is started again and joins, and the others are not ended.
use super::harness::*;
use super::hosts::stand_in;
use comity::{Group, ReduceOp, ReformOptions, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
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
        Self::start_in(tempfile::tempdir().unwrap(), flags, |command| command)
    }

    fn start_in(
        dir: tempfile::TempDir,
        flags: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let logs = dir.path().join("logs");
        let own = std::env::current_exe().unwrap();
        let place = format!("{PLACE}={}", dir.path().display());
        let log_dir = logs.display().to_string();
        let flags = [flags, &["--log-dir", &log_dir, "--env", &place, "--"]].concat();
        let rank = [own.to_str().unwrap(), "--exact", NAME, "--nocapture", "--test-threads=1"];
        let mut job = start_with(&[&flags[..], &rank].concat(), change);
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

    /// Kills the process that has this in its environment, and this word in its command line.
    fn kill_it(&self, variable: &str, word: &str) {
        let is_it = |pid: Pid| {
            let read =
                |what: &str| std::fs::read(format!("/proc/{}/{what}", pid.as_raw_pid())).unwrap_or_default();
            let has = |what: &str, word: &str| read(what).split(|b| *b == 0).any(|w| w == word.as_bytes());
            has("environ", variable) && has("cmdline", word)
        };
        let pid =
            wait_for("the process", || self.job.processes().iter().map(|p| p.pid).find(|pid| is_it(*pid)));
        kill_process(pid, Signal::KILL).unwrap();
    }

    fn kill(&self, rank: usize) {
        self.kill_it(&format!("COMITY_RANK={rank}"), NAME);
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
    let done = job.finish().ends(0);
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
    let done = job.job.finish().ends(137);
    assert!(done.err.contains("(SIGKILL); the job goes on without it\n"), "{}", done.err);
    let last = done.last();
    assert!(last.starts_with("comity launch: rank 1 (pid "), "{}", done.err);
    assert!(last.ends_with("; 1 rank was left then, and --elastic asks for 2 at least"), "{}", done.err);
}

/// A rank on another host is started again there; then the host itself is lost, and its rank comes back with it.
fn on_several_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = stand_in(dir.path()).display().to_string();
    let job =
        Elastic::start_in(dir, &["--ssh", &ssh, "--hosts", "a:2,b", "--elastic", "2"], |command| command);
    (0..3).for_each(|rank| job.await_word(rank, &format!("3 ranks, place {rank}, start 0")));
    job.kill(2);
    job.await_word(2, "3 ranks, place 2, start 1");
    [0, 1].into_iter().for_each(|rank| job.await_word(rank, "3 ranks"));
    job.kill_it("NAMED=b", "guard");
    job.await_word(2, "3 ranks, place 2, start 2");
    [0, 1].into_iter().for_each(|rank| job.await_word(rank, "3 ranks"));
    let done = job.finish().ends(0);
    let lost = done.err.lines().find(|line| line.contains("host b was lost")).unwrap_or_default();
    assert!(lost.ends_with("; the job goes on, and the host is tried again in 1 s"), "{}", done.err);
}

/// `comity join` as the launcher prints it, and no more than MAX.
fn by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("job.key");
    let made = Command::new(env!("CARGO_BIN_EXE_comity")).args(["key", "new"]).arg(&key).status().unwrap();
    assert!(made.success());
    let err = dir.path().join("err");
    let to = std::fs::File::create(&err).unwrap();
    let job = Elastic::start_in(dir, &["-n", "2", "--elastic", "2:3"], |command| {
        command.env("COMITY_KEY_FILE", &key).stderr(Stdio::from(to))
    });
    (0..2).for_each(|rank| job.await_word(rank, "2 ranks"));
    let said = std::fs::read_to_string(&err).unwrap();
    let line =
        said.lines().find_map(|line| line.split_once("`comity ")?.1.strip_suffix(" -- COMMAND`")).unwrap();
    let join = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(line.split(' ')).arg("--").arg(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(PLACE, job.dir.path()).env("RUST_BACKTRACE", "0");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut guest = join();
    (0..2).for_each(|rank| job.await_word(rank, "3 ranks"));
    let refused = join().wait_with_output().unwrap();
    let text =
        String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("at most beside the 2 that its launcher starts"),
        "{text}"
    );
    job.finish().ends(0);
    assert!(guest.wait().unwrap().success());
}

/// A test that is also the program of the ranks.
#[test]
fn jobs_go_on() {
    match std::env::var_os(PLACE) {
        Some(dir) => work(Path::new(&dir)).unwrap(),
        None => {
            come_back();
            too_few();
            on_several_hosts();
            by_hand();
        }
    }
}

#[test]
fn who_joins_without_what_it_takes_is_told() {
    let join = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        let done = command.arg("join").args(words).env_remove("COMITY_KEY_FILE").output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for (words, part) in [
        (&["10.0.0.1", "--insecure", "--", "true"][..], "10.0.0.1:7100"),
        (&["10.0.0.1:7100", "--", "true"], "--key-file"),
        (&["10.0.0.1:7100", "--key-file", "/nowhere/key", "--", "true"], "/nowhere/key"),
        (&["10.0.0.1:7100", "--insecure", "--", "no-such-program"], "PATH was searched"),
    ] {
        let (code, err) = join(words);
        assert!(code == Some(2) && err.contains(part), "{words:?}: {code:?} {err}");
    }
    let environment =
        "[ $COMITY_JOIN$COMITY_STORE$COMITY_INSECURE = 110.0.0.1:71001 ] && [ -z \"$COMITY_RANK\" ]";
    assert_eq!(join(&["10.0.0.1:7100", "--insecure", "--", "sh", "-c", environment]).0, Some(0));
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
