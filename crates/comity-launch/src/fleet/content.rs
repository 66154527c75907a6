//! Before anything runs: every host is waited for, gets the files that it is to have, and has the same programs as the others.
use super::connection::{HostConnection, HostPhase};
use super::program;
use super::supervise::Fleet;
use crate::fleet::stage;
use crate::host::output::OutputStream;
use crate::machine::{Event, Problem, USAGE};
use crate::protocol::FleetOrder;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time that a host has to answer.
const CONNECT: Duration = Duration::from_secs(30);
/// When it is said for the first time which hosts are waited for, and how often after that.
const PATIENCE_SHOWN: Duration = Duration::from_secs(2);
/// On a terminal, where the line is written over.
const UNSEEN: Duration = Duration::from_millis(300);

impl Fleet {
    /// Until every host has said whether it can run its part, or the job is to end.
    pub(super) fn gather(&mut self) {
        let since = Instant::now();
        let mut shown = String::new();
        let mut say = since + PATIENCE_SHOWN;
        while self.machine.is_gathering() {
            let open = |c: &HostConnection| matches!(c.phase, HostPhase::Connecting | HostPhase::Preparing);
            let waiting: Vec<usize> =
                (0..self.connections.len()).filter(|i| open(&self.connections[*i])).collect();
            let is_late = |i: &usize| self.connections[*i].is_late(since, CONNECT);
            let late: Vec<_> = waiting.iter().copied().filter(is_late).collect();
            let problems: Vec<_> = late.iter().map(|host| self.lateness(*host)).collect();
            if !problems.is_empty() {
                self.tell(Event::HostsLate { problems });
            }
            let names: Vec<_> = waiting.iter().map(|i| self.plan.hosts[*i].name()).collect();
            let line = format!("waiting for {}", names.join(", "));
            let live = OutputStream::Err.is_live();
            if Instant::now() >= say && !live {
                self.output.say(&line);
                say = Instant::now() + PATIENCE_SHOWN * 3;
            }
            if live && since.elapsed() > UNSEEN {
                let line = format!("comity launch: {line} ({} s)", since.elapsed().as_secs());
                if line != shown {
                    self.output.progress(OutputStream::Err, line.as_bytes());
                    shown = line;
                }
            }
            self.step(Some(if live { Instant::now() + UNSEEN } else { say }));
        }
    }

    /// A host that was lost, and is tried again, is given up where it does not answer either.
    pub(super) fn miss_the_late(&mut self) {
        for host in 0..self.connections.len() {
            let connection = &self.connections[host];
            let opens = matches!(connection.phase, HostPhase::Connecting | HostPhase::Preparing);
            if opens && connection.is_late(connection.heard, CONNECT) {
                let why = format!("it did not answer within {} s", CONNECT.as_secs());
                self.lose(host, &why);
            }
        }
    }

    fn lateness(&self, host: usize) -> Problem {
        let name = self.plan.hosts[host].name();
        let seconds = CONNECT.as_secs();
        let why = format!("host {name}: did not answer within {seconds} s: is it up, and can ssh reach it?");
        Problem { why, code: USAGE }
    }

    /// A host has no program of this version: it gets this one, if that runs there.
    pub(super) fn give_program(&mut self, host: usize, system: &str) {
        let own = self.plan.program.as_ref().filter(|_| program::runs_on(system));
        let copy = own.and_then(|own| Some((own.open().ok()?, own.size)));
        if let Some((_, size)) = &copy {
            let name = self.plan.hosts[host].name();
            let size = *size as f64 / 1e6;
            let version = crate::VERSION;
            self.output.say(&format!(
                "host {name}: has no comity {version}, and gets a copy of this program ({size:.0} MB, in ~/.cache/comity)"
            ));
        }
        self.connections[host].answer_lack(copy);
    }

    /// A host lacks this file, from there on.
    pub(super) fn give(&mut self, host: usize, file: u32, at: u64) {
        let Some(file) = self.plan.stage.get(file as usize) else { return };
        match stage::piece(file, at) {
            Ok(bytes) => {
                if at == 0 && self.plan.verbose {
                    self.output.say(&format!("host {}: gets {}", self.plan.hosts[host].name(), file.name));
                }
                self.connections[host].staging = true;
                self.connections[host].send(&FleetOrder::Piece(bytes));
            }
            Err(e) => {
                let why = format!("--stage {}: {e}", file.name);
                self.connections[host].phase = HostPhase::Lost;
                self.connections[host].close();
                self.cannot_begin(host, why, USAGE);
            }
        }
    }

    /// Programs and scripts of one name that are not the same everywhere.
    pub(super) fn differences(&self) -> Vec<Problem> {
        if self.plan.mixed_programs {
            return Vec::new();
        }
        let mut found: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
        for (connection, host) in self.connections.iter().zip(&self.plan.hosts) {
            let Some(ready) = &connection.ready else { continue };
            for (name, digest) in &ready.digests {
                // Machines of another kind have programs of their own.
                let kind = if name.ends_with(".py") { "" } else { &ready.system };
                found.entry((name, kind)).or_default().entry(digest).or_default().push(host.name());
            }
        }
        let differ = found.iter().filter(|(_, contents)| contents.len() > 1);
        let said = differ.map(|((name, _), contents)| {
            let short = |digest: &str| digest.chars().take(8).collect::<String>();
            let who: Vec<_> =
                contents.iter().map(|(digest, hosts)| format!("{} on {}", short(digest), hosts.join(", "))).collect();
            let why = format!(
                "'{name}' is not the same on all hosts: {}; copy one to all (--stage {name}), or say --mixed-programs",
                who.join("; ")
            );
            Problem { why, code: USAGE }
        });
        said.collect()
    }
}
