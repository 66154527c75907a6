//! Notes that two ranks exchange on their control connection, as bytes: as compact and as bounded as all messages.

use crate::{
    CallInfo, DType, Op, ReduceOp, Wire,
    channel::{Malformed, Reader, Writer},
    rendezvous::{put_reform, take_reform},
    status::{Differs, Failure, FailureKind, HEADER, Header, Late, Reached, Standing},
};
use std::time::Duration;

/// In place of a number that there is none of.
const NONE: u32 = u32::MAX;
/// The bit of calls of objects beside the operation.
const OBJECTS: u8 = 0x80;
/// The bits of the wire beside the operation, and the place of the lower one.
const WIRE: u8 = 0x60;
const WIRE_AT: u32 = 5;

/// Between two ranks, on their control connection.
pub type ControlNote = comity_membership::Note<Failure>;

const BEAT: u8 = 3;

/// Encoding of another crate's types as bytes.
pub trait Encoding: Sized {
    fn encode(&self) -> Vec<u8>;

    fn decode(bytes: &[u8]) -> Result<Self, Malformed>;
}

impl Encoding for ControlNote {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Leave { group_id } => {
                w.u8(1);
                w.u64(*group_id);
            }
            Self::Abort { group_id, failure } => {
                w.u8(2);
                w.u64(*group_id);
                put_failure(&mut w, failure);
            }
            Self::Heartbeat { progress } => {
                w.u8(BEAT);
                w.u64(*progress);
            }
            Self::Goodbye { words, because_of } => {
                w.u8(4);
                w.text(words);
                w.ranks(because_of);
            }
            Self::GivenUp { silence } => {
                w.u8(5);
                w.u64(*silence);
            }
            Self::Waits { group_id, call } => {
                w.u8(6);
                w.u64(*group_id);
                w.0.extend(call.encode());
            }
            Self::Census { group_id, at, digest } => {
                w.u8(7);
                w.u64(*group_id);
                w.u64(*at);
                w.u64(*digest);
            }
            Self::Reached { group_id, reached } => {
                w.u8(8);
                w.u64(*group_id);
                put_reached(&mut w, reached);
            }
            Self::Entered { group_id } => {
                w.u8(9);
                w.u64(*group_id);
            }
            Self::Connect { group_id } => {
                w.u8(10);
                w.u64(*group_id);
            }
            Self::Reform { group_id, message } => {
                w.u8(15);
                w.u64(*group_id);
                put_reform(&mut w, message);
            }
            Self::Lost { .. } | Self::NoWay { .. } | Self::Spread { .. } | Self::Passed { .. } => {
                put_graph(&mut w, self)
            }
        }
        w.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let m = match r.u8()? {
            1 => Self::Leave { group_id: r.u64()? },
            2 => Self::Abort { group_id: r.u64()?, failure: take_failure(&mut r)? },
            BEAT => Self::Heartbeat { progress: r.u64()? },
            4 => Self::Goodbye { words: r.text()?, because_of: r.ranks()? },
            5 => Self::GivenUp { silence: r.u64()? },
            6 => Self::Waits { group_id: r.u64()?, call: take_collective(&mut r)? },
            7 => Self::Census { group_id: r.u64()?, at: r.u64()?, digest: r.u64()? },
            8 => Self::Reached { group_id: r.u64()?, reached: take_reached(&mut r)? },
            9 => Self::Entered { group_id: r.u64()? },
            10 => Self::Connect { group_id: r.u64()? },
            11 => {
                let by = r.u32()? as usize;
                let rank = r.u32()? as usize;
                let cause = r.text()?;
                let silence = if r.flag()? { Some(r.u64()?) } else { None };
                Self::Lost { by, rank, cause, silence }
            }
            12 => {
                let origin = r.u32()? as usize;
                let number = r.u64()?;
                return Ok(Self::Spread { origin, number, note: plain(r.0)? });
            }
            13 => {
                let from = r.u32()? as usize;
                let to = r.ranks()?;
                let hops = r.u8()?;
                return Ok(Self::Passed { from, to, hops, note: plain(r.0)? });
            }
            14 => Self::NoWay { ranks: r.ranks()? },
            15 => Self::Reform { group_id: r.u64()?, message: Box::new(take_reform(&mut r)?) },
            _ => return Err(Malformed),
        };
        r.end(m)
    }
}

/// Decodes a note that a neighbour passes on; it may not itself be passed on.
fn plain(bytes: &[u8]) -> Result<Box<ControlNote>, Malformed> {
    if matches!(bytes.first(), Some(12 | 13)) {
        return Err(Malformed);
    }
    ControlNote::decode(bytes).map(Box::new)
}

/// Encodes a note for a large job's graph.
fn put_graph(w: &mut Writer, note: &ControlNote) {
    match note {
        ControlNote::Lost { by, rank, cause, silence } => {
            w.u8(11);
            w.u32(*by as u32);
            w.u32(*rank as u32);
            w.text(cause);
            w.u8(u8::from(silence.is_some()));
            silence.iter().for_each(|ms| w.u64(*ms));
        }
        ControlNote::NoWay { ranks } => {
            w.u8(14);
            w.ranks(ranks);
        }
        ControlNote::Spread { origin, number, note } => {
            w.u8(12);
            w.u32(*origin as u32);
            w.u64(*number);
            w.0.extend(note.encode());
        }
        ControlNote::Passed { from, to, hops, note } => {
            w.u8(13);
            w.u32(*from as u32);
            w.ranks(to);
            w.u8(*hops);
            w.0.extend(note.encode());
        }
        _ => {}
    }
}

fn put_differs(w: &mut Writer, d: &Differs) {
    w.u8(Header::DIFFERENCES.iter().position(|w| *w == d.what).unwrap_or_default() as u8);
    put_call(w, &d.ours);
    put_call(w, &d.theirs);
}

fn put_call(w: &mut Writer, call: &CallInfo) {
    let some = |x: Option<u32>| x.unwrap_or(NONE);
    let wire = call.wire.map_or(0, |w| w as u8) << WIRE_AT;
    w.u8(call.op as u8 | wire | if call.objects { OBJECTS } else { 0 });
    w.u64(call.seq);
    w.u64(call.count as u64);
    w.u32(some(call.dtype.map(|d| d as u32)));
    w.u32(some(call.reduce.map(|r| r as u32)));
    w.u32(some(call.root.map(|r| r as u32)));
    w.u32(some(call.tag));
}

fn put_failure(w: &mut Writer, f: &Failure) {
    w.u32(f.culprit as u32);
    w.u32(f.by as u32);
    w.text(&f.cause);
    match &f.why {
        FailureKind::Lost { because_of } => {
            w.u8(0);
            w.ranks(because_of);
        }
        FailureKind::Reported => w.u8(1),
        FailureKind::Left => w.u8(4),
        FailureKind::Disagreed => w.u8(5),
        FailureKind::Differs(calls) => {
            w.u8(2);
            put_differs(w, calls);
        }
        FailureKind::Late(late) => {
            w.u8(3);
            put_call(w, &late.call);
            w.u64(late.after.as_nanos() as u64);
            w.ranks(&late.missing);
            w.u8(u8::from(late.stalled.is_some()));
            if let Some((a, b)) = late.stalled {
                w.u32(a as u32);
                w.u32(b as u32);
            }
        }
    }
}

fn put_reached(w: &mut Writer, reached: &Reached) {
    w.u64(reached.made);
    w.u8(u8::from(reached.digest.is_some())
        | u8::from(reached.lacks.is_some()) << 1
        | u8::from(reached.elsewhere) << 2
        | u8::from(reached.standing.is_some()) << 3);
    if let Some(digest) = reached.digest {
        w.u64(digest);
    }
    if let Some((whom, since)) = reached.lacks {
        w.u32(whom as u32);
        w.u64(since);
    }
    if let Some(Standing { call, sent }) = &reached.standing {
        w.0.extend(call.encode());
        w.u64(*sent);
    }
}

fn take_differs(r: &mut Reader<'_>) -> Result<Differs, Malformed> {
    let what = Header::DIFFERENCES.get(usize::from(r.u8()?)).copied().ok_or(Malformed)?;
    Ok(Differs { what, ours: take_call(r)?, theirs: take_call(r)? })
}

fn take_failure(r: &mut Reader<'_>) -> Result<Failure, Malformed> {
    let culprit = r.u32()? as usize;
    let by = r.u32()? as usize;
    let cause = r.text()?;
    let why = match r.u8()? {
        0 => FailureKind::Lost { because_of: r.ranks()? },
        1 => FailureKind::Reported,
        2 => FailureKind::Differs(Box::new(take_differs(r)?)),
        3 => {
            let call = take_call(r)?;
            let after = Duration::from_nanos(r.u64()?);
            let missing = r.ranks()?;
            let stalled = if r.flag()? { Some((r.u32()? as usize, r.u32()? as usize)) } else { None };
            FailureKind::Late(Box::new(Late { call, after, missing, stalled }))
        }
        4 => FailureKind::Left,
        5 => FailureKind::Disagreed,
        _ => return Err(Malformed),
    };
    Ok(Failure { culprit, by, cause, why })
}

fn take_reached(r: &mut Reader<'_>) -> Result<Reached, Malformed> {
    let made = r.u64()?;
    let has = r.u8()?;
    if has > 15 {
        return Err(Malformed);
    }
    let digest = if has & 1 != 0 { Some(r.u64()?) } else { None };
    let lacks = if has & 2 != 0 { Some((r.u32()? as usize, r.u64()?)) } else { None };
    let standing = if has & 8 != 0 { Some(take_standing(r, made)?) } else { None };
    Ok(Reached { made, digest, lacks, elsewhere: has & 4 != 0, standing })
}

/// The call with the number `made`, in which a member stands.
fn take_standing(r: &mut Reader<'_>, made: u64) -> Result<Standing, Malformed> {
    let mut call = take_collective(r)?;
    if call.info.seq as u32 != made as u32 {
        return Err(Malformed);
    }
    call.info.seq = made;
    Ok(Standing { call, sent: r.u64()? })
}

/// Header of a call of the whole group: calls between two ranks alone are nobody else's affair.
fn take_collective(r: &mut Reader<'_>) -> Result<Header, Malformed> {
    let call = Header::decode(&r.bytes::<HEADER>()?, 0).ok_or(Malformed)?;
    let pair = matches!(call.info.op, Op::Send | Op::Recv | Op::SendRecv);
    if pair { Err(Malformed) } else { Ok(call) }
}

fn take_call(r: &mut Reader<'_>) -> Result<CallInfo, Malformed> {
    let first = r.u8()?;
    let op = *Op::ALL.get(usize::from(first & !(OBJECTS | WIRE)).wrapping_sub(1)).ok_or(Malformed)?;
    let seq = r.u64()?;
    let count = r.u64()?;
    let mut some = || Ok(Some(r.u32()?).filter(|x| *x != NONE));
    let dtype = some()?;
    let reduce = some()?;
    let root = some()?;
    let tag = some()?;
    let dtype = dtype.map(|d| DType::ALL.get(d as usize).copied().ok_or(Malformed)).transpose()?;
    let reduce = reduce.map(|r| ReduceOp::ALL.get(r as usize).copied().ok_or(Malformed)).transpose()?;
    let count = usize::try_from(count).map_err(|_| Malformed)?;
    let objects = first & OBJECTS != 0;
    let mut info = CallInfo::new(op);
    info.seq = seq;
    info.count = count;
    info.dtype = dtype;
    info.reduce = reduce;
    info.root = root.map(|r| r as usize);
    info.tag = tag;
    info.objects = objects;
    info.wire = Wire::from_number((first & WIRE) >> WIRE_AT);
    Ok(info)
}

#[cfg(test)]
mod tests;
