//! The hosts and the agents on them: one `ssh` each, all at once.
use crate::child::ended;
use crate::cluster::agent::{AgentOrder, GREETING_LINE, HelloLine, PROTOCOL_OF_AGENT};
use crate::say::{CommandError, USAGE};
use comity_cluster::facts::HostFacts;
use comity_cluster::read::{SURVEY, SURVEY_BEGINS, SURVEY_ENDS, facts_of};
use comity_launch::fleet::{
    FarCommand, FleetHost, SshOptions, explain_ssh, list_hosts, read_hostfile, ssh_command,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Until a host has said what it is: `system_profiler` takes seconds.
const HELLO: Duration = Duration::from_secs(40);
/// The longest line.
const LONGEST_LINE: u64 = 4 << 20;
/// Most bytes kept of the output of ssh.
const NOISE_KEPT: u64 = 16 << 10;
/// Until an agent that is not needed any more has ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// Flags for the way by which hosts are reached.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SshArgs {
    /// Hand this to ssh, before its other arguments (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    ssh_arg: Vec<OsString>,

    /// The program that is run as ssh
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    ssh: OsString,

    /// Look for comity in this interpreter where a host has no command of that name
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
}

impl SshArgs {
    pub(crate) fn options(&self) -> SshOptions {
        SshOptions {
            ssh: self.ssh.clone(),
            args: self.ssh_arg.clone(),
            python: self.python.clone(),
            copies: None,
            any_version: true,
        }
    }
}

/// Flags for the hosts, and for the way by which they are reached.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReachArgs {
    /// The hosts: a,b,user@c
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub(crate) hosts: Option<String>,

    /// The same from a file, as `comity launch` takes it
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) hostfile: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}

impl ReachArgs {
    /// The hosts that were named; none where none were.
    pub(crate) fn named(&self) -> Result<Vec<FleetHost>, CommandError> {
        let named = match (&self.hostfile, &self.hosts) {
            (Some(path), _) => read_hostfile(path).map(|file| file.hosts),
            (None, Some(list)) => list_hosts(list),
            (None, None) => Ok(Vec::new()),
        };
        named.map_err(|problems| CommandError { code: USAGE, problems })
    }
}

const AGENT: FarCommand<'static> = FarCommand { words: &["agent"], otherwise: SURVEY };

/// A host that has answered.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: FleetHost,
    pub(crate) facts: HostFacts,
    /// Ok if there is an agent that takes orders, else the reason.
    pub(crate) agent: Result<(), String>,
    child: Child,
    to: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// All hosts, in the order in which they were named.
#[derive(Debug)]
pub(crate) struct HostTeam(pub(crate) Vec<Result<Member, String>>);

impl HostTeam {
    /// Reaches all hosts at once.
    pub(crate) fn gather(hosts: &[FleetHost], way: &SshOptions) -> Self {
        Self(std::thread::scope(|s| {
            let all: Vec<_> = hosts.iter().map(|h| s.spawn(|| Member::reach(h, way))).collect();
            let gone = |_| Err("the thread that reaches this host panicked".to_owned());
            all.into_iter().map(|t| t.join().unwrap_or_else(gone)).collect()
        }))
    }

    /// The hosts that have answered, with their places.
    pub(crate) fn there(&mut self) -> impl Iterator<Item = (usize, &mut Member)> {
        self.0.iter_mut().enumerate().filter_map(|(i, m)| Some((i, m.as_mut().ok()?)))
    }

    /// Reasons of the hosts that have not answered.
    pub(crate) fn absent(&self) -> Vec<String> {
        self.0.iter().filter_map(|m| m.as_ref().err().cloned()).collect()
    }

    /// Gives every agent its order at once; the answers by place, none of hosts without an agent.
    pub(crate) fn ask_all<T: DeserializeOwned + Send>(
        &mut self,
        order: impl Fn(usize, &Member) -> AgentOrder + Sync,
    ) -> Vec<Option<Result<T, String>>> {
        let ask = |(i, m): (usize, &mut Result<Member, String>)| {
            let member = m.as_mut().ok().filter(|m| m.agent.is_ok())?;
            Some(member.ask(&order(i, member)))
        };
        std::thread::scope(|s| {
            let ask = &ask;
            let all: Vec<_> = self.0.iter_mut().enumerate().map(|m| s.spawn(move || ask(m))).collect();
            all.into_iter().map(|t| t.join().unwrap_or(None)).collect()
        })
    }
}

/// End of what a host said, before its agent did.
struct Silence {
    /// Output until then, and why no more came.
    said: String,
    /// The limit passed.
    is_late: bool,
}

impl Member {
    fn reach(host: &FleetHost, way: &SshOptions) -> Result<Self, String> {
        let mut command = ssh_command(way, host, &AGENT);
        let program = command.get_program().to_owned();
        let fail =
            |e: std::io::Error| format!("host {}: cannot start '{}': {e}", host.name, program.display());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(fail)?;
        let to = child.stdin.take();
        let (send, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut out = BufReader::new(out);
                loop {
                    let mut line = Vec::new();
                    match out.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                        Ok(n) if n > 0 && send.send(String::from_utf8_lossy(&line).into_owned()).is_ok() => {}
                        _ => return,
                    }
                }
            });
        }
        let err = child.stderr.take();
        let noise = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut err) = err {
                let _ = err.by_ref().take(NOISE_KEPT).read_to_end(&mut text);
                // So that nobody waits to say more.
                let _ = std::io::copy(&mut err, &mut std::io::sink());
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        let facts = HostFacts { ssh: host.name.clone(), ..HostFacts::default() };
        let mut member = Self { host: host.clone(), facts, agent: Ok(()), child, to, lines };
        match member.hello() {
            Ok(()) => Ok(member),
            Err(silence) => {
                let code = member.end();
                let noise = noise.join().unwrap_or_default();
                Err(member.explained(&silence, &noise, &code))
            }
        }
    }

    /// Takes what the host says first; else what it said instead.
    fn hello(&mut self) -> Result<(), Silence> {
        let until = Instant::now() + HELLO;
        let mut said = String::new();
        loop {
            let line = self.line(until).map_err(|s| Silence { said: format!("{said}{}", s.said), ..s })?;
            match line.trim_end() {
                GREETING_LINE => {
                    let line = self.line(until)?;
                    let hello: HelloLine = serde_json::from_str(&line)
                        .map_err(|e| Silence { said: format!("its hello: {e}"), is_late: false })?;
                    self.facts = facts_of(&self.host.name, &hello.survey);
                    if hello.protocol != PROTOCOL_OF_AGENT {
                        self.agent =
                            Err(format!("it runs comity {}, with another kind of agent", hello.version));
                    }
                    self.facts.version = Some(hello.version);
                    return Ok(());
                }
                SURVEY_BEGINS => {
                    let mut survey = line;
                    while !survey.ends_with(&format!("{SURVEY_ENDS}\n"))
                        && survey.len() < LONGEST_LINE as usize
                    {
                        survey += &self.line(until)?;
                    }
                    self.facts = facts_of(&self.host.name, &survey);
                    self.agent =
                        Err(format!("comity is not installed there: {}", comity_cluster::checks::INSTALL));
                    return Ok(());
                }
                other if said.len() < NOISE_KEPT as usize => said += &format!("{other}\n"),
                _ => {}
            }
        }
    }

    fn line(&mut self, until: Instant) -> Result<String, Silence> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(Silence { said: "it did not answer in time".into(), is_late: true })
            }
            Err(RecvTimeoutError::Disconnected) => Err(Silence { said: String::new(), is_late: false }),
        }
    }

    fn explained(&self, silence: &Silence, noise: &str, code: &str) -> String {
        let name = &self.host.name;
        if noise.contains("unrecognized subcommand") {
            return format!(
                "host {name}: its comity is older than {} and has no agent: install the same version there",
                crate::here::VERSION
            );
        }
        let all = format!("{}\n{noise}", silence.said);
        match silence.is_late && noise.trim().is_empty() {
            true => format!("host {name}: it did not answer within {} s; is it overloaded?", HELLO.as_secs()),
            false => explain_ssh(name, all.trim(), code),
        }
    }

    /// Orders something and waits for the answer.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, order: &AgentOrder) -> Result<T, String> {
        self.agent.clone()?;
        let name = self.host.name.clone();
        let fail = |why: String| format!("host {name}: {why}");
        let text = serde_json::to_string(order).map_err(|e| fail(e.to_string()))?;
        let to = self.to.as_mut().ok_or_else(|| fail("the connection is closed".into()))?;
        let lost = "the connection to it was lost";
        writeln!(to, "{text}").and_then(|()| to.flush()).map_err(|e| fail(format!("{lost}: {e}")))?;
        let answer = self.line(Instant::now() + order.limit()).map_err(|silence| {
            let why = if silence.is_late { silence.said } else { lost.to_owned() };
            // An answer that comes later would be taken for another's.
            self.agent = Err(why.clone());
            fail(why)
        })?;
        let answer = serde_json::from_str::<Value>(&answer);
        match answer.as_ref().ok().and_then(|a| a.get("error")).and_then(Value::as_str) {
            Some(why) => Err(fail(why.into())),
            None => answer.and_then(serde_json::from_value).map_err(|e| fail(format!("its answer: {e}"))),
        }
    }

    /// Ends the agent; how ssh ended.
    fn end(&mut self) -> String {
        drop(self.to.take());
        if !matches!(ended(&mut self.child, FAREWELL), Ok(Some(_))) {
            let _ = self.child.kill();
        }
        self.child.wait().map_or_else(|e| e.to_string(), |status| format!("ssh ended with {status}"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}
