//! `comity agent`: a host's hands and eyes for `comity cluster` and `comity doctor`, which run elsewhere and started it over ssh.
//!
//! ```text
//! comity doctor -- ssh a -- comity agent      an order a line on standard input, an answer a line on standard output
//!              \-- ssh b -- comity agent      the two measure the cable between them
//! ```
//!
//! It ends when its input ends, or when nothing was asked for a while. It runs no program but those that ask about the host and,
//! where it is told to, the few that give an interface an address.
mod beacon;
mod line;
mod peek;
mod port;
mod setup;

pub(crate) use beacon::BeaconAnswer;
pub(crate) use line::{AgentOrder, GREETING_LINE, HelloLine, PROTOCOL_OF_AGENT, PairAnswer};
pub(crate) use setup::key as proof_of_key;

use crate::say::{Exit, say};
use comity_cluster::read::SURVEY;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, BufRead};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An agent that hears nothing for so long has been forgotten.
const IDLE: Duration = Duration::from_secs(120);
/// The longest order.
const LONGEST_ORDER: u64 = 1 << 20;

/// Arguments of `comity agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Read a few bytes of process PID at ADDRESS, and say whether that is allowed
    #[arg(long, num_args = 2, value_names = ["PID", "ADDRESS"])]
    peek: Option<Vec<u64>>,
}

/// Answers orders until there are no more.
pub(crate) fn agent(args: AgentArgs) -> Exit {
    match args.peek.as_deref() {
        Some([pid, address]) => Ok(peek::peek(*pid, *address)),
        _ => serve(),
    }
}

fn serve() -> Exit {
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
    say(format!("{GREETING_LINE}\n{}\n", json!(hello)), 0)?;
    let mut ports = port::Ports::default();
    while let Ok(order) = orders.recv_timeout(IDLE) {
        let answer = match serde_json::from_str::<AgentOrder>(&order) {
            Ok(order) => obey(order, &mut ports),
            Err(e) => json!({ "error": format!("it does not understand {:?}: {e}", order.trim()) }),
        };
        say(format!("{answer}\n"), 0)?;
    }
    Ok(0)
}

/// Surveys this host and returns the script's output.
pub(crate) fn survey() -> String {
    let run = Command::new("sh").args(["-c", SURVEY]).stdin(Stdio::null()).output();
    run.map_or_else(|e| format!("sh: {e}"), |o| String::from_utf8_lossy(&o.stdout).into_owned())
}

fn obey(order: AgentOrder, ports: &mut port::Ports) -> Value {
    match order {
        AgentOrder::Clock => json!({ "unix_us": now() }),
        AgentOrder::Beacon { token, host, port, nics, millis } => {
            told(beacon::listen(&token, host, port, &nics, Duration::from_millis(millis.min(10_000))))
        }
        AgentOrder::Serve { token, ips, range } => told(Ok(ports.open(&token, &ips, range))),
        AgentOrder::Dial { token, to, from, sizes, millis } => {
            told(Ok(port::dial(&token, to, from, &sizes, millis.min(10_000))))
        }
        AgentOrder::Arrived => told(Ok(ports.arrived())),
        AgentOrder::Key { file, nonce } => {
            let is_there = file.as_ref().is_some_and(|file| std::path::Path::new(file).exists());
            told(Ok(PairAnswer { is_there, ..PairAnswer::of(setup::key(file.as_deref(), &nonce)) }))
        }
        AgentOrder::Peek => told(Ok(PairAnswer::of(peek::allowed()))),
        AgentOrder::Run { words, root } => told(Ok(PairAnswer::of(setup::run(&words, root)))),
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
