//! `comity top` and `comity stacks` of jobs that run, that have a slow rank, and that hang.
#![cfg(target_os = "linux")]

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod nodes;

use comity::ReduceOp;
use common::{
    COMITY, Ended, comity, holds, lacks, launch, patient, read_json, this_test, wait_for, works,
    write_program,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The variable that makes a process of this test a rank, and tells it what to do.
const ROLE: &str = "LIVE_TEST_ROLE";

/// The program of all ranks.
#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
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
}

/// A launcher of such ranks, which shows itself in this folder.
fn launcher(folder: &Path, role: &str, flags: &[&str]) -> Command {
    let mut command = launch(flags, &this_test("rank"));
    // The machine may be crowded: no rank is to be missed for that.
    command.env("COMITY_DETECTION", "100").env(ROLE, role).env("XDG_RUNTIME_DIR", folder);
    command.stdout(Stdio::null());
    command
}

/// A job, which is ended with this value.
struct Job {
    child: Child,
    folder: tempfile::TempDir,
}

impl Job {
    fn start(role: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = launcher(folder.path(), role, flags).spawn().unwrap();
        Self { child, folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = comity();
        command.args(words).env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    fn ask(&self, words: &[&str]) -> Ended {
        Ended::of(&mut self.command(words))
    }

    fn view(&self) -> Option<Value> {
        let told = self.ask(&["top", "--json"]);
        (told.code == 0).then(|| read_json(&told.out))
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("comity").join(format!("{}.sock", self.child.id()))
    }

    /// Until `top --once` says all of this.
    fn until(&self, parts: &[&str]) -> String {
        wait_for(parts.join(", ").as_str(), || {
            let text = self.ask(&["top", "--once"]).out;
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

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_job_is_found_by_a_socket_of_its_user_alone_which_goes_with_it() {
    let job = Job::start("go", &["-n", "2"]);
    let view = wait_for("calls of both ranks", || {
        job.view().filter(|v| (0..2).all(|r| v["ranks"][r]["calls"].as_u64().is_some_and(|c| c > 10)))
    });
    let socket = job.socket();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
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
    job.ask(&["top", "--once", &pid]).ends(0);
    // A job's id may begin with any digit.
    job.ask(&["top", "--once", "none"]).ends(1).says(&[&pid]);
    let folder = job.end(143);
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

/// Launcher in a container, which has no number for a process that asks from outside. Needs root, or user namespaces.
#[test]
fn a_job_of_another_namespace_of_processes_answers() {
    let apart = ["unshare", "-rpf", "--mount-proc", "--kill-child"];
    if !works(Command::new("unshare").args(&apart[1..]).arg("true")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let launcher = launcher(folder.path(), "go", &["-n", "2"]);
    let mut inside = Command::new(apart[0]);
    inside.args(&apart[1..]).arg(COMITY).args(launcher.get_args());
    inside.envs(launcher.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let job = Job { child: inside.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap(), folder };
    let view = wait_for("an answer", || job.view());
    assert_eq!((view["size"].as_u64(), view["launcher"].as_u64()), (Some(2), Some(1)), "{view}");
}

#[test]
fn a_launcher_whose_second_process_is_killed_leaves_no_socket() {
    let mut job = Job::start("go", &["-n", "1"]);
    wait_for("the socket", || job.socket().exists().then_some(()));
    let children = format!("/proc/{0}/task/{0}/children", job.child.id());
    let keeper = fs::read_to_string(children).unwrap();
    let keeper = Pid::from_raw(keeper.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    let socket = job.socket();
    let code = wait_for("the launcher", || job.child.try_wait().unwrap()).code();
    assert_eq!((code, socket.exists()), (Some(137), false));
}

#[test]
fn a_job_that_hangs_says_for_whom_all_wait() {
    let job = Job::start("hang", &["-n", "3"]);
    let text = job.until(&["nothing has moved for", "for rank 1, which is in no call", "HUNG"]);
    holds(&text, &["ranks 0, 2 wait", "(after all_reduce #"]);
    let stacks = job.ask(&["stacks"]).out;
    let odd = stacks.find("rank 1: in no call");
    let rest = stacks.find("ranks 0, 2: in all_reduce");
    assert!(odd.zip(rest).is_some_and(|(a, b)| a < b), "{stacks}");
    holds(&stacks, &["    now     all_reduce", "asleep", "waits for rank"]);
    job.end(143);
}

#[test]
fn a_slow_rank_and_a_stopped_one_stand_out() {
    let job = Job::start("slow", &["-n", "3"]);
    job.until(&["slowest: rank 2 waits", "SLOW"]);
    let pid = job.view().unwrap()["ranks"][0]["pid"].as_i64().unwrap();
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let text = job.until(&["is stopped; `kill -CONT", "for rank 0, which is stopped"]);
    holds(&text, &["ranks 1, 2 wait"]);
    kill_process(pid, Signal::CONT).unwrap();
    job.end(143);
}

/// Stands for `ssh`: drops its options and the host's name, and runs the command here.
const SSH: &str =
    "while [ \"$1\" != -- ]; do [ \"$1\" = -G ] && { echo hostname 127.0.0.1; exit; }; shift; done
shift 2
exec sh -c \"$*\"";

#[test]
fn over_hosts_the_launcher_answers_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    write_program(&ssh, SSH);
    let flags = ["--hosts", "a,b:2", "--ssh", ssh.to_str().unwrap(), "--meet-at", "127.0.0.1"];
    let role = format!("{ROLE}=hang");
    let flags = [&flags[..], &["--env", &role, "--env", "COMITY_DETECTION=100"]].concat();
    let job = Job::start("launch", &flags);
    let text = job.until(&["for rank 1, which is in no call", "ranks 0, 2 wait"]);
    lacks(&text, &["shown are"]);
    let view = job.view().unwrap();
    assert_eq!((view["size"].as_u64(), view["ranks"].as_array().map(Vec::len)), (Some(3), Some(3)), "{view}");
    assert!(view["silent"].as_array().is_some_and(Vec::is_empty) && view["is_part"] == false, "{view}");
    job.ask(&["stacks"]).shows(&["rank 1: in no call"]);
    // The same from a machine on which it was not launched.
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let file = dir.path().join("hosts");
    fs::write(&file, "a slots=1\nb slots=2\n").unwrap();
    let mut far = job.command(&["top", "--once", file.to_str().unwrap()]);
    Ended::of(far.env("PATH", path)).shows(&["ranks 0, 2 wait"]);
    let folder = job.end(143);
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
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

/// `comity top --http` of a job, and the address that it says.
fn page_of(job: &Job) -> (Child, String) {
    wait_for("the job", || job.view());
    let mut top = job.command(&["top", "--http", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (top, line.trim().to_owned())
}

#[test]
fn the_page_shows_the_same_to_those_who_have_the_token() {
    let job = Job::start("hang", &["-n", "2"]);
    let (mut top, url) = page_of(&job);
    let (at, query) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let at: SocketAddr = at.parse().unwrap();
    let page = get(at, &format!("/{query}"));
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    holds(&page, &["Content-Security-Policy: default-src 'none'", "<svg id=\"drawing\""]);
    for target in ["/", "/picture", "/?token=0", "/picture?token="] {
        let text = get(at, target);
        assert!(text.starts_with("HTTP/1.1 403") && !text.contains("rows"), "{text}");
    }
    let picture = wait_for("what hangs", || {
        let text = get(at, &format!("/picture{query}"));
        let picture = read_json(text.split_once("\r\n\r\n").unwrap().1);
        let hangs = |t: &str| t.contains("nothing has moved");
        picture["findings"][0]["text"].as_str().is_some_and(hangs).then_some(picture)
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
        let told = Ended::of(comity().arg(word).env("XDG_RUNTIME_DIR", folder.path())).ends(1);
        told.says(&["no job runs here", "comity launch"]);
    }
}

/// Anybody can make a folder of that name among the temporary files.
#[test]
fn a_folder_that_others_can_enter_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("comity");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let run = |words: &[&str]| Ended::of(comity().args(words).env("XDG_RUNTIME_DIR", folder.path()));
    run(&["top"]).says(&["not a folder of this user's alone"]);
    run(&["launch", "--verbose", "true"]).ends(0).says(&["will not see this job"]);
}
