//! Header of every slot.
//!
//! ```text
//!   0 magic, version   8 epoch            16 group id         24 offset in the stream
//!  32 number in queue pair  40 taken in stream  48 given, by queue pair   56 length      60 CRC32C
//! ```
//!
//! The checksum covers the header and the payload: a provider without acknowledgements promises no integrity.

use comity_kernel::Crc32c;

/// A payload begins on a cache line of its own.
pub(super) const HEADER: usize = 64;
const MAGIC: [u8; 8] = *b"comity\x01\0";
/// Offset of the checksum, which covers everything before it.
const SUM: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Drawn when the peer connection was made: what an earlier one sent is not taken for this one's.
    pub(super) epoch: u64,
    /// The group, or [`HELLO`].
    pub(super) group_id: u64,
    /// The place of the first byte in the group's stream.
    pub(super) at: u64,
    /// Number of earlier frames in this queue pair.
    pub(super) number: u64,
    /// Number of bytes of the group's other stream that its sender has taken.
    pub(super) taken: u64,
    /// Number of receives of each queue pair of this path that the sender has posted again, modulo 2^32.
    pub(super) given: [u32; 2],
    pub(super) len: u32,
}

/// In place of a group: the first frame of a queue pair, which proves that the path leads where it should.
pub(super) const HELLO: u64 = u64::MAX;

/// Fault of a slot that is no valid frame of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Not a frame, or one of another version.
    Foreign,
    Sum,
    /// A frame of a peer connection that is over.
    Stale,
}

impl FrameHeader {
    /// The header's bytes, for a payload that is these two parts.
    pub(super) fn encode(&self, head: &[u8], body: &[u8]) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let given = u64::from(self.given[0]) | u64::from(self.given[1]) << 32;
        let words = [self.epoch, self.group_id, self.at, self.number, self.taken, given];
        out[..8].copy_from_slice(&MAGIC);
        for (place, word) in out[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[56..SUM].copy_from_slice(&self.len.to_le_bytes());
        let sum = sum(&out[..SUM], head, body);
        out[SUM..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The header of what lies in a slot, once all of it is found to be right; its payload follows.
    pub(super) fn decode(slot: &[u8], epoch: u64) -> Result<Self, Damage> {
        let (head, payload) = slot.split_at_checked(HEADER).ok_or(Damage::Foreign)?;
        if head[..8] != MAGIC {
            return Err(Damage::Foreign);
        }
        let word = |i: usize| head[8 * i..8 * i + 8].iter().rev().fold(0, |w: u64, b| w << 8 | u64::from(*b));
        let half = |at: usize| head[at..at + 4].iter().rev().fold(0, |w: u32, b| w << 8 | u32::from(*b));
        let len = half(56);
        let payload = payload.get(..len as usize).ok_or(Damage::Sum)?;
        if sum(&head[..SUM], payload, &[]) != half(SUM) {
            return Err(Damage::Sum);
        }
        if word(1) != epoch {
            return Err(Damage::Stale);
        }
        Ok(Self {
            epoch,
            group_id: word(2),
            at: word(3),
            number: word(4),
            taken: word(5),
            given: [half(48), half(52)],
            len,
        })
    }
}

fn sum(header: &[u8], head: &[u8], body: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    for part in [header, head, body] {
        sum.update(part);
    }
    sum.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn header()(epoch: u64, group_id: u64, at: u64, number: u64, taken: u64, given: [u32; 2]) -> FrameHeader {
            FrameHeader { epoch, group_id, at, number, taken, given, len: 0 }
        }
    }

    proptest! {
        #[test]
        fn frames_round_trip_and_a_changed_bit_is_found(
            h in header(), payload in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300, bit in 0usize..3000, tail in 0usize..64,
        ) {
            let h = FrameHeader { len: payload.len() as u32, ..h };
            let (head, body) = payload.split_at(cut.min(payload.len()));
            let mut slot = h.encode(head, body).to_vec();
            slot.extend(&payload);
            let whole = slot.len();
            // What lies behind it in the slot is nothing to it.
            slot.extend(vec![0xaa; tail]);
            prop_assert_eq!(FrameHeader::decode(&slot, h.epoch), Ok(h));
            prop_assert_eq!(FrameHeader::decode(&slot, h.epoch ^ 1), Err(Damage::Stale));
            slot[bit / 8 % whole] ^= 1 << (bit % 8);
            prop_assert!(FrameHeader::decode(&slot, h.epoch).is_err());
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 8 { bytes[..8].copy_from_slice(&MAGIC) }
            prop_assert!(FrameHeader::decode(&bytes, 0).is_err());
        }
    }
}
