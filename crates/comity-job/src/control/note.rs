//! Notes that two ranks exchange on their control connection, as bytes: as compact and as bounded as all messages.

use crate::{
    CallInfo, DType, Op, ReduceOp, Wire,
    channel::{Malformed, Reader, Writer},
    rendezvous::{Field, fields},
    status::{Differs, Failure, FailureKind, HEADER, Header, Late, Reached, Standing},
};

/// In place of a number that there is none of.
const NONE: u32 = u32::MAX;
/// The bit of calls of objects beside the operation.
const OBJECTS: u8 = 0x80;
/// The bits of the wire beside the operation, and the place of the lower one.
const WIRE: u8 = 0x60;
const WIRE_AT: u32 = 5;

/// Between two ranks, on their control connection.
pub type ControlNote = comity_membership::Note<Failure>;

/// [`Field`] for notes, which another crate has.
pub trait Encoding: Sized {
    fn put(&self, w: &mut Writer);

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed>;

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.put(&mut w);
        w.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let note = Self::take(&mut r)?;
        r.end(note)
    }
}

fields!(Encoding: enum ControlNote {
    1 Leave { group_id },
    2 Abort { group_id, failure },
    3 Heartbeat { progress },
    4 Goodbye { words, because_of },
    5 GivenUp { silence },
    6 Waits { group_id, call },
    7 Census { group_id, at, digest },
    8 Reached { group_id, reached },
    9 Entered { group_id },
    10 Connect { group_id },
    11 Lost { by, rank, cause, silence },
    12 Spread { origin, number, note: plain },
    13 Passed { from, to, hops, note: plain },
    14 NoWay { ranks },
    15 Reform { group_id, message },
});
fields!(Field: Failure { culprit, by, cause, why });
fields!(Field: enum FailureKind {
    0 Lost { because_of },
    1 Reported,
    2 Differs(calls),
    3 Late(late),
    4 Left,
    5 Disagreed,
});
fields!(Field: Differs { what: difference, ours: call, theirs: call });
fields!(Field: Late { call: call, after, missing, stalled });

/// Codec of a note that a neighbour passes on, the last field; it may not itself be passed on.
mod plain {
    use super::{ControlNote, Encoding, Malformed, Reader, Writer};

    pub(super) fn put(note: &ControlNote, w: &mut Writer) {
        note.put(w);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Box<ControlNote>, Malformed> {
        if matches!(r.0.first(), Some(12 | 13)) {
            return Err(Malformed);
        }
        ControlNote::take(r).map(Box::new)
    }
}

/// Codec of an element of [`Header::DIFFERENCES`].
mod difference {
    use super::{Header, Malformed, Reader, Writer};

    pub(super) fn put(what: &&'static str, w: &mut Writer) {
        w.u8(Header::DIFFERENCES.iter().position(|w| w == what).unwrap_or_default() as u8);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<&'static str, Malformed> {
        Header::DIFFERENCES.get(usize::from(r.u8()?)).copied().ok_or(Malformed)
    }
}

/// Codec of a call.
mod call {
    use super::*;

    pub(super) fn put(call: &CallInfo, w: &mut Writer) {
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

    pub(super) fn take(r: &mut Reader<'_>) -> Result<CallInfo, Malformed> {
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
}

impl Field for Reached {
    fn put(&self, w: &mut Writer) {
        w.u64(self.made);
        w.u8(u8::from(self.digest.is_some())
            | u8::from(self.lacks.is_some()) << 1
            | u8::from(self.elsewhere) << 2
            | u8::from(self.standing.is_some()) << 3);
        if let Some(digest) = self.digest {
            w.u64(digest);
        }
        if let Some((whom, since)) = self.lacks {
            w.u32(whom as u32);
            w.u64(since);
        }
        if let Some(Standing { call, sent }) = &self.standing {
            w.0.extend(call.encode());
            w.u64(*sent);
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let made = r.u64()?;
        let has = r.u8()?;
        if has > 15 {
            return Err(Malformed);
        }
        let digest = if has & 1 != 0 { Some(r.u64()?) } else { None };
        let lacks = if has & 2 != 0 { Some((r.u32()? as usize, r.u64()?)) } else { None };
        let standing = if has & 8 != 0 { Some(take_standing(r, made)?) } else { None };
        Ok(Self { made, digest, lacks, elsewhere: has & 4 != 0, standing })
    }
}

/// The call with the number `made`, in which a member stands.
fn take_standing(r: &mut Reader<'_>, made: u64) -> Result<Standing, Malformed> {
    let mut call = Header::take(r)?;
    if call.info.seq as u32 != made as u32 {
        return Err(Malformed);
    }
    call.info.seq = made;
    Ok(Standing { call, sent: r.u64()? })
}

/// Header of a call of the whole group: calls between two ranks alone are nobody else's affair.
impl Field for Header {
    fn put(&self, w: &mut Writer) {
        w.0.extend(self.encode());
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let call = Self::decode(&r.bytes::<HEADER>()?, 0).ok_or(Malformed)?;
        let pair = matches!(call.info.op, Op::Send | Op::Recv | Op::SendRecv);
        if pair { Err(Malformed) } else { Ok(call) }
    }
}

#[cfg(test)]
mod tests;
