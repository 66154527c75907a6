//! The lines that go to an agent and come from it: JSON, one a line.
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

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
    pub(super) fn of(result: Result<String, String>) -> Self {
        match result {
            Ok(said) => Self { is_ok: true, said, is_there: false },
            Err(said) => Self { is_ok: false, said, is_there: false },
        }
    }
}
