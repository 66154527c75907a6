//! What ranks, the store and control connections say to each other, as bytes.
//!
//! Compact, big-endian, and read with every length bounded before anything is allocated from it.

use crate::{
    CallInfo, DType, Op, ReduceOp,
    engine::{Differs, HEADER, Header},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The longest text: a cause, a host name, an error in words.
const MAX_TEXT: usize = 4096;
/// The most addresses one rank can listen on.
pub(super) const MAX_ADDRS: usize = 16;

/// In place of a number that there is none of.
const NONE: u32 = u32::MAX;

/// Bytes that no peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Equal for processes that may share memory.
    pub(super) host_id: u64,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) cores: u16,
    pub(super) shm: bool,
    pub(super) tcp: bool,
    /// Whether there is a device that may lead to another rank.
    pub(super) rdma: bool,
    /// Whether rings go before other plans.
    pub(super) ring: bool,
    /// Whether what goes over TCP is to be encrypted.
    pub(super) sealed: bool,
    /// How long this rank lets another be silent, in milliseconds; 0: for ever.
    pub(super) silence: u32,
    /// TCP connections per address.
    pub(super) connections: u16,
    /// The name of the socket for processes of the same host; empty without one.
    pub(super) unix: String,
    pub(super) addrs: Vec<SocketAddr>,
}

/// A rank to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToStore {
    /// "I am here", and how many milliseconds I am willing to wait.
    Join { rank: u32, size: u32, patience: u64, facts: Facts },
    /// All control connections of this rank stand.
    Ready,
    /// This rank gives up, in its words.
    Failed { words: String },
}

/// The store to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromStore {
    /// All are here; `size` entries follow.
    Welcome {
        world: u64,
        size: u32,
    },
    Entry {
        rank: u32,
        facts: Facts,
    },
    /// It did not come to a group, in words.
    Refused {
        words: String,
    },
}

/// Between two ranks, on their control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The sender leaves a group in good order.
    Leave { context: u64 },
    /// A group has failed; `culprit` and `by`, which saw it, are ranks in the group.
    Abort { context: u64, culprit: u32, by: u32, reported: bool, cause: String, calls: Option<Differs> },
    /// The sender has waited for the receiver for long in this call of a group.
    Waits { context: u64, call: Header },
    /// The sender lives, and its engines have come this far.
    Heartbeat { progress: u64 },
    /// The sender ends; with words if it could not join.
    Goodbye { words: String },
    /// The sender has heard nothing of the receiver for so many milliseconds, gives it up, and closes the connection.
    GivenUp { silence: u64 },
}

impl Facts {
    fn put(&self, w: &mut Writer) {
        w.u64(self.host_id);
        w.text(&self.host);
        w.u32(self.pid);
        w.u16(self.cores);
        w.u8(u8::from(self.shm)
            | u8::from(self.tcp) << 1
            | u8::from(self.sealed) << 2
            | u8::from(self.rdma) << 3
            | u8::from(self.ring) << 4);
        w.u32(self.silence);
        w.u16(self.connections);
        w.text(&self.unix);
        w.u8(self.addrs.len().min(MAX_ADDRS) as u8);
        for a in self.addrs.iter().take(MAX_ADDRS) {
            w.addr(*a);
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (host_id, host, pid, cores) = (r.u64()?, r.text()?, r.u32()?, r.u16()?);
        let kinds = r.u8()?;
        let (silence, connections, unix) = (r.u32()?, r.u16()?, r.text()?);
        let n = usize::from(r.u8()?);
        if n > MAX_ADDRS || kinds > 31 {
            return Err(Malformed);
        }
        let addrs = (0..n).map(|_| r.addr()).collect::<Result<_, _>>()?;
        Ok(Self {
            host_id,
            host,
            pid,
            cores,
            shm: kinds & 1 != 0,
            tcp: kinds & 2 != 0,
            sealed: kinds & 4 != 0,
            rdma: kinds & 8 != 0,
            ring: kinds & 16 != 0,
            silence,
            connections,
            unix,
            addrs,
        })
    }
}

impl ToStore {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Join { rank, size, patience, facts } => {
                w.u8(1);
                w.u32(*rank);
                w.u32(*size);
                w.u64(*patience);
                facts.put(&mut w);
            }
            Self::Ready => w.u8(2),
            Self::Failed { words } => {
                w.u8(3);
                w.text(words);
            }
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => {
                Self::Join { rank: r.u32()?, size: r.u32()?, patience: r.u64()?, facts: Facts::take(&mut r)? }
            }
            2 => Self::Ready,
            3 => Self::Failed { words: r.text()? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

impl FromStore {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Welcome { world, size } => {
                w.u8(1);
                w.u64(*world);
                w.u32(*size);
            }
            Self::Entry { rank, facts } => {
                w.u8(2);
                w.u32(*rank);
                facts.put(&mut w);
            }
            Self::Refused { words } => {
                w.u8(3);
                w.text(words);
            }
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => Self::Welcome { world: r.u64()?, size: r.u32()? },
            2 => Self::Entry { rank: r.u32()?, facts: Facts::take(&mut r)? },
            3 => Self::Refused { words: r.text()? },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Leave { context } => {
                w.u8(1);
                w.u64(*context);
            }
            Self::Abort { context, culprit, by, reported, cause, calls } => {
                w.u8(2);
                w.u64(*context);
                w.u32(*culprit);
                w.u32(*by);
                w.u8(u8::from(*reported));
                w.text(cause);
                w.u8(u8::from(calls.is_some()));
                if let Some(calls) = calls {
                    w.differs(calls);
                }
            }
            Self::Heartbeat { progress } => {
                w.u8(3);
                w.u64(*progress);
            }
            Self::Goodbye { words } => {
                w.u8(4);
                w.text(words);
            }
            Self::GivenUp { silence } => {
                w.u8(5);
                w.u64(*silence);
            }
            Self::Waits { context, call } => {
                w.u8(6);
                w.u64(*context);
                w.0.extend(call.encode());
            }
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => Self::Leave { context: r.u64()? },
            2 => Self::Abort {
                context: r.u64()?,
                culprit: r.u32()?,
                by: r.u32()?,
                reported: r.flag()?,
                cause: r.text()?,
                calls: if r.flag()? { Some(r.differs()?) } else { None },
            },
            3 => Self::Heartbeat { progress: r.u64()? },
            4 => Self::Goodbye { words: r.text()? },
            5 => Self::GivenUp { silence: r.u64()? },
            6 => {
                let (context, bytes) = (r.u64()?, r.bytes::<HEADER>()?);
                let call = Header::decode(&bytes, 0).ok_or(Malformed)?;
                // Calls between two ranks alone are nobody else's affair.
                if matches!(call.info.op, Op::Send | Op::Recv | Op::Exchange) {
                    return Err(Malformed);
                }
                Self::Waits { context, call }
            }
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

/// Appends fields to a message.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(super) fn u16(&mut self, v: u16) {
        self.0.extend(v.to_be_bytes());
    }

    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend(v.to_be_bytes());
    }

    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend(v.to_be_bytes());
    }

    /// Text beyond the limit is cut.
    pub(super) fn text(&mut self, s: &str) {
        let s = s.get(..s.floor_char_boundary_at(MAX_TEXT)).unwrap_or_default();
        self.u16(s.len() as u16);
        self.0.extend(s.as_bytes());
    }

    fn differs(&mut self, d: &Differs) {
        self.u8(Header::DIFFERENCES.iter().position(|w| *w == d.what).unwrap_or_default() as u8);
        for call in [&d.ours, &d.theirs] {
            let some = |x: Option<u32>| x.unwrap_or(NONE);
            self.u8(call.op as u8);
            self.u64(call.seq);
            self.u64(call.count as u64);
            self.u32(some(call.dtype.map(|d| d as u32)));
            self.u32(some(call.reduce.map(|r| r as u32)));
            self.u32(some(call.root.map(|r| r as u32)));
            self.u32(some(call.tag));
        }
    }

    fn addr(&mut self, a: SocketAddr) {
        match a {
            SocketAddr::V4(a) => {
                self.u8(4);
                self.0.extend(a.ip().octets());
            }
            SocketAddr::V6(a) => {
                self.u8(6);
                self.0.extend(a.ip().octets());
                self.u32(a.scope_id());
            }
        }
        self.u16(a.port());
    }
}

/// Takes fields from a message.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let n = usize::from(self.u16()?);
        if n > MAX_TEXT {
            return Err(Malformed);
        }
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = tail;
        Ok(std::str::from_utf8(head).map_err(|_| Malformed)?.to_owned())
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn differs(&mut self) -> Result<Differs, Malformed> {
        let what = Header::DIFFERENCES.get(usize::from(self.u8()?)).copied().ok_or(Malformed)?;
        Ok(Differs { what, ours: self.call()?, theirs: self.call()? })
    }

    fn call(&mut self) -> Result<CallInfo, Malformed> {
        let op = *Op::ALL.get(usize::from(self.u8()?).wrapping_sub(1)).ok_or(Malformed)?;
        let (seq, count) = (self.u64()?, self.u64()?);
        let mut some = || Ok(Some(self.u32()?).filter(|x| *x != NONE));
        let (dtype, reduce, root, tag) = (some()?, some()?, some()?, some()?);
        let dtype = dtype.map(|d| DType::ALL.get(d as usize).copied().ok_or(Malformed)).transpose()?;
        let reduce = reduce.map(|r| ReduceOp::ALL.get(r as usize).copied().ok_or(Malformed)).transpose()?;
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        Ok(CallInfo { op, seq, count, dtype, reduce, root: root.map(|r| r as usize), tag })
    }

    fn addr(&mut self) -> Result<SocketAddr, Malformed> {
        match self.u8()? {
            4 => {
                let ip = Ipv4Addr::from(self.bytes::<4>()?);
                Ok(SocketAddr::new(IpAddr::V4(ip), self.u16()?))
            }
            6 => {
                let ip = Ipv6Addr::from(self.bytes::<16>()?);
                let scope = self.u32()?;
                Ok(SocketAddrV6::new(ip, self.u16()?, 0, scope).into())
            }
            _ => Err(Malformed),
        }
    }

    /// `value`, if nothing is left over.
    pub(super) fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}

/// `str::floor_char_boundary`, which the oldest supported compiler lacks.
trait CharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|i| self.is_char_boundary(*i)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn facts()(
            host_id: u64, host in "\\PC{0,40}", pid: u32, cores: u16, shm: bool, tcp: bool, sealed: bool, rdma: bool, ring: bool, silence: u32, connections: u16,
            unix in "[a-z]{0,20}", addrs in prop::collection::vec(any::<SocketAddr>(), 0..=MAX_ADDRS),
        ) -> Facts {
            // Flow labels do not travel.
            let addrs = addrs.into_iter().map(|a| match a {
                SocketAddr::V6(a) => SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id()).into(),
                a => a,
            }).collect();
            Facts { host_id, host, pid, cores, shm, tcp, rdma, ring, sealed, silence, connections, unix, addrs }
        }
    }

    prop_compose! {
        fn call()(
            op in 0usize..13, seq: u64, count: usize, dtype in prop::option::of(0usize..14), reduce in prop::option::of(0usize..4),
            root in prop::option::of(0usize..9999), tag in prop::option::of(0u32..9999),
        ) -> CallInfo {
            let (dtype, reduce) = (dtype.map(|d| DType::ALL[d]), reduce.map(|r| ReduceOp::ALL[r]));
            CallInfo { op: Op::ALL[op], seq, count, dtype, reduce, root, tag }
        }
    }

    proptest! {
        #[test]
        fn store_messages_round_trip(rank: u32, size: u32, patience: u64, facts in facts(), words in "\\PC{0,99}") {
            for m in [
                ToStore::Join { rank, size, patience, facts: facts.clone() }, ToStore::Ready,
                ToStore::Failed { words: words.clone() },
            ] {
                prop_assert_eq!(ToStore::decode(&m.encode()), Ok(m));
            }
            for m in [
                FromStore::Welcome { world: patience, size }, FromStore::Entry { rank, facts },
                FromStore::Refused { words },
            ] {
                prop_assert_eq!(FromStore::decode(&m.encode()), Ok(m));
            }
        }

        #[test]
        fn notes_round_trip(
            context: u64, culprit: u32, by: u32, reported: bool, cause in "\\PC{0,99}", ours in call(), theirs in call(),
            what in 0usize..9,
        ) {
            let calls = reported.then_some(Differs { ours, theirs, what: Header::DIFFERENCES[what] });
            let told = CallInfo { op: Op::Gather, tag: None, seq: 7, ..ours };
            let told = Header { info: told, shape: context, epoch: 1, context: 2 };
            for m in [
                Note::Leave { context },
                Note::Abort { context, culprit, by, reported, cause: cause.clone(), calls },
                Note::Waits { context, call: told },
                Note::Heartbeat { progress: context }, Note::Goodbye { words: cause },
                Note::GivenUp { silence: context },
            ] {
                let bytes = m.encode();
                prop_assert_eq!(Note::decode(bytes.get(..bytes.len() - 1).unwrap()), Err(Malformed));
                prop_assert_eq!(Note::decode(&[&bytes[..], &[0]].concat()), Err(Malformed));
                prop_assert_eq!(Note::decode(&bytes), Ok(m));
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..8) {
            let bytes = [&[kind], &bytes[..]].concat();
            if let Ok(m) = ToStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes.clone()); }
            if let Ok(m) = FromStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes.clone()); }
            if let Ok(m) = Note::decode(&bytes) { prop_assert_eq!(m.encode(), bytes); }
        }
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let words = "é".repeat(MAX_TEXT);
        let Ok(Note::Goodbye { words: got }) = Note::decode(&Note::Goodbye { words: words.clone() }.encode())
        else {
            panic!("not a goodbye")
        };
        assert!(got.len() == MAX_TEXT && words.starts_with(&got));
    }
}
