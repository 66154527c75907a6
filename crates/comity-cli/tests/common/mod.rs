//! Helpers of all programs of tests: the command and how it ended, programs that stand in for others, ranks, and waits with a limit.
#![allow(dead_code, reason = "each program of tests needs some of it")]

use comity::{Key, tools::Store};
use serde_json::Value;
use std::{
    env, fs,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) const COMITY: &str = env!("CARGO_BIN_EXE_comity");

/// So many times longer than otherwise does everything take, as the sanitizers' parts of `cargo xtask test --deep` say.
pub(crate) fn slowness() -> u32 {
    env::var("COMITY_TEST_SLOWNESS").ok().map_or(1, |n| n.parse().unwrap())
}

/// `limit`, so many times longer.
pub(crate) fn patient(limit: Duration) -> Duration {
    limit * slowness()
}

/// Longer than anything here takes on a machine that is busy.
pub(crate) fn deadline() -> Duration {
    patient(Duration::from_secs(90))
}

pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_at_most(deadline(), what, look)
}

pub(crate) fn wait_at_most<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for {what}");
        // A look may start a program.
        let is_new = start.elapsed() < Duration::from_secs(1);
        thread::sleep(Duration::from_millis(if is_new { 5 } else { 50 }));
    }
}

/// A port at which nobody listens, nor at the one behind it, outside the ranges from which systems give ports away: until it is taken, seconds
/// later, no connection of another test gets it. Drawn, so that tests that run at once have different ones.
pub(crate) fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let drawn = (0..1000u16).map(|i| 10_000 + (RandomState::new().hash_one(i) % 11_000) as u16 * 2);
    drawn.into_iter().find(|port| is_free(*port) && is_free(port + 1)).expect("a free port")
}

/// The command without input, and without the variables that this test runs under: they are not what it is about.
pub(crate) fn comity() -> Command {
    let mut command = Command::new(COMITY);
    let launchers = ["COMITY_", "MLX_", "OMPI_", "PMI_", "SLURM_", "NCCL_", "CUDA_", "JACCL_", "SOFTVERBS_"];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let is_others = launchers.iter().any(|p| text.starts_with(p)) && !text.starts_with("COMITY_TEST_");
        if is_others || ["RANK", "WORLD_SIZE"].contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs it with these words.
pub(crate) fn run_comity(words: &[&str]) -> Ended {
    Ended::of(comity().args(words))
}

/// End of a program, and its words.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code as a shell shows it: 128 + signal when the program itself was killed.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Ended {
    /// Runs it to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        let start = Instant::now();
        let Output { status, stdout, stderr } = command.output().unwrap();
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Self { code, out, err, took: start.elapsed() }
    }

    /// Itself, once it is known to have ended with this code.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self
    }

    /// Checks that each of these stands in its errors.
    #[track_caller]
    pub(crate) fn says(&self, parts: &[&str]) -> &Self {
        holds(&self.err, parts);
        self
    }

    /// Checks that each of these stands in its output.
    #[track_caller]
    pub(crate) fn shows(&self, parts: &[&str]) -> &Self {
        holds(&self.out, parts);
        self
    }

    /// Its output and its errors.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    pub(crate) fn last(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }

    /// The lines of standard output, sorted, for the ranks' order is their own.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// Tries a command without which a test cannot run; under CI it has to work.
pub(crate) fn works(command: &mut Command) -> bool {
    let works = command.output().is_ok_and(|done| done.status.success());
    if !works {
        println!("NOT RUN: {command:?} does not work here");
        assert!(env::var_os("CI").is_none(), "under CI this must run");
    }
    works
}

/// Checks that each of these stands in a text.
#[track_caller]
pub(crate) fn holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

/// Checks that none of these does.
#[track_caller]
pub(crate) fn lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "'{part}' in: {text}");
    }
}

/// Writes a program of the shell.
pub(crate) fn write_program(path: &Path, lines: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

pub(crate) fn read_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Lines of both outputs of a process, as they come.
pub(crate) fn hear(child: &mut Child, send: impl Fn(String) + Clone + Send + 'static) -> Vec<JoinHandle<()>> {
    let out = child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>);
    let err = child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>);
    let reader = |from| {
        let send = send.clone();
        thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).for_each(send))
    };
    out.into_iter().chain(err).map(reader).collect()
}

/// Sockets for TCP of a process in this state, as `/proc/net/tcp` numbers it, by local address as that has it.
pub(crate) fn sockets(pid: u32, state: &str) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links: Vec<String> =
        links.filter_map(|l| Some(fs::read_link(l.path()).ok()?.to_string_lossy().into_owned())).collect();
    let table = |file| fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let inode = format!("socket:[{}]", fields.get(9)?);
        (fields[3] == state && links.contains(&inode)).then(|| fields[1].to_owned())
    };
    ["tcp", "tcp6"]
        .into_iter()
        .flat_map(|file| Vec::from_iter(table(file).lines().skip(1).filter_map(of)))
        .collect()
}

/// This program as that one of its tests, also where it only plays a part in others.
pub(crate) fn this_test(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::null());
    command
}

/// A command behind `launch` and its flags: what each rank runs.
pub(crate) fn launch(flags: &[&str], rank: &Command) -> Command {
    let mut command = comity();
    command.arg("launch").args(flags).arg("--").arg(rank.get_program()).args(rank.get_args());
    command
}

const KEY: [u8; 32] = [9; 32];

/// Place where the ranks of a test meet that no launcher started.
pub(crate) struct Meeting {
    store: Store,
    key: tempfile::NamedTempFile,
    size: usize,
}

impl Meeting {
    pub(crate) fn new(size: usize) -> Self {
        let limit = patient(Duration::from_secs(60));
        let store = Store::start(([127, 0, 0, 1], 0).into(), size, &Key::from(KEY), "test", limit).unwrap();
        let mut key = tempfile::NamedTempFile::new().unwrap();
        key.write_all(&KEY).unwrap();
        Self { store, key, size }
    }

    /// Makes the process that this command starts a rank, whose words are read.
    pub(crate) fn join(&self, rank: usize, command: &mut Command) {
        command.env("COMITY_RANK", rank.to_string()).env("COMITY_SIZE", self.size.to_string());
        command.env("COMITY_STORE", self.store.addr().to_string()).env("COMITY_JOB", "test");
        command.env("COMITY_KEY_FILE", self.key.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
}
