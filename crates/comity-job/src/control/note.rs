//! Notes that two ranks exchange on their control connection, as bytes: as compact and as bounded as all messages.

use crate::{
    CallInfo, DType, Op, ReduceOp, Wire,
    channel::{Malformed, Reader, Writer},
    rendezvous::{Field, fields},
    status::{Differs, Failure, FailureKind, HEADER, Header, Late, Reached, Standing},
};

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
fields!(Field: Reached { made, digest, lacks, elsewhere, standing });
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

mod call {
    use super::*;

    pub(super) fn put(call: &CallInfo, w: &mut Writer) {
        w.u8(call.op as u8);
        w.u64(call.seq);
        w.u64(call.count as u64);
        call.dtype.map(|d| d as u32).put(w);
        call.reduce.map(|r| r as u32).put(w);
        call.root.put(w);
        call.tag.put(w);
        call.objects.put(w);
        call.wire.map(|wire| wire as u8).put(w);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<CallInfo, Malformed> {
        let mut info = CallInfo::new(Op::from_number(r.u8()?).ok_or(Malformed)?);
        info.seq = r.u64()?;
        info.count = usize::try_from(r.u64()?).map_err(|_| Malformed)?;
        info.dtype = named(r, |d: u32| DType::ALL.get(d as usize).copied())?;
        info.reduce = named(r, |r: u32| ReduceOp::ALL.get(r as usize).copied())?;
        info.root = Field::take(r)?;
        info.tag = Field::take(r)?;
        info.objects = r.flag()?;
        info.wire = named(r, Wire::from_number)?;
        Ok(info)
    }

    fn named<N: Field, T>(r: &mut Reader<'_>, by: impl Fn(N) -> Option<T>) -> Result<Option<T>, Malformed> {
        <Option<N> as Field>::take(r)?.map(|number| by(number).ok_or(Malformed)).transpose()
    }
}

/// Beside the header, which has a part of it, the whole number of the call.
impl Field for Standing {
    fn put(&self, w: &mut Writer) {
        self.call.put(w);
        w.u64(self.call.info.seq);
        w.u64(self.sent);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut call = Header::take(r)?;
        let seq = r.u64()?;
        if std::mem::replace(&mut call.info.seq, seq) as u32 != seq as u32 {
            return Err(Malformed);
        }
        Ok(Self { call, sent: r.u64()? })
    }
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
