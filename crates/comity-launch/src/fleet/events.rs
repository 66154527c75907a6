//! Events of the hosts and their ranks; ranks and hosts of a running job that are started again, and processes that it takes in.
use super::connection::{HostConnection, HostPhase};
use super::stage;
use super::supervise::Fleet;
use crate::elastic::{TakenIn, joined, lost};
use crate::host::master::MasterPacket;
use crate::host::output::{OutputStream, RankStream};
use crate::machine::{Ending, Event, Problem, REFUSED, USAGE};
use crate::protocol::{FleetOrder, HostEvent, HostHello, PROTOCOL, Ready, Restarts};
use comity_cluster::printable;
use std::ops::Range;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct FarRank {
    pub(super) host: usize,
    pub(super) pid: i32,
    /// The rank that it says was the root cause.
    pub(super) root_cause: Option<usize>,
    pub(super) streams: [RankStream; 2],
}

impl Fleet {
    /// "rank 3 (pid 77, host c)"
    pub(super) fn name(&self, rank: usize) -> String {
        let known = self.ranks.get(rank).and_then(|r| Some((r.pid, self.plan.hosts.get(r.host)?.name())));
        let (pid, host) = known.unwrap_or_default();
        format!("rank {rank} (pid {pid}, host {host})")
    }

    pub(super) fn hear(&mut self, host: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let heard = self.connections[host].read(&mut buffer);
        self.buffer = buffer;
        if let Some(system) = self.connections[host].lacks.clone().filter(|_| !self.connections[host].asked) {
            self.give_program(host, &system);
        }
        match heard {
            Ok(events) => events.into_iter().for_each(|event| self.on(host, event)),
            Err(why) => self.lose(host, &why),
        }
    }

    /// The connection to a host is gone: nothing more is known of its ranks than that they are ended there.
    pub(super) fn lose(&mut self, host: usize, why: &str) {
        let connection = &mut self.connections[host];
        connection.from = None;
        connection.fed = false;
        let before = std::mem::replace(&mut connection.phase, HostPhase::Lost);
        let name = self.plan.hosts[host].name().to_owned();
        match before {
            HostPhase::Done | HostPhase::Lost => connection.phase = before,
            HostPhase::Connecting if why.is_empty() => {
                let system = connection.lacks.as_deref().filter(|s| !stage::runs_on(s));
                let other = system.map(|s| format!("; it is {s}, on which this program does not run"));
                let why = connection.why_not(&name) + &other.unwrap_or_default();
                self.cannot_begin(host, why, USAGE);
            }
            HostPhase::Connecting | HostPhase::Preparing | HostPhase::Ready => {
                let code = if before == HostPhase::Connecting { USAGE } else { REFUSED };
                let why = if why.is_empty() { "the connection ended" } else { why };
                connection.kill();
                self.cannot_begin(host, format!("host {name}: {why}"), code);
            }
            HostPhase::Running => {
                let said = connection.last_words().map(|w| format!(" ({w})")).unwrap_or_default();
                connection.kill();
                let why = if why.is_empty() { "the connection to it ended" } else { why };
                self.lost_with_ranks(host, &format!("host {name} was lost: {why}{said}"));
            }
        }
    }

    fn lost_with_ranks(&mut self, host: usize, why: &str) {
        let alive: Vec<usize> = self.machine.awaited().filter(|r| self.ranks[*r].host == host).collect();
        if alive.is_empty() && self.plan.elastic.is_none() {
            return;
        }
        let names: Vec<_> = alive.iter().map(ToString::to_string).collect();
        let text = match &names[..] {
            [] => why.to_owned(),
            [rank] => format!("{why}; its rank {rank} is ended there"),
            all => format!("{why}; its ranks {} are ended there", all.join(", ")),
        };
        for rank in &alive {
            self.store.lost(*rank, "its host was lost");
        }
        let part = &self.plan.hosts[host].part;
        self.journal.host(self.plan.hosts[host].name(), "lost", part.first..part.first + part.size);
        let silent = self.connections[host].heard.elapsed();
        self.tell(Event::HostLost { host, silent, why: text });
    }

    /// A host cannot run its part, and nothing runs anywhere.
    pub(super) fn cannot_begin(&mut self, host: usize, why: String, code: u8) {
        self.tell(Event::HostRefused { host, problem: Problem { why, code } });
    }

    fn on(&mut self, host: usize, event: HostEvent) {
        match event {
            HostEvent::Hello(hello) => self.meet(host, *hello),
            HostEvent::Ready(ready) => self.is_ready(host, *ready),
            HostEvent::Wants { file, at } => self.give(host, file, at),
            HostEvent::Refused { why, code } => self.refused(host, &why, code),
            HostEvent::Started { rank, pid } => {
                if let Some(known) = self.own(host, rank) {
                    known.pid = pid;
                }
                self.journal.started(rank, pid, self.plan.hosts[host].name());
                if self.plan.job.verbose {
                    self.output.say(&format!("{} runs", self.name(rank)));
                }
            }
            HostEvent::Output { rank, stream, bytes } => {
                if let Some(known) = self.ranks.get_mut(rank).filter(|r| r.host == host) {
                    known.streams[usize::from(stream == OutputStream::Err)].wrote(rank, &bytes, &self.output);
                    self.journal.wrote(rank, stream, &bytes);
                }
            }
            HostEvent::Ended { rank, ending, root_cause, memory } => {
                self.rank_ended(host, rank, ending, root_cause, &memory);
            }
            HostEvent::Stopped { rank } => {
                if self.own(host, rank).is_some() {
                    self.tell(Event::Stopped { rank });
                }
            }
            HostEvent::Say(words) => {
                let name = self.plan.hosts[host].name();
                self.output.say(&format!("host {name}: {words}"));
            }
            HostEvent::View(text) => self.show.answered(host, &text),
            HostEvent::Master(packet) => self.carry(host, packet),
            HostEvent::Taken => self.connections[host].fed = false,
            HostEvent::Beat => {}
            HostEvent::Bye => {
                self.connections[host].phase = HostPhase::Done;
                self.connections[host].fed = false;
                self.connections[host].close();
                self.tell(Event::HostDone { host });
            }
        }
    }

    /// Passes on what a host says to rank 0, which is on the first one, or that one to a host.
    fn carry(&mut self, host: usize, mut packet: MasterPacket) {
        let to = if host == 0 { packet.host as usize } else { 0 };
        if host != 0 {
            packet.host = u32::try_from(host).unwrap_or(u32::MAX);
        }
        if let Some(connection) = self.connections.get_mut(to).filter(|c| c.phase == HostPhase::Running) {
            connection.send(&FleetOrder::Master(packet));
        }
    }

    fn is_ready(&mut self, host: usize, ready: Ready) {
        if let (true, Some(threads)) = (self.plan.job.verbose, &ready.threads) {
            let threads = printable(threads, 200);
            self.output.say(&format!("host {}: {threads}", self.plan.hosts[host].name()));
        }
        self.connections[host].ready = Some(ready);
        self.connections[host].phase = HostPhase::Ready;
        let part = &self.plan.hosts[host].part;
        self.journal.host(self.plan.hosts[host].name(), "ready", part.first..part.first + part.size);
        self.tell(Event::HostReady { host });
    }

    fn rank_ended(
        &mut self,
        host: usize,
        rank: usize,
        ending: Ending,
        root_cause: Option<usize>,
        memory: &str,
    ) {
        self.hear_taken_in();
        let world = self.ranks.len();
        if !self.machine.is_awaited(rank) {
            return;
        }
        let Some(known) = self.own(host, rank) else { return };
        known.root_cause = root_cause.filter(|r| *r < world);
        let memory = printable(memory, 200);
        self.show.ended(rank, ending.code());
        self.journal.ended(rank, ending, self.plan.hosts[host].name());
        self.tell_cause(rank);
        self.tell(Event::Ended { rank, ending, memory });
        self.store.lost(rank, &ending.to_string());
        if self.plan.job.verbose {
            self.output.say(&format!("{} {ending}", self.name(rank)));
        }
    }

    /// Tells the machine which rank this one names as the cause of its failure, or the store, if any.
    pub(super) fn tell_cause(&mut self, by: usize) {
        let told = self.ranks.get(by).and_then(|r| r.root_cause);
        if let Some(rank) = told.or_else(|| self.store.culprit().filter(|rank| *rank != by)) {
            self.tell(Event::Blames { by, rank });
        }
    }

    fn own(&mut self, host: usize, rank: usize) -> Option<&mut FarRank> {
        self.ranks.get_mut(rank).filter(|r| r.host == host)
    }

    /// A host launcher has answered: it is told its part.
    fn meet(&mut self, host: usize, hello: HostHello) {
        let Some(planned) = self.plan.hosts.get(host) else { return };
        let name = planned.name().to_owned();
        if (hello.protocol, hello.version.as_str()) != (PROTOCOL, crate::VERSION) {
            let theirs = printable(&hello.version, 40);
            let own = crate::VERSION;
            let why = if theirs == own {
                format!("host {name}: has another build of comity {own}: install the same one on both")
            } else {
                format!(
                    "host {name}: has comity {theirs}, and this is {own}: install the same version on both"
                )
            };
            self.connections[host].phase = HostPhase::Lost;
            self.connections[host].close();
            self.cannot_begin(host, why, USAGE);
            return;
        }
        let mut part = planned.part.clone();
        let ips = planned.host.ips.len().max(1);
        part.at = planned.host.ips.first().copied().or_else(|| planned.host.is_here().then_some(self.at));
        let of_job = self.plan.job.restarts_of_job();
        let most = self.plan.elastic.map_or(of_job, |(terms, _)| terms.restarts);
        part.restarts = Restarts { number: self.plan.restart, most };
        part.ports = 1 + match self.plan.fleet.starting_port {
            None => part.size * ips * self.plan.fleet.connections_per_ip as usize,
            Some(_) => 0,
        };
        let connection = &mut self.connections[host];
        connection.hello = Some(hello);
        connection.phase = HostPhase::Preparing;
        connection.send(&FleetOrder::Prepare(Box::new(part)));
    }

    fn refused(&mut self, host: usize, text: &str, code: u8) {
        let name = self.plan.hosts[host].name();
        let text = printable(text, 2000);
        let why = format!("host {name}: {text}");
        if self.connections[host].phase == HostPhase::Running {
            self.tell(Event::Unstarted { rank: None, problem: Problem { why, code } });
            return;
        }
        self.connections[host].phase = HostPhase::Lost;
        self.connections[host].close();
        self.cannot_begin(host, why, code);
    }

    /// Hears the store of a job that goes on without ranks.
    pub(super) fn hear_store(&mut self) {
        let Some((_, guests)) = self.plan.elastic else { return };
        match TakenIn::of(&self.store, guests) {
            Ok(taken_in) => self.taken_in = Some(taken_in),
            Err(e) => self.output.say(&format!("ranks that come back will not be seen: {e}")),
        }
    }

    /// Ranks of one host: it starts them, or, where it is back, all of its own.
    pub(super) fn start_again(&mut self, ranks: Range<usize>) {
        let Some(host) = self.ranks.get(ranks.start).map(|r| r.host) else { return };
        for rank in ranks.clone() {
            self.show.runs_again(rank, host);
            if let Some(known) = self.ranks.get_mut(rank) {
                known.root_cause = None;
            }
        }
        if self.connections[host].phase == HostPhase::Running {
            return ranks.for_each(|rank| self.connections[host].send(&FleetOrder::StartAgain(rank)));
        }
        let part = &self.plan.hosts[host].part;
        let restarted = (part.first..part.first + part.size).map(|r| self.machine.restarts_of(r)).collect();
        let mut go = self.meeting();
        go.restarted = restarted;
        self.connections[host].send(&FleetOrder::Go(Box::new(go)));
        self.connections[host].phase = HostPhase::Running;
    }

    /// Calls a host that was lost.
    pub(super) fn try_host(&mut self, host: usize) {
        match HostConnection::start(&self.plan, host, self.open_files) {
            Ok(connection) => {
                // The one before was killed.
                let _ = self.connections[host].ended();
                self.connections[host] = connection;
            }
            Err(problem) => self.cannot_begin(host, problem.why, REFUSED),
        }
    }

    pub(super) fn say_lost(&self, rank: usize, again: Option<(u32, Duration)>) {
        let ending = self.machine.ending(rank).map(|e| e.to_string()).unwrap_or_default();
        let terms = self.plan.elastic.map(|(terms, _)| terms);
        self.output.say(&lost(&format!("{} {ending}", self.name(rank)), again, terms));
    }

    pub(super) fn say_host_lost(&self, host: usize, pause: Duration) {
        let why = self.machine.loss_of(host).unwrap_or_default();
        self.output
            .say(&format!("{why}; the job goes on, and the host is tried again in {} s", pause.as_secs()));
    }

    /// Tells the machine whom the group has taken in.
    pub(super) fn hear_taken_in(&mut self) {
        let all = self.taken_in.as_ref().map(TakenIn::take).unwrap_or_default();
        for (rank, guests) in all {
            self.journal.joined(rank, guests);
            self.output.say(&joined(rank.map(|rank| self.name(rank)), guests));
            rank.into_iter().for_each(|rank| self.tell(Event::Joined { rank }));
            self.tell(Event::Guests { number: guests });
        }
    }

    /// Somebody asks what the job does.
    pub(super) fn asked(&mut self) {
        self.show.take_visit();
        for (host, connection) in self.connections.iter_mut().enumerate() {
            match connection.phase {
                HostPhase::Running => connection.send(&FleetOrder::Look),
                HostPhase::Done | HostPhase::Lost => {
                    self.show.gone(host, connection.phase == HostPhase::Lost)
                }
                _ => {}
            }
        }
    }
}
