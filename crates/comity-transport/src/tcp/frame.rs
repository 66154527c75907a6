//! The frame that carries a piece of the stream over a connection: twenty bytes of header, then
//! the piece. Integers are little endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | length of the piece, 1 to [`MAX_FRAME`]; the highest bit says that the next frame travels [aside](FrameRoute::Aside) |
//! | 4..12 | number of the frame in the stream, from 0 over all connections |
//! | 12..16 | CRC32C of the twelve bytes before |
//! | 16..20 | CRC32C of those twelve bytes and the piece |
//!
//! A header has a checksum of its own, so that nobody waits for bytes that a damaged length announces.
//!
//! If the connections are sealed, bytes 16..20 are zero, the tag of AES-GCM follows the header, which it covers too, and the
//! piece is encrypted; it is short enough to be opened whole in the receiver's buffer.

use crate::{
    LinkError,
    channel::{Seal, SealError, TAG},
};
use comity_kernel::Crc32c;

pub(super) const HEADER: usize = 20;
/// Bytes of a header that its own checksum covers.
const COVERED: usize = 12;
/// The longest piece that a receiver takes.
pub(super) const MAX_FRAME: usize = 1 << 20;
/// The longest piece that a sender makes: it fits the second-level cache, so that what the
/// checksum has just read the system copies from there.
pub(super) const FRAME: usize = 256 << 10;
/// A piece up to this long is lent only when it is whole and right.
pub(super) const SMALL: usize = 2 << 10;

/// Bytes of a header with a tag.
pub(super) const SEALED_HEADER: usize = HEADER + TAG;
/// The longest sealed piece that a receiver takes: all of it must lie in the receiver's buffer before any of it can be opened.
pub(super) const SEALED_MOST: usize = 128 << 10;
/// The longest sealed piece that a sender makes. A receiver waits before it can begin for as long as a link of 25 Gbit/s needs for it,
/// 42 us; shorter ones cost more calls and packets.
pub(super) const SEALED_FRAME: usize = 128 << 10;
/// Sealed bytes that leave or come in one call, in several frames; they fit the second-level cache.
pub(super) const SEALED_BATCH: usize = 2 * (SEALED_HEADER + SEALED_FRAME);
/// A sealed frame up to this long carries the head of a message as well: copying both costs less than a frame of its own.
pub(super) const SEALED_SMALL: usize = 16 << 10;

const _: () = assert!(FRAME <= MAX_FRAME && SMALL < FRAME);
const _: () = assert!(SEALED_FRAME <= SEALED_MOST && SEALED_SMALL < SEALED_FRAME);

/// In a header's length: the next frame travels aside.
const NEXT_ASIDE: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRoute {
    /// On the link's first connection, which carries both directions.
    Home,
    /// On a connection for the long messages of its direction.
    Aside,
}

/// The length that the first word of a header tells, and where the next frame travels.
pub(super) fn length(word: u32) -> (usize, FrameRoute) {
    ((word & !NEXT_ASIDE) as usize, if word & NEXT_ASIDE == 0 { FrameRoute::Home } else { FrameRoute::Aside })
}

/// The checksum of a header, which goes on with the piece.
fn of_header(covered: &[u8; COVERED]) -> Crc32c {
    let mut checksum = Crc32c::new();
    checksum.update(covered);
    checksum
}

/// The header of frame `number`, which carries `parts` one after the other, and says where the `next` one travels.
pub(super) fn header(number: u64, parts: [&[u8]; 2], next: FrameRoute) -> [u8; HEADER] {
    // FRAME bounds the length.
    let (mut header, mut checksum) = start((parts[0].len() + parts[1].len()) as u32, number, next);
    for part in parts {
        if !part.is_empty() {
            checksum.update(part);
        }
    }
    header[16..].copy_from_slice(&checksum.value().to_le_bytes());
    header
}

/// All of a header but the checksum of the piece, and that in the making.
pub(super) fn start(len: u32, number: u64, next: FrameRoute) -> ([u8; HEADER], Crc32c) {
    let mut covered = [0; COVERED];
    let word = if next == FrameRoute::Aside { len | NEXT_ASIDE } else { len };
    covered[..4].copy_from_slice(&word.to_le_bytes());
    covered[4..].copy_from_slice(&number.to_le_bytes());
    let checksum = of_header(&covered);
    let mut header = [0; HEADER];
    header[..COVERED].copy_from_slice(&covered);
    header[COVERED..16].copy_from_slice(&checksum.value().to_le_bytes());
    (header, checksum)
}

/// Write frame `number`, whole, which carries `parts`, to the front of `room`, which it fits; its length.
pub(super) fn copy(room: &mut [u8], number: u64, parts: [&[u8]; 2], next: FrameRoute) -> usize {
    let mut at = 0;
    for part in [&header(number, parts, next)[..], parts[0], parts[1]] {
        room[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at
}

/// Write the sealed frame `number`, whole, which carries `parts`, to the front of `room`; its length.
pub(super) fn seal(
    room: &mut [u8],
    number: u64,
    parts: [&[u8]; 2],
    next: FrameRoute,
    seal: &Seal,
) -> Result<usize, LinkError> {
    let no_cipher = || LinkError("could not be sent to: no cipher".into());
    // SEALED_FRAME bounds the length.
    let len = parts[0].len() + parts[1].len();
    let (header, _) = start(len as u32, number, next);
    let (room, _) = room.split_at_mut_checked(SEALED_HEADER + len).ok_or_else(no_cipher)?;
    let (front, data) = room.split_at_mut(SEALED_HEADER);
    let tag = match parts {
        // The cipher reads it where the caller has it.
        [&[], text] | [text, &[]] => seal.seal(number, &header, text, data),
        [head, body] => {
            let (h, b) = data.split_at_mut(head.len());
            h.copy_from_slice(head);
            b.copy_from_slice(body);
            seal.seal_in_place(number, &header, data)
        }
    };
    front[..HEADER].copy_from_slice(&header);
    front[HEADER..].copy_from_slice(&tag.map_err(|_| no_cipher())?);
    Ok(SEALED_HEADER + len)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivingFrame {
    /// Bytes of the piece that the reader has not had.
    pub(super) left: usize,
    /// Bytes of it that the reader has had.
    pub(super) given: usize,
    /// The whole piece is here, and right.
    pub(super) sound: bool,
    pub(super) next: FrameRoute,
    announced: u32,
    checksum: Crc32c,
}

/// A sealed frame whose header has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) len: usize,
    pub(super) next: FrameRoute,
    header: [u8; HEADER],
    tag: [u8; TAG],
}

impl Closed {
    /// Read the header of frame `due`.
    pub(super) fn parse(header: &[u8; SEALED_HEADER], due: u64) -> Result<Self, LinkError> {
        let mut clear = [0; HEADER];
        let mut tag = [0; TAG];
        clear.copy_from_slice(&header[..HEADER]);
        tag.copy_from_slice(&header[HEADER..]);
        let ArrivingFrame { left: len, next, .. } = ArrivingFrame::parse(&clear, due)?;
        if len > SEALED_MOST {
            return Err(LinkError(format!(
                "sent a sealed frame that is {len} bytes long (at most {SEALED_MOST})"
            )));
        }
        Ok(Self { len, next, header: clear, tag })
    }

    /// Decrypt its piece in place.
    pub(super) fn open(&self, number: u64, piece: &mut [u8], seal: &Seal) -> Result<(), LinkError> {
        seal.open_in_place(number, &self.header, piece, self.tag).map_err(|SealError| changed())
    }

    /// Decrypt its piece into `out`, which is as long.
    pub(super) fn open_into(
        &self,
        number: u64,
        piece: &[u8],
        out: &mut [u8],
        seal: &Seal,
    ) -> Result<(), LinkError> {
        seal.open(number, &self.header, (piece, self.tag), out).map_err(|SealError| changed())
    }
}

fn changed() -> LinkError {
    LinkError("sent a frame that was changed on the way (its seal is broken)".into())
}

impl ArrivingFrame {
    /// Read the header of frame `due`.
    pub(super) fn parse(header: &[u8; HEADER], due: u64) -> Result<Self, LinkError> {
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut covered = [0; COVERED];
        covered.copy_from_slice(&header[..COVERED]);
        let checksum = of_header(&covered);
        let announced = word(12);
        let computed = checksum.value();
        if announced != computed {
            return Err(LinkError(format!(
                "sent a damaged frame header (checksum {announced:#010x}, its bytes give {computed:#010x})"
            )));
        }
        let ((len, next), number) = (length(word(0)), u64::from(word(4)) | u64::from(word(8)) << 32);
        if number != due {
            return Err(LinkError(format!(
                "sent a frame that is out of sequence (number {number}, {due} was due)"
            )));
        }
        if len == 0 {
            return Err(LinkError("sent a frame that is empty".into()));
        }
        if len > MAX_FRAME {
            return Err(LinkError(format!("sent a frame that is {len} bytes long (at most {MAX_FRAME})")));
        }
        Ok(Self { left: len, given: 0, sound: false, next, announced: word(16), checksum })
    }

    /// Returns true if it may be lent before it is whole.
    pub(super) fn is_large(&self) -> bool {
        self.given + self.left > SMALL
    }

    /// Count the next bytes of the piece into the checksum.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.checksum.update(bytes);
    }

    /// Compare the checksums once the last byte was added.
    pub(super) fn check(&mut self) -> Result<(), LinkError> {
        let computed = self.checksum.value();
        if computed == self.announced {
            self.sound = true;
            return Ok(());
        }
        let announced = self.announced;
        Err(LinkError(format!(
            "sent a damaged frame (checksum {announced:#010x}, its bytes give {computed:#010x})"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computed a bit at a time by another program: every release writes this.
    #[test]
    fn a_header_is_these_bytes() {
        #[rustfmt::skip]
        let wanted = [
            5, 0, 0, 0,
            7, 0, 0, 0, 0, 0, 0, 0,
            0xa9, 0x34, 0x8f, 0x25,
            0x50, 0xaa, 0xe3, 0x64,
        ];
        assert_eq!(header(7, [b"pi", b"ece"], FrameRoute::Home), wanted);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused() {
        let parse =
            |len: usize| ArrivingFrame::parse(&start(len as u32, 7, FrameRoute::Home).0, 7).map(|f| f.left);
        assert_eq!(parse(MAX_FRAME), Ok(MAX_FRAME));
        assert!(parse(MAX_FRAME + 1).unwrap_err().0.contains("at most"));
        assert!(parse(0).is_err());
    }

    proptest! {
        #[test]
        fn headers_survive_the_wire(number: u64, head: Vec<u8>, body in proptest::collection::vec(any::<u8>(), 1..999), cut in 0usize..999, aside: bool) {
            let next = if aside { FrameRoute::Aside } else { FrameRoute::Home };
            let header = header(number, [&head, &body], next);
            let mut frame = ArrivingFrame::parse(&header, number).unwrap();
            prop_assert_eq!((frame.left, frame.next), (head.len() + body.len(), next));
            let bytes = [head, body].concat();
            let cut = cut.min(bytes.len());
            frame.add(&bytes[..cut]);
            frame.add(&bytes[cut..]);
            prop_assert_eq!(frame.check(), Ok(()));
        }

        #[test]
        fn a_flipped_bit_is_seen(number: u64, mut bytes in proptest::collection::vec(any::<u8>(), 1..999), at: prop::sample::Index, bit in 0u8..8) {
            let mut frame = ArrivingFrame::parse(&header(number, [&bytes, &[]], FrameRoute::Home), number).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            frame.add(&bytes);
            prop_assert!(frame.check().is_err());
        }

        #[test]
        fn any_change_of_a_header_is_seen(number: u64, piece: Vec<u8>, change in 1u128.., at in 0usize..=4) {
            let piece = [&piece[..], b"x"].concat();
            let mut bytes = header(number, [&piece, &[]], FrameRoute::Home);
            bytes.iter_mut().skip(at).zip(change.to_le_bytes()).for_each(|(b, c)| *b ^= c);
            if let Ok(mut frame) = ArrivingFrame::parse(&bytes, number) {
                // Only the last field has changed.
                prop_assert_eq!(frame.left, piece.len());
                frame.add(&piece);
                prop_assert!(frame.check().is_err());
            }
        }
    }
}
