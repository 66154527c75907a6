//! Jobs that go on without ranks: who dies is started again and joins, and the others are not ended.
use super::harness::*;
use super::hosts::Hosts;
use comity::{Group, ReduceOp, ReformOptions, Result};
use rustix::process::{Signal, kill_process};
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
    hosts: Hosts,
}

impl Elastic {
    fn start(flags: &[&str]) -> Self {
        Self::start_in(Hosts::new(), flags, |command| command)
    }

    fn start_in(hosts: Hosts, flags: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let place = format!("{PLACE}={}", hosts.word(""));
        let log_dir = hosts.word("logs");
        let flags = [flags, &["--log-dir", &log_dir, "--env", &place, "--"]].concat();
        let own = std::env::current_exe().unwrap();
        let rank = [own.to_str().unwrap(), "--exact", NAME, "--nocapture", "--test-threads=1"];
        let mut job = start_with(&[&flags[..], &rank].concat(), change);
        job.logs = Some(log_dir.into());
        Self { job, hosts }
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
        kill_process(self.job.wait_process("", &format!("COMITY_RANK={rank}"), NAME), Signal::KILL).unwrap();
    }

    fn finish(self) -> Ended {
        self.hosts.file("end", "");
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
    let hosts = Hosts::new();
    let ssh = hosts.ssh.clone();
    let flags = ["--ssh", &ssh, "--hosts", "a:2,b", "--elastic", "2"];
    let job = Elastic::start_in(hosts, &flags, |command| command);
    (0..3).for_each(|rank| job.await_word(rank, &format!("3 ranks, place {rank}, start 0")));
    job.kill(2);
    job.await_word(2, "3 ranks, place 2, start 1");
    [0, 1].into_iter().for_each(|rank| job.await_word(rank, "3 ranks"));
    kill_process(job.job.wait_process("comity", "NAMED=b", "guard"), Signal::KILL).unwrap();
    job.await_word(2, "3 ranks, place 2, start 2");
    [0, 1].into_iter().for_each(|rank| job.await_word(rank, "3 ranks"));
    let done = job.finish().ends(0);
    let lost = done.err.lines().find(|line| line.contains("host b was lost")).unwrap_or_default();
    assert!(lost.ends_with("; the job goes on, and the host is tried again in 1 s"), "{}", done.err);
}

/// `comity join` as the launcher prints it, and no more than MAX.
fn by_hand() {
    let hosts = Hosts::new();
    let key = hosts.word("job.key");
    run_comity(&["key", "new", &key]).ends(0);
    let err = hosts.path("err");
    let to = std::fs::File::create(&err).unwrap();
    let job = Elastic::start_in(hosts, &["-n", "2", "--elastic", "2:3"], |command| {
        command.env("COMITY_KEY_FILE", &key).stderr(Stdio::from(to))
    });
    (0..2).for_each(|rank| job.await_word(rank, "2 ranks"));
    let said = std::fs::read_to_string(&err).unwrap();
    let line =
        said.lines().find_map(|line| line.split_once("`comity ")?.1.strip_suffix(" -- COMMAND`")).unwrap();
    let join = || {
        let mut command = comity();
        let rank = this_test(NAME);
        command.args(line.split(' ')).arg("--").arg(rank.get_program()).args(rank.get_args());
        command.env(PLACE, job.hosts.word("")).env("RUST_BACKTRACE", "0");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut guest = join();
    (0..2).for_each(|rank| job.await_word(rank, "3 ranks"));
    let refused = join().wait_with_output().unwrap();
    assert!(!refused.status.success());
    let text = String::from_utf8_lossy(&[refused.stdout, refused.stderr].concat()).into_owned();
    holds(&text, &["at most beside the 2 that its launcher starts"]);
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
fn who_joins_has_the_place_and_no_rank() {
    let script = "[ $COMITY_JOIN$COMITY_STORE$COMITY_INSECURE = 110.0.0.1:71001 ] && [ -z \"$COMITY_RANK\" ]";
    run_comity(&["join", "10.0.0.1:7100", "--insecure", "--", "sh", "-c", script]).ends(0);
}
