//! `comity agent`: a host's hands and eyes for `comity cluster` and `comity doctor`, which run elsewhere and started it over ssh.
//!
//! ```text
//! comity doctor -- ssh a -- comity agent      an order a line on standard input, an answer a line on standard output
//!              \-- ssh b -- comity agent      the two measure the cable between them
//! ```
//!
//! It ends when its input ends, or when nothing was asked for a while. It runs no program but those that ask about the host and,
//! where it is told to, the few that give an interface an address.
mod port;

pub(crate) use port::BeaconAnswer;

use crate::say::{CommandError, Exit};
use aws_lc_rs::hmac;
use comity::Key;
use comity_cluster::commands::is_step;
use comity_cluster::read::SURVEY;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An agent that hears nothing for so long has been forgotten.
const IDLE: Duration = Duration::from_secs(120);
/// The longest order.
const LONGEST_ORDER: u64 = 1 << 20;

/// The first line of an agent; what a login says before it is noise.
pub(crate) const GREETING_LINE: &str = "comity agent 1";
/// The number of this protocol; it grows when a line changes its meaning.
pub(crate) const PROTOCOL_OF_AGENT: u32 = 1;

/// For an answer, beside the time that the order takes.
const ANSWER: Duration = Duration::from_secs(20);

/// The second line.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HelloLine {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    /// Output of the survey's script.
    pub(crate) survey: String,
}

/// Order to an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgentOrder {
    /// Tell the time.
    Clock,
    /// Tell who you are on each interface, and listen who else does.
    Beacon { token: String, host: usize, port: u16, nics: Vec<String>, millis: u64 },
    /// Listen at these addresses, each at a port of this range or at any.
    Serve { token: String, ips: Vec<IpAddr>, range: Option<(u16, u16)> },
    /// Connect, measure the way, and what comes from there for so long; send datagrams of these sizes.
    Dial { token: String, to: SocketAddr, from: IpAddr, sizes: Vec<usize>, millis: u64 },
    /// Tell which datagrams came.
    Arrived,
    /// A proof of which job key is in this file.
    Key { file: Option<String>, nonce: String },
    /// May a process read the memory of another of the same user?
    Peek,
    /// Run a step of `comity cluster config`, as root.
    Run { words: Vec<String>, root: bool },
}

impl AgentOrder {
    /// Time for which the answer is waited for.
    pub(crate) const fn limit(&self) -> Duration {
        match self {
            Self::Beacon { millis, .. } => ANSWER.saturating_add(Duration::from_millis(*millis)),
            _ => ANSWER,
        }
    }
}

/// Something that is as it should be, or is not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PairAnswer {
    pub(crate) is_ok: bool,
    pub(crate) said: String,
    /// For [`AgentOrder::Key`]: there is a file of that name.
    #[serde(default)]
    pub(crate) is_there: bool,
}

impl PairAnswer {
    fn of(result: Result<String, String>) -> Self {
        match result {
            Ok(said) => Self { is_ok: true, said, is_there: false },
            Err(said) => Self { is_ok: false, said, is_there: false },
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Read a few bytes of process PID at ADDRESS, and say whether that is allowed
    #[arg(long, num_args = 2, value_names = ["PID", "ADDRESS"])]
    peek: Option<Vec<u64>>,
}

/// Answers orders until there are no more.
pub(crate) fn agent(args: AgentArgs) -> Exit {
    match args.peek.as_deref() {
        Some([pid, address]) => Ok(peek(*pid, *address)),
        _ => serve().map(|()| 0).map_err(CommandError::faulty),
    }
}

fn serve() -> io::Result<()> {
    let (send, orders) = mpsc::channel();
    // It ends with the process.
    std::thread::spawn(move || {
        let mut input = io::BufReader::new(io::stdin());
        loop {
            let mut line = String::new();
            match io::Read::take(&mut input, LONGEST_ORDER).read_line(&mut line) {
                Ok(n) if n > 0 && send.send(line).is_ok() => {}
                _ => break,
            }
        }
        drop(send);
    });
    let hello =
        HelloLine { protocol: PROTOCOL_OF_AGENT, version: crate::here::VERSION.into(), survey: survey() };
    say(GREETING_LINE)?;
    say(&serde_json::to_string(&hello)?)?;
    let mut ports = port::Ports::default();
    while let Ok(order) = orders.recv_timeout(IDLE) {
        let answer = match serde_json::from_str::<AgentOrder>(&order) {
            Ok(order) => obey(order, &mut ports),
            Err(e) => json!({ "error": format!("it does not understand {:?}: {e}", order.trim()) }),
        };
        say(&answer.to_string())?;
    }
    Ok(())
}

/// Writes a line. An agent that nobody reads any more ends with the error.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

pub(crate) fn survey() -> String {
    let run = Command::new("sh").args(["-c", SURVEY]).stdin(Stdio::null()).output();
    run.map_or_else(|e| format!("sh: {e}"), |o| String::from_utf8_lossy(&o.stdout).into_owned())
}

fn obey(order: AgentOrder, ports: &mut port::Ports) -> Value {
    match order {
        AgentOrder::Clock => json!({ "unix_us": now() }),
        AgentOrder::Beacon { token, host, port, nics, millis } => {
            told(port::beacons(&token, host, port, &nics, Duration::from_millis(millis.min(10_000))))
        }
        AgentOrder::Serve { token, ips, range } => told(Ok(ports.open(&token, &ips, range))),
        AgentOrder::Dial { token, to, from, sizes, millis } => {
            told(Ok(port::dial(&token, to, from, &sizes, millis.min(10_000))))
        }
        AgentOrder::Arrived => told(Ok(ports.arrived())),
        AgentOrder::Key { file, nonce } => {
            let is_there = file.as_ref().is_some_and(|file| Path::new(file).exists());
            told(Ok(PairAnswer { is_there, ..PairAnswer::of(proof_of_key(file.as_deref(), &nonce)) }))
        }
        AgentOrder::Peek => told(Ok(PairAnswer::of(may_peek()))),
        AgentOrder::Run { words, root } => told(Ok(PairAnswer::of(run_step(&words, root)))),
    }
}

fn told<T: Serialize>(answer: Result<T, String>) -> Value {
    match answer {
        Ok(answer) => serde_json::to_value(answer).unwrap_or_default(),
        Err(e) => json!({ "error": e }),
    }
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_micros() as u64)
}

/// Runs one of the few programs that steps are made of.
fn run_step(words: &[String], root: bool) -> Result<String, String> {
    if !is_step(words) {
        return Err(format!("{words:?} is nothing that a step of comity runs"));
    }
    let sudo: &[&str] = if root { &[] } else { &["sudo", "-n", "--"] };
    let all: Vec<&str> = sudo.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let (program, args) = all.split_first().ok_or("no command")?;
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let done = Command::new(program).args(args).env("PATH", path).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("{}: {e}", all.join(" ")))?;
    let said = String::from_utf8_lossy(&done.stderr).trim().chars().take(300).collect::<String>();
    match done.status.success() {
        true => Ok(said),
        false => Err(format!("`{}` ended with {}: {said}", all.join(" "), done.status)),
    }
}

/// A proof of which key this host has, by which the key itself is not known: it is another for each nonce.
pub(crate) fn proof_of_key(file: Option<&str>, nonce: &str) -> Result<String, String> {
    let from_variable = || std::env::var_os("COMITY_KEY_FILE").map(PathBuf::from);
    let path = file.map(PathBuf::from).or_else(from_variable);
    let path = path.ok_or("there is no COMITY_KEY_FILE in the environment of a login there")?;
    let key = Key::from_file(&path).map_err(|e| e.to_string())?;
    let by = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    let tag = hmac::sign(&by, format!("comity doctor {nonce}").as_bytes());
    Ok(tag.as_ref().iter().map(|b| format!("{b:02x}")).collect())
}

/// Bytes that the child is to find.
static SIGN: [u8; 8] = *b"comity!\n";

/// Has a child read this process's memory.
fn may_peek() -> Result<String, String> {
    if !cfg!(target_os = "linux") {
        return Ok("is asked on Linux only".into());
    }
    let own = comity_launch::own_program::own_words().map_err(|e| e.to_string())?;
    let pid = std::process::id();
    let address = SIGN.as_ptr() as usize;
    let mut child = Command::new(&own[0]);
    child
        .args(&own[1..])
        .args(["agent", "--peek", &pid.to_string(), &address.to_string()])
        .stdin(Stdio::null());
    let said = child.output().map_err(|e| e.to_string())?;
    match said.status.success() {
        true => Ok(String::new()),
        false => Err(String::from_utf8_lossy(&said.stderr).trim().chars().take(200).collect()),
    }
}

/// The child's part; the exit code.
#[cfg(target_os = "linux")]
fn peek(pid: u64, address: u64) -> u8 {
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    use std::io::IoSliceMut;
    let mut found = [0; SIGN.len()];
    let from = RemoteIoVec { base: address as usize, len: found.len() };
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap_or(0));
    let why = match process_vm_readv(pid, &mut [IoSliceMut::new(&mut found)], &[from]) {
        Ok(_) if found == SIGN => return 0,
        Ok(_) => "it read something else".into(),
        Err(e) => format!("process_vm_readv: {e}"),
    };
    eprintln!("{why}");
    1
}

/// The child's part; the exit code.
#[cfg(not(target_os = "linux"))]
fn peek(_: u64, _: u64) -> u8 {
    2
}
