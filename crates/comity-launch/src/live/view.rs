//! Answer of a launcher about its job, as JSON. Times are ages, since hosts' clocks differ.
use comity::tools::{FlightCall, FlightState, LiveGroup, LiveRank, Sheet};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

const VERSION: u32 = 1;

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub comity_live: u32,
    pub version: String,
    /// A hash of the job's name.
    pub job_id: String,
    /// Process id.
    pub launcher: i32,
    pub host: String,
    pub command: String,
    /// Ranks in all.
    pub size: usize,
    /// Only the ranks of this host are told of.
    pub is_part: bool,
    /// Hosts that did not answer.
    pub silent: Vec<String>,
    pub up_ns: u64,
    pub ranks: Vec<RankView>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankView {
    pub rank: usize,
    pub host: String,
    pub pid: i32,
    pub state: RankState,
    /// Number of times that it was started again, alone.
    #[serde(default)]
    pub restarts: u32,
    /// When this was seen, by its host's clock, in nanoseconds since 1970.
    pub at_ns: u64,
    pub groups: Vec<GroupView>,
    pub links: Vec<LinkView>,
    /// Calls that succeeded.
    pub calls: u64,
    pub errors: u64,
    /// Payload bytes sent.
    pub sent: u64,
    /// Time asleep in calls.
    pub waited_ns: u64,
    pub silence_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankState {
    /// Not started yet.
    #[default]
    Waiting,
    Running,
    /// By a signal or a debugger.
    Stopped,
    /// With this code, 128 + N after signal N.
    Ended(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupView {
    /// Hexadecimal; 0 is the group of the whole job.
    pub id: String,
    pub rank: usize,
    pub size: usize,
    /// Number of times that the job's group was formed again, up to this one.
    #[serde(default)]
    pub epoch: u32,
    /// Epoch in which this process joined.
    #[serde(default)]
    pub since: u32,
    /// Ranks that were in the group before and are not in this one, and those that came with it.
    #[serde(default)]
    pub left: u32,
    #[serde(default)]
    pub joined: u32,
    /// This rank's number among those that `waits_for` counts, where the group was formed again.
    #[serde(default)]
    pub number: usize,
    /// Epoch in which its world began. 0: the job's start, and numbers are the launcher's.
    #[serde(default)]
    pub world: u32,
    pub made: u64,
    /// A rank of the job.
    pub waits_for: Option<usize>,
    pub asleep_ns: u64,
    /// The last ones, oldest first.
    pub calls: Vec<CallView>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallView {
    /// Description of the call, as in errors.
    pub text: String,
    pub op: String,
    pub seq: u64,
    /// Payload of one rank.
    pub bytes: u64,
    /// "begun", "done" or "failed".
    pub state: String,
    /// Ages of its begin and end, in nanoseconds.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub waited_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// Number of the peer in its world, and the epoch in which that world began.
    pub peer: usize,
    #[serde(default)]
    pub world: u32,
    pub kind: String,
    pub sent: u64,
    pub received: u64,
}

impl JobView {
    /// Adds what another launcher told of the same job.
    pub fn join(&mut self, other: Self) {
        self.ranks.extend(other.ranks);
        self.ranks.sort_by_key(|r| r.rank);
        self.ranks.dedup_by_key(|r| r.rank);
        self.silent.extend(other.silent);
        self.is_part &= other.is_part && self.ranks.len() < self.size;
    }

    /// Reason for which a host that is [`Self::silent`] told of no rank, as far as that is known here.
    pub fn silence(&self, host: &str) -> String {
        if self.ranks.len() >= self.size {
            return format!("host {host} has no rank of this job: all {} are shown", self.size);
        }
        match self.is_part {
            false => format!("host {host} does not answer; its ranks are missing here"),
            true => format!(
                "host {host} told of no rank: it does not answer, or no job runs there; `ssh {host} comity top --once` says which"
            ),
        }
    }

    /// Sentence on the ranks that this shows, where these are not all.
    pub fn missing(&self) -> Option<String> {
        let shown = self.ranks.len();
        if !self.is_part || shown >= self.size {
            return None;
        }
        let mut hosts: Vec<&str> = self.ranks.iter().map(|r| r.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let s = if hosts.len() == 1 { "" } else { "s" };
        Some(format!(
            "shown are {shown} of {} ranks, those of host{s} {}; for all ask where the job was launched, or name its hosts (comity top a,b)",
            self.size,
            hosts.join(", ")
        ))
    }
}

impl RankView {
    /// The group that the job formed again last, as far as this rank is in it.
    pub fn newest(&self) -> Option<&GroupView> {
        self.groups.iter().filter(|g| g.epoch > 0).max_by_key(|g| g.epoch)
    }
}

impl GroupView {
    /// The call under way.
    pub fn current(&self) -> Option<&CallView> {
        self.calls.last().filter(|c| c.state == FlightState::Begun.name())
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// View of a rank, from its sheet.
pub fn rank(sheet: &Sheet, rank: usize, host: &str) -> RankView {
    let live = LiveRank::of(sheet);
    let tally = sheet.read();
    let at_ns = now();
    RankView {
        rank,
        host: host.into(),
        pid: 0,
        state: RankState::Waiting,
        restarts: 0,
        at_ns,
        groups: live.groups.iter().map(|g| group(g, at_ns)).collect(),
        links: live
            .links
            .iter()
            .map(|l| LinkView {
                peer: l.peer,
                world: l.world,
                kind: l.kind.map_or_else(String::new, |k| k.to_string()),
                sent: l.sent,
                received: l.received,
            })
            .collect(),
        calls: tally.ops.iter().map(|o| o.1).sum(),
        errors: tally.errors,
        sent: tally.ops.iter().map(|o| o.2).sum(),
        waited_ns: tally.parked.as_nanos() as u64,
        silence_ns: tally.longest_silence.as_nanos() as u64,
    }
}

fn group(g: &LiveGroup, now: u64) -> GroupView {
    let call = |c: &FlightCall| CallView {
        text: c.info.to_string(),
        op: c.info.op.name().into(),
        seq: c.info.seq,
        bytes: c.info.count as u64 * c.info.dtype.map_or(1, |d| d.size() as u64),
        state: c.state.name().into(),
        began_ns: now.saturating_sub(c.begin),
        ended_ns: now.saturating_sub(c.end),
        waited_ns: c.waited,
    };
    GroupView {
        id: format!("{:x}", g.id),
        rank: g.rank,
        size: g.size,
        epoch: g.epoch,
        since: g.since,
        left: g.left,
        joined: g.joined,
        number: g.number,
        world: g.world,
        made: g.made,
        waits_for: g.waits_for,
        asleep_ns: g.asleep.as_nanos() as u64,
        calls: g.calls.iter().map(call).collect(),
    }
}

/// For a job of `size` ranks.
pub fn job(job_id: &str, host: &str, size: usize) -> JobView {
    JobView {
        comity_live: VERSION,
        version: crate::VERSION.into(),
        job_id: job_id.into(),
        host: host.into(),
        size,
        ..JobView::default()
    }
}

/// Reads an answer.
pub fn parse(text: &[u8]) -> Result<JobView, String> {
    let all: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| format!("the launcher's answer is no JSON: {e}"))?;
    match all["comity_live"].as_u64() {
        Some(n) if n == u64::from(VERSION) => {
            serde_json::from_value(all).map_err(|e| format!("the launcher's answer cannot be read: {e}"))
        }
        Some(n) => Err(format!("the launcher answers in version {n}; this comity reads version {VERSION}")),
        None => Err("what listens there is no launcher of Comity".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_ranks_is_not_said_to_be_silent() {
        let ranks = |n| (0..n).map(|rank| RankView { rank, ..RankView::default() }).collect();
        let whole = JobView { ranks: ranks(2), silent: vec!["d".into()], ..job("7f", "h", 2) };
        assert_eq!(whole.silence("d"), "host d has no rank of this job: all 2 are shown");
        let part = JobView { is_part: true, ranks: ranks(1), ..job("7f", "h", 2) };
        assert!(part.silence("d").contains("it does not answer, or no job runs there"));
        let launcher = JobView { is_part: false, ..part };
        assert_eq!(launcher.silence("d"), "host d does not answer; its ranks are missing here");
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let mut view = job("7f", "h", 2);
        let mut one = rank(&Sheet::create().unwrap().0, 1, "h");
        one.state = RankState::Ended(137);
        one.groups.push(GroupView { calls: vec![CallView::default()], ..GroupView::default() });
        view.ranks.push(one);
        assert_eq!(parse(&serde_json::to_vec(&view).unwrap()).unwrap(), view);
        assert!(parse(b"x").unwrap_err().contains("no JSON"));
        assert!(parse(b"{}").unwrap_err().contains("no launcher"));
        assert!(parse(br#"{"comity_live":9}"#).unwrap_err().contains("version 9"));
        assert!(parse(br#"{"comity_live":1}"#).unwrap_err().contains("cannot be read"));
    }
}
