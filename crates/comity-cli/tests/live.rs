//! `comity top` and `comity stacks` of jobs that run, that have a slow rank, and that hang.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

#[path = "live/browser.rs"]
mod browser;
#[path = "live/nodes.rs"]
mod nodes;
mod patience;
mod ports;

use comity::ReduceOp;
use patience::patient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The variable that makes a process of this test a rank, and tells it what to do.
const ROLE: &str = "LIVE_TEST_ROLE";

/// Plays the part of a rank if this process is one, and returns whether it is.
fn acted() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let group = comity::init().unwrap();
    let mut x = vec![1f32; 40_000];
    for n in 0.. {
        if role == "hang" && group.rank() == 1 && n == 20 {
            thread::sleep(Duration::from_secs(1000));
        }
        if role == "slow" && group.rank() == 2 {
            thread::sleep(Duration::from_millis(30));
        }
        thread::sleep(Duration::from_millis(1));
        group.all_reduce(&mut x, ReduceOp::Max).unwrap();
    }
    true
}

/// A job, which is ended with this value.
struct Job {
    child: Child,
    folder: tempfile::TempDir,
}

impl Job {
    fn start(test: &str, role: &str, flags: &[&str]) -> Self {
        Self::start_by(&[env!("CARGO_BIN_EXE_comity")], test, role, flags)
    }

    /// The launcher as the last of these words starts it.
    fn start_by(words: &[&str], test: &str, role: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("launch").args(flags).arg("--").arg(own).args([
            test,
            "--exact",
            "--include-ignored",
            "--nocapture",
        ]);
        command.env(ROLE, role).env("XDG_RUNTIME_DIR", folder.path());
        // The machine may be crowded: no rank is to be missed for that.
        command.env("COMITY_DETECTION", "100");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { child, folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(words).env("XDG_RUNTIME_DIR", self.folder.path()).stdin(Stdio::null());
        command
    }

    fn ask(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn text(&self, words: &[&str]) -> String {
        let done = self.ask(words);
        String::from_utf8_lossy(if done.status.success() { &done.stdout } else { &done.stderr }).into_owned()
    }

    fn view(&self) -> Option<Value> {
        let done = self.ask(&["top", "--json"]);
        done.status.success().then(|| serde_json::from_slice(&done.stdout).unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("comity").join(format!("{}.sock", self.child.id()))
    }

    /// Until `top --once` says all of this.
    fn until(&self, parts: &[&str]) -> String {
        wait_for(parts.join(", ").as_str(), || {
            let text = self.text(&["top", "--once"]);
            parts.iter().all(|p| text.contains(p)).then_some(text)
        })
    }

    fn end(mut self, code: i32) -> tempfile::TempDir {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = wait_for("the launcher", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(code));
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It ends its ranks when it is ended so.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + patient(Duration::from_secs(20));
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + patient(Duration::from_secs(90));
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "no sign of: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_job_is_found_by_a_socket_of_its_user_alone_which_goes_with_it() {
    if acted() {
        return;
    }
    let job =
        Job::start("a_job_is_found_by_a_socket_of_its_user_alone_which_goes_with_it", "go", &["-n", "2"]);
    let view = wait_for("calls of both ranks", || {
        job.view().filter(|v| (0..2).all(|r| v["ranks"][r]["calls"].as_u64().is_some_and(|c| c > 10)))
    });
    let socket = job.socket();
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    assert_eq!((view["size"].as_u64(), view["launcher"].as_u64()), (Some(2), Some(job.child.id().into())));
    for rank in 0..2 {
        let r = &view["ranks"][rank];
        assert_eq!((r["rank"].as_u64(), r["state"].as_str()), (Some(rank as u64), Some("running")), "{view}");
        let link = &r["links"][0];
        assert_eq!(link["peer"].as_u64(), Some(1 - rank as u64), "{view}");
        assert!(link["sent"].as_u64() > Some(100_000) && link["received"].as_u64() > Some(100_000), "{view}");
        assert_eq!(r["groups"][0]["size"].as_u64(), Some(2));
        assert!(r["groups"][0]["calls"].as_array().is_some_and(|c| c.len() == 4), "{view}");
    }
    let text = job.until(&["bit/s", "all_reduce", "rank  host"]);
    assert!(!text.contains('\x1b') && text.contains("0-1 "), "{text}");
    let pid = job.child.id().to_string();
    assert!(job.ask(&["top", "--once", &pid]).status.success());
    // A job's id may begin with any digit.
    let other = job.ask(&["top", "--once", "none"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains(&pid), "{other:?}");
    let folder = job.end(143);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}

/// Launcher in a container, which has no number for a process that asks from outside. Needs root, or user namespaces.
#[test]
fn a_job_of_another_namespace_of_processes_answers() {
    if acted() {
        return;
    }
    let apart = ["unshare", "-rpf", "--mount-proc", "--kill-child"];
    if !Command::new("unshare").args(&apart[1..]).arg("true").status().is_ok_and(|s| s.success()) {
        println!("NOT RUN: this user can make no namespace of processes, or `unshare` is missing");
        assert!(std::env::var_os("CI").is_none(), "under CI this must run");
        return;
    }
    let words = [&apart[..], &[env!("CARGO_BIN_EXE_comity")]].concat();
    let job = Job::start_by(&words, "a_job_of_another_namespace_of_processes_answers", "go", &["-n", "2"]);
    let view = wait_for("an answer", || job.view());
    assert_eq!((view["size"].as_u64(), view["launcher"].as_u64()), (Some(2), Some(1)), "{view}");
}

#[test]
fn a_launcher_whose_second_process_is_killed_leaves_no_socket() {
    if acted() {
        return;
    }
    let job = Job::start("a_launcher_whose_second_process_is_killed_leaves_no_socket", "go", &["-n", "1"]);
    wait_for("the socket", || job.socket().exists().then_some(()));
    let children = format!("/proc/{0}/task/{0}/children", job.child.id());
    let keeper = std::fs::read_to_string(children).unwrap();
    let keeper = Pid::from_raw(keeper.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    let socket = job.socket();
    let mut job = job;
    let code = wait_for("the launcher", || job.child.try_wait().unwrap()).code();
    assert_eq!((code, socket.exists()), (Some(137), false));
}

#[test]
fn a_job_that_hangs_says_for_whom_all_wait() {
    if acted() {
        return;
    }
    let job = Job::start("a_job_that_hangs_says_for_whom_all_wait", "hang", &["-n", "3"]);
    let text = job.until(&["nothing has moved for", "for rank 1, which is in no call", "HUNG"]);
    assert!(text.contains("ranks 0, 2 wait") && text.contains("(after all_reduce #"), "{text}");
    let stacks = job.text(&["stacks"]);
    let odd = stacks.find("rank 1: in no call");
    let rest = stacks.find("ranks 0, 2: in all_reduce");
    assert!(odd.zip(rest).is_some_and(|(a, b)| a < b), "{stacks}");
    assert!(stacks.contains("    now     all_reduce") && stacks.contains("asleep"), "{stacks}");
    assert!(stacks.contains("waits for rank"), "{stacks}");
    job.end(143);
}

#[test]
fn a_slow_rank_and_a_stopped_one_stand_out() {
    if acted() {
        return;
    }
    let job = Job::start("a_slow_rank_and_a_stopped_one_stand_out", "slow", &["-n", "3"]);
    job.until(&["slowest: rank 2 waits", "SLOW"]);
    let pid = job.view().unwrap()["ranks"][0]["pid"].as_i64().unwrap();
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let text = job.until(&["is stopped; `kill -CONT", "for rank 0, which is stopped"]);
    assert!(text.contains("ranks 1, 2 wait"), "{text}");
    kill_process(pid, Signal::CONT).unwrap();
    job.end(143);
}

/// Stands for `ssh`: drops its options and the host's name, and runs the command here.
const SSH: &str = "#!/bin/sh
while [ \"$1\" != -- ]; do [ \"$1\" = -G ] && { echo hostname 127.0.0.1; exit; }; shift; done
shift 2
exec sh -c \"$*\"
";

#[test]
fn over_hosts_the_launcher_answers_for_all() {
    use std::os::unix::fs::PermissionsExt;
    if acted() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    std::fs::write(&ssh, SSH).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["--hosts", "a,b:2", "--ssh", ssh.to_str().unwrap(), "--meet-at", "127.0.0.1"];
    let role = format!("{ROLE}=hang");
    let flags = [&flags[..], &["--env", &role, "--env", "COMITY_DETECTION=100"]].concat();
    let job = Job::start("over_hosts_the_launcher_answers_for_all", "launch", &flags);
    let text = job.until(&["for rank 1, which is in no call", "ranks 0, 2 wait"]);
    assert!(!text.contains("shown are"), "{text}");
    let view = job.view().unwrap();
    assert_eq!((view["size"].as_u64(), view["ranks"].as_array().map(Vec::len)), (Some(3), Some(3)), "{view}");
    assert!(view["silent"].as_array().is_some_and(Vec::is_empty) && view["is_part"] == false, "{view}");
    assert!(job.text(&["stacks"]).contains("rank 1: in no call"));
    // The same from a machine on which it was not launched.
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let file = dir.path().join("hosts");
    std::fs::write(&file, "a slots=1\nb slots=2\n").unwrap();
    let far = job.command(&["top", "--once", file.to_str().unwrap()]).env("PATH", path).output().unwrap();
    assert!(String::from_utf8_lossy(&far.stdout).contains("ranks 0, 2 wait"), "{far:?}");
    let folder = job.end(143);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}

/// GET of the page's address, with this in the place of its path and query.
fn get(at: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(patient(Duration::from_secs(30)))).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_page_shows_the_same_to_those_who_have_the_token() {
    if acted() {
        return;
    }
    let job = Job::start("the_page_shows_the_same_to_those_who_have_the_token", "hang", &["-n", "2"]);
    wait_for("the job", || job.view());
    let mut top = job.command(&["top", "--http", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (at, query) = line.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let at: SocketAddr = at.parse().unwrap();
    let page = get(at, &format!("/{query}"));
    assert!(
        page.starts_with("HTTP/1.1 200") && page.contains("Content-Security-Policy: default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("<svg id=\"drawing\""), "{page}");
    for target in ["/", "/picture", "/?token=0", "/picture?token="] {
        let text = get(at, target);
        assert!(text.starts_with("HTTP/1.1 403") && !text.contains("rows"), "{text}");
    }
    let picture = wait_for("what hangs", || {
        let text = get(at, &format!("/picture{query}"));
        let picture: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        picture["findings"][0]["text"]
            .as_str()
            .is_some_and(|t| t.contains("nothing has moved"))
            .then_some(picture)
    });
    assert_eq!(picture["rows"][1]["mark"], "hung", "{picture}");
    assert_eq!(picture["lines"][0]["a"], 0, "{picture}");
    // The page outlives the job, and says so.
    job.end(143);
    let text = get(at, &format!("/picture{query}"));
    wait_for("the end", || get(at, &format!("/picture{query}")).contains("the job has ended").then_some(()));
    assert!(text.starts_with("HTTP/1.1 200"));
    top.kill().unwrap();
    top.wait().unwrap();
}

#[test]
fn without_a_job_it_says_what_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    for word in ["top", "stacks"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        let done = command.arg(word).env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1));
        assert!(said.contains("no job runs here") && said.contains("comity launch"), "{said}");
    }
}

/// Anybody can make a folder of that name among the temporary files.
#[test]
fn a_folder_that_others_can_enter_is_not_believed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("comity");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(words).env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null()).output().unwrap()
    };
    let top = run(&["top"]);
    assert!(String::from_utf8_lossy(&top.stderr).contains("not a folder of this user's alone"), "{top:?}");
    let job = run(&["launch", "--verbose", "true"]);
    assert!(job.status.success());
    assert!(String::from_utf8_lossy(&job.stderr).contains("will not see this job"), "{job:?}");
}
