//! Header of the first message between two ranks in a call.
//!
//! ```text
//!   0     1      2       3        4           8      16      24   28
//!   | op  dtype  reduce  version  root or tag count  shape   seq  group |  32 bytes, little endian
//! ```
//!
//! The first bit of `version` is set if the sender's messages were read where they lay, in its last such call: a hint, which may differ.
//! The second is set in calls that are parts of one that moves objects. The next two are the number of the wire.
//! `seq` and `group` are the lower halves of the call's number and of the group's id. `shape` is what else both sides must agree on: a hash
//! of the per-rank counts and of the plan. Where counts differ by pair, it is the elements of this pair. The receiver compares before it
//! takes a byte of what follows.

use crate::{CallInfo, DType, MAX_TAG, Op, ReduceOp, Wire, error::PART};

/// Bytes of a header.
pub const LEN: usize = 32;
pub(super) const WORDS: usize = LEN / 8;
/// Changes with the format or the meaning of any field.
const VERSION: u8 = 3;
/// The bit of `lends` beside the version.
const LENDS: u8 = 0x80;
/// The bit of `objects` beside the version.
const OBJECTS: u8 = 0x40;
/// The bits of `wire` beside the version, and the place of the lower one.
const WIRE: u8 = 0x30;
const WIRE_AT: u32 = 4;
const NONE: u8 = 0xff;
const NO_ROOT: u32 = u32::MAX;
/// The tag of what backends say to each other between two ranks: above those of users.
pub const ANNOUNCE: u32 = MAX_TAG + 1;

/// A call as a rank announces it to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub info: CallInfo,
    pub shape: u64,
    pub group_id: u32,
    /// In the sender's last call of this kind its messages were read where they lay.
    pub lends: bool,
}

impl Header {
    /// Returns the header in words, which go out with the low byte first.
    ///
    /// A core waits for some nanoseconds when it reads a word that it has just written in parts: bytes, or two numbers that the compiler
    /// reads as one. A call makes two headers.
    #[inline]
    pub(super) fn words(&self) -> [u64; WORDS] {
        let i = &self.info;
        let dtype = i.dtype.map_or(NONE, |d| d as u8);
        let reduce = i.reduce.map_or(NONE, |r| r as u8);
        let mut form = VERSION | if self.lends { LENDS } else { 0 } | if i.objects { OBJECTS } else { 0 };
        form |= i.wire.map_or(0, |w| w as u8) << WIRE_AT;
        let kinds = u32::from_le_bytes([i.op as u8, dtype, reduce, form]);
        let place = i.tag.or_else(|| i.root.map(|r| r as u32)).unwrap_or(NO_ROOT);
        [
            u64::from(kinds) | u64::from(place) << 32,
            i.count as u64,
            self.shape,
            u64::from(i.seq as u32) | u64::from(self.group_id) << 32,
        ]
    }

    /// Returns the bytes of the header.
    #[inline]
    pub fn encode(&self) -> [u8; LEN] {
        let [kinds, count, shape, place] = self.words();
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&kinds.to_le_bytes());
        bytes[8..16].copy_from_slice(&count.to_le_bytes());
        bytes[16..24].copy_from_slice(&shape.to_le_bytes());
        bytes[24..].copy_from_slice(&place.to_le_bytes());
        bytes
    }

    /// Returns `lends` of an encoded header.
    #[inline]
    pub fn says_lends(b: &[u8; LEN]) -> bool {
        b[3] & LENDS != 0
    }

    /// `None` when these bytes are no header: the stream is out of step.
    pub fn decode(b: &[u8; LEN], from: usize) -> Option<Self> {
        let word = |r: std::ops::Range<usize>| b[r].iter().rev().fold(0u64, |w, &x| w << 8 | u64::from(x));
        if b[3] & !(LENDS | OBJECTS | WIRE) != VERSION {
            return None;
        }
        let op = Op::from_number(b[0])?;
        let some = |x: u8| (x != NONE).then_some(x as usize);
        let dtype = some(b[1]).map(|d| DType::ALL.get(d).copied().ok_or(())).transpose().ok()?;
        let reduce = some(b[2]).map(|r| ReduceOp::ALL.get(r).copied().ok_or(())).transpose().ok()?;
        let who = Some(word(4..8) as u32).filter(|&r| r != NO_ROOT);
        let pair = op == Op::Send;
        if pair && who.is_none_or(|tag| tag > ANNOUNCE) {
            return None;
        }
        let mut info = CallInfo::new(op);
        info.seq = word(24..28);
        info.count = usize::try_from(word(8..16)).ok()?;
        info.dtype = dtype;
        info.reduce = reduce;
        info.root = if pair { Some(from) } else { who.map(|r| r as usize) };
        info.tag = if pair { who } else { None };
        info.objects = b[3] & OBJECTS != 0;
        info.wire = Wire::from_number((b[3] & WIRE) >> WIRE_AT);
        let group_id = word(28..32) as u32;
        Some(Self { info, shape: word(16..24), group_id, lends: Self::says_lends(b) })
    }

    /// Fields that can differ, in words for the error's reader; the first difference is named.
    pub const DIFFERENCES: [&'static str; 11] = [
        "group",
        Self::OPERATION,
        "position in the sequence of calls",
        "dtype",
        "reduction",
        "wire",
        "tag",
        "root",
        "count",
        Self::PLAN,
        PART,
    ];
    /// Another operation.
    pub const OPERATION: &'static str = "operation";
    /// Name for the facts, besides the call's arguments, that all ranks must know alike.
    pub const PLAN: &'static str = "per-rank counts or plan";

    /// Returns an element of [`DIFFERENCES`](Self::DIFFERENCES); `None` when both sides make the same call.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let a = &self.info;
        let b = &other.info;
        let same = [
            self.group_id == other.group_id,
            a.op == b.op && a.objects == b.objects,
            a.seq as u32 == b.seq as u32,
            a.dtype == b.dtype,
            a.reduce == b.reduce,
            a.wire == b.wire,
            a.tag == b.tag,
            a.tag.is_some() || a.root == b.root,
            a.count == b.count,
            self.shape == other.shape,
        ];
        same.iter().zip(Self::DIFFERENCES).find(|(same, _)| !**same).map(|(_, what)| what)
    }

    /// Returns true if `rank` cannot end this call before `other` makes it. Parts are of equal length.
    pub fn needs(&self, rank: usize, other: usize) -> bool {
        match self.info.op {
            Op::AllReduce
            | Op::AllGather
            | Op::ReduceScatter
            | Op::AllToAll
            | Op::Barrier
            | Op::Split
            | Op::Reform => true,
            Op::Reduce | Op::Gather => self.info.count > 0 && self.info.root == Some(rank),
            Op::Broadcast | Op::Scatter => self.info.count > 0 && self.info.root == Some(other),
            _ => false,
        }
    }

    /// Bytes that follow, for a message between two ranks alone.
    #[inline]
    pub fn pair_bytes(&self) -> Option<usize> {
        let d = self.info.dtype?;
        (self.info.op == Op::Send).then(|| self.info.count.checked_mul(d.size()))?
    }
}

/// The bytes before the payload of a message of `len` at stream position `pos`: the header if it has one, then padding.
///
/// The padding keeps elements from straddling the end of a ring. It puts long payloads on a cache line.
#[inline]
pub fn lead(pos: u64, header: bool, len: usize) -> usize {
    let align = if len >= 4096 { 64 } else { 8 };
    let head = if header { LEN } else { 0 };
    let at = (pos as usize).wrapping_add(head);
    head + (align - at % align) % align
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce() -> Header {
        let info = CallInfo::new(Op::AllReduce).with(|c| {
            c.seq = 812;
            c.count = 1 << 20;
            c.dtype = Some(DType::F32);
            c.reduce = Some(ReduceOp::Sum);
            c.root = None;
            c.tag = None;
            c.objects = false;
        });
        Header { info, shape: 77, group_id: 9, lends: false }
    }

    #[test]
    fn headers_round_trip() {
        let send = all_reduce().info.with(|c| {
            c.op = Op::Send;
            c.seq = 0;
            c.reduce = None;
            c.root = Some(5);
            c.tag = Some(8);
        });
        let lends = Header { lends: true, ..all_reduce() };
        let objects = all_reduce().info.with(|c| c.objects = true);
        let [bf16, f16, int8] = Wire::ALL.map(|wire| all_reduce().info.with(|c| c.wire = Some(wire)));
        for h in [
            all_reduce(),
            lends,
            Header { info: send, ..all_reduce() },
            Header { info: objects, ..all_reduce() },
            Header { info: bf16, ..all_reduce() },
            Header { info: f16, ..lends },
            Header { info: int8, ..all_reduce() },
        ] {
            assert_eq!(Header::decode(&h.encode(), 5), Some(h));
            assert_eq!(Header::says_lends(&h.encode()), h.lends);
            assert_eq!(h.difference(&h), None);
        }
        assert_eq!(lends.difference(&all_reduce()), None, "a hint, no part of the call");
    }

    #[test]
    fn every_difference_has_a_name() {
        let a = all_reduce();
        let with = |f: &dyn Fn(&mut Header)| {
            let mut b = a;
            f(&mut b);
            a.difference(&b)
        };
        assert_eq!(with(&|b| b.info.op = Op::Reduce), Some("operation"));
        assert_eq!(with(&|b| b.info.objects = true), Some("operation"));
        assert_eq!(with(&|b| b.info.dtype = Some(DType::I32)), Some("dtype"));
        assert_eq!(with(&|b| b.info.reduce = Some(ReduceOp::Max)), Some("reduction"));
        assert_eq!(with(&|b| b.info.wire = Some(Wire::F16)), Some("wire"));
        assert_eq!(with(&|b| b.info.count = 5), Some("count"));
        assert_eq!(with(&|b| b.info.root = Some(1)), Some("root"));
        assert_eq!(with(&|b| b.info.seq = 813), Some("position in the sequence of calls"));
        assert_eq!(with(&|b| b.shape = 0), Some("per-rank counts or plan"));
        assert_eq!(with(&|b| b.group_id = 0), Some("group"));
    }

    #[test]
    fn foreign_bytes_are_no_header() {
        assert_eq!(Header::decode(&[0; LEN], 0), None);
        assert_eq!(Header::decode(&[0xff; LEN], 0), None);
        let mut b = all_reduce().encode();
        b[1] = 14;
        assert_eq!(Header::decode(&b, 0), None);
        // A send has a tag that a user can give.
        let mut b = all_reduce().encode();
        b[0] = Op::Send as u8;
        assert_eq!(Header::decode(&b, 0), None);
    }

    #[test]
    fn payloads_are_aligned() {
        for pos in 0..200u64 {
            for (header, len) in [(true, 8), (false, 8), (true, 5000), (false, 5000)] {
                let align = if len >= 4096 { 64 } else { 8 };
                assert_eq!((pos as usize + lead(pos, header, len)) % align, 0);
                assert!(lead(pos, header, len) < LEN + align);
            }
        }
    }
}
