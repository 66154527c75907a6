//! Protocol of the launcher and the host launcher on another host: frames over the two pipes of `ssh`.
//!
//! ```text
//! kind u8 | length u32, little-endian | so many bytes
//! ```
//!
//! Frames that carry bytes have a kind of their own, and so has the first event, which other versions understand; all others are JSON.
//!
//! The launcher's orders go to the host launcher's standard input, the host launcher's events come from its standard output. No length is
//! believed above [`LARGEST`], and no memory is taken before the bytes have come.
use crate::host::master::MasterPacket;
use crate::host::output::OutputStream;
use crate::host::signals::PassedSignal;
use crate::host::terminal::RankTerminal;
use crate::machine::Ending;
use crate::request::JobRequest;
use serde::{Deserialize, Serialize};

/// Both sides must speak the same one; the host launcher says its own first.
pub(crate) const PROTOCOL: u32 = 10;
pub(crate) const LARGEST: usize = 4 << 20;
/// Bytes that a host launcher sends before its first frame: a login script may print before that.
pub(crate) const GREETING: &[u8] = b"\0comity-guard\0";
/// Interval of each side's beats.
pub(crate) const BEAT: std::time::Duration = std::time::Duration::from_millis(500);
/// A side that was silent for so long is gone.
pub(crate) const SILENCE: std::time::Duration = std::time::Duration::from_millis(3000);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FleetOrder {
    /// Look whether this can be run.
    Prepare(Box<HostPart>),
    Go(Box<Go>),
    Term,
    Kill,
    Stop,
    Continue,
    /// Send it to the ranks.
    Pass(PassedSignal),
    #[serde(skip)]
    Input(Vec<u8>),
    InputEnd,
    /// Piece of the file that was asked for; empty at its end.
    #[serde(skip)]
    Piece(Vec<u8>),
    /// The part of a connection to rank 0.
    #[serde(skip)]
    Master(MasterPacket),
    /// Say what the ranks do.
    Look,
    FindStopped,
    StartAgain(usize),
    Beat,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostEvent {
    #[serde(skip)]
    Hello(Box<HostHello>),
    Ready(Box<Ready>),
    /// It lacks this file of `--stage`, from there on.
    Wants {
        file: u32,
        at: u64,
    },
    /// It cannot be run, and the exit code.
    Refused {
        why: String,
        code: u8,
    },
    Started {
        rank: usize,
        pid: i32,
    },
    #[serde(skip)]
    Output {
        rank: usize,
        stream: OutputStream,
        bytes: Vec<u8>,
    },
    Ended {
        rank: usize,
        ending: Ending,
        /// Rank that it names as the root cause.
        root_cause: Option<usize>,
        memory: String,
    },
    /// It is stopped, as it is to end or was asked for.
    Stopped {
        rank: usize,
    },
    Say(String),
    /// View of the ranks here, as JSON.
    #[serde(skip)]
    View(Vec<u8>),
    /// The part of a connection to rank 0.
    #[serde(skip)]
    Master(MasterPacket),
    /// The ranks have taken the input.
    Taken,
    Beat,
    /// All has ended, and nothing is left.
    Bye,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostHello {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    pub(crate) host: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostPart {
    /// The first rank here, and how many.
    pub(crate) first: usize,
    pub(crate) size: usize,
    /// Ranks in all.
    pub(crate) world: usize,
    /// The number of the first one among the ranks of this host, which may have several parts, and how many those are.
    pub(crate) local_first: usize,
    pub(crate) local_size: usize,
    /// Wishes of the user, but for those that the fields below have as this host has them.
    pub(crate) request: JobRequest,
    /// The rank with a terminal, which is as large as the user's.
    pub(crate) tty: Option<RankTerminal>,
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
    /// It was asked for, so it must be there.
    pub(crate) cwd_asked: bool,
    /// The address that others reach this host at, where the launcher knows it.
    pub(crate) at: Option<std::net::IpAddr>,
    /// So many ports are wanted.
    pub(crate) ports: usize,
    pub(crate) restarts: Restarts,
    /// Ranks that end are started again when the launcher says so.
    pub(crate) elastic: bool,
    /// Files that it is to have before it runs.
    pub(crate) stage: Vec<StagedFile>,
}

/// A file that every host is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedFile {
    /// Name as typed: here and there relative to the directory of the job.
    pub(crate) name: String,
    /// SHA-256 of its content.
    pub(crate) digest: String,
    pub(crate) mode: u32,
}

/// Number of times that the job was started again, and the limit on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restarts {
    pub(crate) number: u32,
    pub(crate) most: u32,
}

/// A host can run its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) at: std::net::IpAddr,
    pub(crate) ports: Vec<u16>,
    /// Address from which `ssh` came: the launcher's, or that of a host between.
    pub(crate) from: Option<std::net::IpAddr>,
    /// Kind of machine, as in "linux-x86_64".
    pub(crate) system: String,
    /// Files it would run that ought to be the same everywhere: the name, and the digest of the content.
    pub(crate) digests: Vec<(String, String)>,
    /// Number of threads for each rank, as text.
    pub(crate) threads: Option<String>,
}

/// Meeting of the ranks: its addresses, variables and files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Go {
    pub(crate) job: String,
    /// Addresses of the store; each rank takes one that it reaches.
    pub(crate) store: Vec<std::net::SocketAddr>,
    pub(crate) master: std::net::SocketAddr,
    /// Variables that name addresses of the job.
    pub(crate) vars: Vec<(String, String)>,
    /// MLX's host file, and other files whose path a variable is to name.
    pub(crate) files: Vec<(String, String)>,
    /// Number of times that each rank of the host was started before; ranks that were join the job that runs.
    pub(crate) restarted: Vec<u32>,
    /// The job key; none in a job without one.
    pub(crate) key: Option<[u8; 32]>,
}

impl std::fmt::Debug for Go {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Go").field("job", &self.job).field("store", &self.store).finish_non_exhaustive()
    }
}

fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut all = Vec::with_capacity(5 + length);
    all.push(kind);
    all.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    parts.iter().for_each(|p| all.extend_from_slice(p));
    all
}

/// Text of a structure; these have no part that cannot be written.
fn text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

impl FleetOrder {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Input(bytes) => frame(b'I', &[bytes]),
            Self::Piece(bytes) => frame(b'F', &[bytes]),
            Self::Master(packet) => frame(b'M', &[&packet.encode()]),
            order => frame(b'O', &[&text(order)]),
        }
    }

    pub(crate) fn decode(kind: u8, body: &[u8]) -> Result<Self, String> {
        match kind {
            b'I' => Ok(Self::Input(body.to_vec())),
            b'F' => Ok(Self::Piece(body.to_vec())),
            b'M' => MasterPacket::decode(body).map(Self::Master).ok_or_else(|| unknown(kind, body)),
            b'O' => parse(body),
            _ => Err(unknown(kind, body)),
        }
    }
}

impl HostEvent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => frame(b'h', &[&text(hello)]),
            Self::Output { rank, stream, bytes } => {
                let kind = if *stream == OutputStream::Out { b'o' } else { b'e' };
                frame(kind, &[&(*rank as u32).to_le_bytes(), bytes])
            }
            Self::View(text) => frame(b'v', &[text]),
            Self::Master(packet) => frame(b'm', &[&packet.encode()]),
            event => frame(b'j', &[&text(event)]),
        }
    }

    pub(crate) fn decode(kind: u8, body: &[u8]) -> Result<Self, String> {
        let bad = || unknown(kind, body);
        match kind {
            b'h' => parse(body).map(Self::Hello),
            b'o' | b'e' => {
                let (rank, bytes) = body.split_first_chunk().ok_or_else(bad)?;
                let stream = if kind == b'o' { OutputStream::Out } else { OutputStream::Err };
                Ok(Self::Output { rank: u32::from_le_bytes(*rank) as usize, stream, bytes: bytes.to_vec() })
            }
            b'v' => Ok(Self::View(body.to_vec())),
            b'm' => MasterPacket::decode(body).map(Self::Master).ok_or_else(bad),
            b'j' => parse(body),
            _ => Err(bad()),
        }
    }
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| format!("a message that cannot be read: {e}"))
}

fn unknown(kind: u8, body: &[u8]) -> String {
    format!("a message of the unknown kind {kind} with {} bytes", body.len())
}

/// Cuts what was read into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
    at: usize,
}

impl FrameReader {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops everything up to and with the greeting; what stood before it, once it has come.
    pub(crate) fn greeting(&mut self) -> Option<Vec<u8>> {
        let at = self.bytes.windows(GREETING.len()).position(|w| w == GREETING)?;
        let before = self.bytes[..at].to_vec();
        self.at = at + GREETING.len();
        Some(before)
    }

    /// Bytes that were not taken yet.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn next(&mut self) -> Result<Option<(u8, &[u8])>, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((&[kind, a, b, c, d], body)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > LARGEST {
            return Err(format!("a message of {length} bytes; allowed are {LARGEST}"));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        self.at += 5 + length;
        Ok(Some((kind, body)))
    }
}

#[cfg(test)]
mod tests;
