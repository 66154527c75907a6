//! The control socket of a pair, a TCP connection beside its paths: bringing them up, credits of one-way traffic, ends of streams, and the peer's own end.
//!
//! A message is a kind, and fields in network order.

use crate::{
    channel::{Conn, Malformed, Reader, Stream, Writer},
    sys::verbs::{Abilities, Address, End},
};
use std::{
    io::{self, ErrorKind},
    net::TcpStream,
    sync::Arc,
};

/// The most devices or paths of one pair.
pub(super) const MAX_PATHS: usize = 16;

/// An end's side of a path that is being made: its queue pairs, or why there are none.
pub(super) type Made = Result<[End; 2], String>;
/// Number of receives posted in each queue pair, or why none.
pub(super) type PostedReceives = Result<[u32; 2], String>;

/// A device as the peer must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfferedDevice {
    pub(super) name: String,
    pub(super) at: Address,
    pub(super) abilities: Abilities,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// This end's devices for the pair, or why there are none; and half of the epoch.
    Offer { epoch: u64, slots: [u32; 4], devices: Vec<OfferedDevice>, why: String },
    /// For each path that is tried: this end's queue pairs.
    Made(Vec<Made>),
    /// For each of those: receives are posted.
    Ready(Vec<PostedReceives>),
    /// For each of those: the peer's first frames came.
    Heard(Vec<Result<(), String>>),
    /// Receives posted again in each queue pair of a path.
    Given { path: u8, given: [u32; 2] },
    /// Bytes taken of a stream.
    Taken { group_id: u64, taken: u64 },
    /// No more than so many bytes come.
    End { group_id: u64, total: u64 },
    /// Frames sent in each queue pair of a path.
    Sent { path: u8, count: [u64; 2] },
    /// The sender ends, and wants to know whether all that it sent has come.
    Bye,
    /// All has come.
    All,
    /// A path has failed, in words.
    Failed(String),
}

/// Appends a message of this kind: the result of each path, which is what `put` writes of it, or its error.
fn put_each<T>(w: &mut Writer, kind: u8, paths: &[Result<T, String>], put: impl Fn(&mut Writer, &T)) {
    w.u8(kind);
    w.list(MAX_PATHS, paths, |w, path| {
        w.u8(u8::from(path.is_ok()));
        match path {
            Ok(made) => put(w, made),
            Err(why) => w.text(why),
        }
    });
}

fn take_each<'a, T>(
    r: &mut Reader<'a>,
    take: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<Result<T, String>>, Malformed> {
    r.list(MAX_PATHS, |r| if r.flag()? { take(r).map(Ok) } else { r.text().map(Err) })
}

fn put_address(w: &mut Writer, at: &Address) {
    w.0.extend(at.gid);
    w.u16(at.lid);
    w.u8(at.mtu);
}

fn take_address(r: &mut Reader<'_>) -> Result<Address, Malformed> {
    Ok(Address { gid: r.bytes()?, lid: r.u16()?, mtu: r.u8()? })
}

impl ControlMessage {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Offer { epoch, slots, devices, why } => {
                w.u8(1);
                w.u64(*epoch);
                slots.iter().for_each(|s| w.u32(*s));
                w.list(MAX_PATHS, devices, |w, d| {
                    w.text(&d.name);
                    put_address(w, &d.at);
                    let Abilities { reliable, unreliable, equal_frames } = d.abilities;
                    w.u8(u8::from(reliable) | u8::from(unreliable) << 1 | u8::from(equal_frames) << 2);
                });
                w.text(why);
            }
            Self::Made(paths) => put_each(&mut w, 2, paths, |w, ends| {
                for end in ends {
                    w.u32(end.number);
                    w.u32(end.first);
                    put_address(w, &end.at);
                }
            }),
            Self::Ready(paths) => {
                put_each(&mut w, 3, paths, |w, counts| counts.iter().for_each(|c| w.u32(*c)))
            }
            Self::Heard(paths) => put_each(&mut w, 4, paths, |_, ()| {}),
            Self::Given { path, given } => {
                w.0.extend([5, *path]);
                given.iter().for_each(|g| w.u32(*g));
            }
            Self::Taken { group_id, taken: total } | Self::End { group_id, total } => {
                w.u8(if matches!(self, Self::Taken { .. }) { 6 } else { 7 });
                w.u64(*group_id);
                w.u64(*total);
            }
            Self::Sent { path, count } => {
                w.0.extend([8, *path]);
                count.iter().for_each(|c| w.u64(*c));
            }
            Self::Bye => w.u8(9),
            Self::All => w.u8(10),
            Self::Failed(why) => {
                w.u8(11);
                w.text(why);
            }
        }
        w.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let word = match r.u8()? {
            1 => {
                let epoch = r.u64()?;
                let slots = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
                let devices = r.list(MAX_PATHS, |r| {
                    let name = r.text()?;
                    let at = take_address(r)?;
                    let bits = r.u8()?;
                    if bits > 7 {
                        return Err(Malformed);
                    }
                    let [reliable, unreliable, equal_frames] = [1, 2, 4].map(|bit| bits & bit != 0);
                    Ok(OfferedDevice {
                        name,
                        at,
                        abilities: Abilities { reliable, unreliable, equal_frames },
                    })
                })?;
                Self::Offer { epoch, slots, devices, why: r.text()? }
            }
            2 => Self::Made(take_each(&mut r, |r| {
                let mut end = || Ok(End { number: r.u32()?, first: r.u32()?, at: take_address(r)? });
                Ok([end()?, end()?])
            })?),
            3 => Self::Ready(take_each(&mut r, |r| Ok([r.u32()?, r.u32()?]))?),
            4 => Self::Heard(take_each(&mut r, |_| Ok(()))?),
            5 => Self::Given { path: r.u8()?, given: [r.u32()?, r.u32()?] },
            6 => Self::Taken { group_id: r.u64()?, taken: r.u64()? },
            7 => Self::End { group_id: r.u64()?, total: r.u64()? },
            8 => Self::Sent { path: r.u8()?, count: [r.u64()?, r.u64()?] },
            9 => Self::Bye,
            10 => Self::All,
            11 => Self::Failed(r.text()?),
            _ => return Err(Malformed),
        };
        r.end(word)
    }
}

/// The connection. Nothing blocks.
#[derive(Debug)]
pub(super) struct ControlSocket {
    conn: Conn,
    /// Reason for which nothing more comes.
    over: Option<String>,
}

impl ControlSocket {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { conn: Conn::new(Stream::Tcp(stream), None), over: None })
    }

    /// Send a word, now or when there is room. What the peer said before an error is still to be read.
    pub(super) fn say(&mut self, word: &ControlMessage) {
        if self.conn.send(&word.encode()).is_err_and(|e| e.kind() == ErrorKind::Other) {
            self.over.get_or_insert_with(|| "does not read its connection".into());
        }
    }

    /// Send what waits, as far as there is room, and read what is there.
    pub(super) fn go_on(&mut self) {
        let _ = self.conn.flush();
        if self.over.is_none()
            && let Err(e) = self.conn.read()
        {
            self.over = Some(match e.kind() {
                ErrorKind::UnexpectedEof => "closed its connection".into(),
                _ => format!("broke its connection: {e}"),
            });
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.conn.is_pending()
    }

    /// The next word that has come whole.
    pub(super) fn next(&mut self) -> Result<Option<ControlMessage>, Malformed> {
        self.conn.next_message()?.map(|body| ControlMessage::decode(&body)).transpose()
    }

    /// Reason for which nothing more comes, once all that came was read.
    pub(super) fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// The connection, to wait on without a lock.
    pub(super) fn stream(&self) -> &Arc<Stream> {
        self.conn.stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = ControlMessage> {
        let at = (any::<[u8; 16]>(), any::<u16>(), any::<u8>()).prop_map(|(gid, lid, mtu)| Address {
            gid,
            lid,
            mtu,
        });
        let device = ("[a-z]{0,9}", at.clone(), any::<[bool; 3]>()).prop_map(|(name, at, b)| OfferedDevice {
            name,
            at,
            abilities: Abilities { reliable: b[0], unreliable: b[1], equal_frames: b[2] },
        });
        let end = (any::<u32>(), any::<u32>(), at).prop_map(|(number, first, at)| End { number, first, at });
        let made = prop_oneof!["\\PC{0,20}".prop_map(Err), (end.clone(), end).prop_map(|(a, b)| Ok([a, b]))];
        let posted = prop_oneof!["\\PC{0,20}".prop_map(Err), any::<[u32; 2]>().prop_map(Ok)];
        let heard = prop_oneof!["\\PC{0,20}".prop_map(Err), Just(Ok(()))];
        prop_oneof![
            (any::<u64>(), any::<[u32; 4]>(), prop::collection::vec(device, 0..5), "\\PC{0,20}").prop_map(
                |(epoch, slots, devices, why)| ControlMessage::Offer { epoch, slots, devices, why }
            ),
            prop::collection::vec(made, 0..5).prop_map(ControlMessage::Made),
            prop::collection::vec(posted, 0..5).prop_map(ControlMessage::Ready),
            prop::collection::vec(heard, 0..5).prop_map(ControlMessage::Heard),
            (any::<u8>(), any::<[u32; 2]>()).prop_map(|(path, given)| ControlMessage::Given { path, given }),
            any::<[u64; 2]>().prop_map(|[group_id, taken]| ControlMessage::Taken { group_id, taken }),
            any::<[u64; 2]>().prop_map(|[group_id, total]| ControlMessage::End { group_id, total }),
            (any::<u8>(), any::<[u64; 2]>()).prop_map(|(path, count)| ControlMessage::Sent { path, count }),
            Just(ControlMessage::Bye),
            Just(ControlMessage::All),
            "\\PC{0,20}".prop_map(ControlMessage::Failed),
        ]
    }

    proptest! {
        #[test]
        fn words_round_trip(word in words()) {
            let bytes = word.encode();
            prop_assert_eq!(ControlMessage::decode(&bytes), Ok(word));
            prop_assert!(bytes.is_empty() || ControlMessage::decode(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(word) = ControlMessage::decode(&bytes) {
                prop_assert_eq!(ControlMessage::decode(&word.encode()), Ok(word));
            }
        }
    }
}
