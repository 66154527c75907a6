//! Connections and the messages on them: never blocking, never more in memory than allowed.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of the message, at most 64 KiB; integers are big endian |
//! | 4 | CRC32C of the length, so that nobody waits for bytes that a damaged one announces |
//! | ... | the message |
//! | 4 | CRC32C of all before; where the connection is sealed 16 in place of it, the tag of AES-GCM |
//!
//! To seal: each direction has a key of its own, derived from the two keys that the Noise handshake ends with. Each direction counts its frames,
//! and the count is the nonce. A frame that was changed, repeated, left out or moved does not open.

use super::fields::Malformed;
use crate::sys;
use aws_lc_rs::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};
use comity_kernel::crc32c;
use std::{
    collections::VecDeque,
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};
use zeroize::Zeroizing;

/// The longest message on an authenticated connection.
const MAX_FRAME: usize = 64 * 1024;
/// Bytes before a message.
const HEAD: usize = 8;
/// Bytes behind one in the clear.
const SUM: usize = 4;
/// A peer that lets this much pile up unread is as good as gone.
const MAX_OUTBOX: usize = 64 * 1024 * 1024;

/// A connection to another process.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Returns the peer's address, over TCP.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(s) => s.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if the peer's system has all that was sent, so that closing loses nothing.
    pub fn has_arrived(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::has_arrived(s.as_fd()),
            // It is in the other's queue at once.
            Self::Unix(_) => true,
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&*s).read(buf),
            Stream::Unix(s) => (&*s).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&*s).write(buf),
            Stream::Unix(s) => (&*s).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
        }
    }
}

/// Ciphers of an authenticated connection, if it is encrypted.
pub type Sealing = Option<Box<Seals>>;

/// An authenticated connection that carries messages.
#[derive(Debug)]
pub struct Conn {
    stream: Arc<Stream>,
    seals: Sealing,
    /// Messages sealed and opened so far.
    sealed: u64,
    opened: u64,
    inbox: Vec<u8>,
    outbox: VecDeque<Arc<[u8]>>,
    /// Bytes in `outbox`.
    queued: usize,
    /// Bytes of the first of `outbox` that have gone.
    sent: usize,
}

/// `body` as it goes over a connection in the clear.
pub fn frame(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    let mut out = [&length, &sum(&length), body].concat();
    out.extend(sum(&out));
    out
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    crc32c(bytes).to_be_bytes()
}

/// The length of the message that `head` announces.
fn length(head: &[u8; HEAD]) -> Result<usize, Malformed> {
    let (length, check) = head.split_first_chunk::<4>().ok_or(Malformed)?;
    let n = u32::from_be_bytes(*length) as usize;
    if check == sum(length) && n <= MAX_FRAME { Ok(n) } else { Err(Malformed) }
}

impl Conn {
    pub fn new(stream: Stream, seals: Sealing) -> Self {
        Self {
            stream: Arc::new(stream),
            seals,
            sealed: 0,
            opened: 0,
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            queued: 0,
            sent: 0,
        }
    }

    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Send a message, now or when there is room.
    pub fn send(&mut self, body: &[u8]) -> io::Result<()> {
        self.send_frames(frame(body).into())
    }

    /// Sends as [`send`](Self::send), but bytes that [`frame`] made.
    pub fn send_frames(&mut self, frames: Arc<[u8]>) -> io::Result<()> {
        // The system takes nothing of nothing, which looks like the end of the stream.
        if frames.is_empty() {
            return self.flush();
        }
        let frames = match &self.seals {
            Some(seals) => seal_all(seals, &mut self.sealed, &frames)?.into(),
            None => frames,
        };
        if self.queued + frames.len() > MAX_OUTBOX {
            return Err(io::Error::other("the peer does not read"));
        }
        self.queued += frames.len();
        self.outbox.push_back(frames);
        self.flush()
    }

    /// Send what waits, as far as there is room.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.outbox.front() {
            match (&*self.stream).write(first.get(self.sent..).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.sent += n;
                    if self.sent == first.len() {
                        self.queued -= self.sent;
                        self.sent = 0;
                        self.outbox.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns true if some bytes wait for room.
    pub fn is_pending(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Read what is there. False: the stream has ended; complete messages may still be in the inbox.
    pub fn fill(&mut self) -> bool {
        self.read().is_ok()
    }

    /// Reads as [`fill`](Self::fill); an error tells how the stream has ended.
    pub fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while self.inbox.len() < HEAD + MAX_FRAME + TAG {
            match (&*self.stream).read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.inbox.extend(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns true if bytes of a message have come whose rest has not.
    pub fn has_part(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The next whole message.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((head, rest)) = self.inbox.split_first_chunk::<HEAD>() else { return Ok(None) };
        let n = length(head)?;
        let behind = if self.seals.is_some() { TAG } else { SUM };
        let Some((body, behind)) = rest.get(..n + behind).map(|b| b.split_at(n)) else { return Ok(None) };
        let mut body = body.to_vec();
        if let Some(seals) = &self.seals {
            let tag = behind.try_into().map_err(|_| Malformed)?;
            seals.recv.open_in_place(self.opened, head, &mut body, tag).map_err(|_| Malformed)?;
            self.opened += 1;
        } else if self.inbox.get(..HEAD + n).is_none_or(|all| sum(all) != behind) {
            return Err(Malformed);
        }
        self.inbox.drain(..HEAD + n + behind.len());
        Ok(Some(body))
    }
}

/// `frames`, each encrypted, with its tag behind it.
fn seal_all(seals: &Seals, number: &mut u64, mut frames: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(frames.len() + TAG);
    while let Some((head, rest)) = frames.split_first_chunk::<HEAD>() {
        let n = length(head).map_err(|_| ErrorKind::InvalidInput)?;
        let (body, others) = rest.split_at_checked(n).ok_or(ErrorKind::InvalidInput)?;
        let others = others.get(SUM..).ok_or(ErrorKind::InvalidInput)?;
        out.extend(head);
        let begin = out.len();
        out.extend(body);
        let tag = seals.send.seal_in_place(*number, head, out.get_mut(begin..).unwrap_or_default());
        out.extend(tag.map_err(|_| ErrorKind::InvalidInput)?);
        *number += 1;
        frames = others;
    }
    Ok(out)
}

/// Bytes that sealing adds.
pub const TAG: usize = 16;

/// Cipher of one direction of a connection.
pub struct Seal(LessSafeKey);

/// Ciphers of both directions.
pub struct Seals {
    pub send: Seal,
    pub recv: Seal,
}

/// The bytes are not what the other end sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealError;

impl Seal {
    fn derive(key: &[u8; 32], transcript: &[u8]) -> Option<Self> {
        // Not the handshake's own keys: those served another cipher already.
        let secret = Salt::new(HKDF_SHA256, transcript).extract(key);
        let okm = secret.expand(&[b"comity AES-128-GCM"], &AES_128_GCM).ok()?;
        Some(Self(LessSafeKey::new(UnboundKey::from(okm))))
    }

    /// Encrypt frame `number` in place; its tag, which also covers `clear`.
    ///
    /// A number must never be used twice.
    pub fn seal_in_place(&self, number: u64, clear: &[u8], data: &mut [u8]) -> Result<[u8; TAG], SealError> {
        let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(clear), data);
        // It fails for 64 GiB and more.
        let tag = tag.map_err(|_| SealError)?;
        tag.as_ref().try_into().map_err(|_| SealError)
    }

    /// Encrypts as [`seal_in_place`](Self::seal_in_place), from `text` into `out`, which is as long.
    pub fn seal(
        &self,
        number: u64,
        clear: &[u8],
        text: &[u8],
        out: &mut [u8],
    ) -> Result<[u8; TAG], SealError> {
        let mut tag = [0; TAG];
        self.0
            .seal_out_of_place_scatter(nonce(number), Aad::from(clear), text, out, &[], &mut tag)
            .map_err(|_| SealError)?;
        Ok(tag)
    }

    /// Decrypt frame `number` in place if it and `clear` are what the other end sealed.
    pub fn open_in_place(
        &self,
        number: u64,
        clear: &[u8],
        data: &mut [u8],
        tag: [u8; TAG],
    ) -> Result<(), SealError> {
        let opened = self.0.open_in_place_separate_tag(nonce(number), Aad::from(clear), &tag, data);
        opened.map(drop).map_err(|_| SealError)
    }

    /// Decrypts as [`open_in_place`](Self::open_in_place), from `sealed` into `out`, which is as long, and zero afterwards if it fails.
    pub fn open(
        &self,
        number: u64,
        clear: &[u8],
        (sealed, tag): (&[u8], [u8; TAG]),
        out: &mut [u8],
    ) -> Result<(), SealError> {
        let opened = self.0.open_separate_gather(nonce(number), Aad::from(clear), sealed, &tag, out);
        opened.map_err(|_| {
            // Whatever it made of bytes that are not the other end's.
            out.fill(0);
            SealError
        })
    }
}

impl Seals {
    /// From the handshake's two keys (the initiator's to send with first) and its transcript.
    pub(crate) fn derive(
        split: ([u8; 32], [u8; 32]),
        transcript: &[u8],
        is_initiator: bool,
    ) -> Option<Box<Self>> {
        let first = Zeroizing::new(split.0);
        let second = Zeroizing::new(split.1);
        let first = Seal::derive(&first, transcript)?;
        let second = Seal::derive(&second, transcript)?;
        let (send, recv) = if is_initiator { (first, second) } else { (second, first) };
        Some(Box::new(Self { send, recv }))
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seals(..)")
    }
}

/// The two ends of a connection, for tests of what runs over one.
pub fn both_ends(seed: u8) -> (Box<Seals>, Box<Seals>) {
    let end = |is_initiator| Seals::derive(([seed; 32], [seed + 1; 32]), b"transcript", is_initiator);
    match (end(true), end(false)) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("HKDF makes 16 bytes of anything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Conn, Conn) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (Conn::new(Stream::Unix(a), None), Conn::new(Stream::Unix(b), None))
    }

    #[test]
    fn sealed_messages_cross_and_changed_ones_do_not() {
        let sealed = || {
            let (mut a, mut b) = pair();
            let (ours, theirs) = both_ends(3);
            (a.seals, b.seals) = (Some(ours), Some(theirs));
            (a, b)
        };
        let (mut a, mut b) = sealed();
        let two: Arc<[u8]> = [frame(b"first"), frame(b"")].concat().into();
        a.send_frames(two).unwrap();
        a.send(b"third").unwrap();
        b.send(&[7; MAX_FRAME]).unwrap();
        assert!(b.fill() && a.fill());
        assert!(!b.inbox.windows(5).any(|w| w == b"first" || w == b"third"));
        for body in [&b"first"[..], b"", b"third"] {
            assert_eq!(b.next_message().unwrap().as_deref(), Some(body));
        }
        let mut whole = None;
        while whole.is_none() {
            b.flush().unwrap();
            assert!(a.fill());
            whole = a.next_message().unwrap();
        }
        assert!(whole.unwrap() == [7; MAX_FRAME]);
        for at in 0..HEAD + 4 + TAG {
            let (mut a, mut b) = sealed();
            a.send(b"text").unwrap();
            assert!(b.fill());
            b.inbox[at] ^= 1;
            assert_eq!(b.next_message(), Err(Malformed), "{at}");
        }
        // In the clear, to one who expects it sealed.
        let (mut a, mut b) = sealed();
        a.seals = None;
        a.send(b"a note").unwrap();
        a.send(b"another note that is longer than a tag").unwrap();
        assert!(b.fill());
        assert_eq!(b.next_message(), Err(Malformed));
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let whole = HEAD + 4 + SUM;
        for bit in 0..whole * 8 {
            let (mut a, mut b) = pair();
            a.send(b"text").unwrap();
            assert!(b.fill() && b.inbox.len() == whole);
            b.inbox[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(b.next_message(), Err(Malformed), "bit {bit}");
        }
    }

    #[test]
    fn messages_cross_in_order_and_whole() {
        let (mut a, mut b) = pair();
        let bodies: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; usize::from(i) * 600]).collect();
        let mut got = Vec::new();
        for body in &bodies {
            a.send(body).unwrap();
        }
        assert!(a.is_pending());
        while got.len() < bodies.len() {
            a.flush().unwrap();
            assert!(b.fill());
            while let Some(m) = b.next_message().unwrap() {
                got.push(m);
            }
        }
        assert!(got == bodies && !a.is_pending() && a.queued == 0);
    }

    #[test]
    fn nothing_to_send_is_no_end() {
        let (mut a, mut b) = pair();
        a.send_frames(Arc::from([])).unwrap();
        a.send(b"text").unwrap();
        assert!(!a.is_pending() && b.fill());
        assert_eq!(b.next_message(), Ok(Some(b"text".to_vec())));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes() {
        let (a, mut b) = pair();
        let length = (MAX_FRAME as u32 + 1).to_be_bytes();
        (&**a.stream()).write_all(&[length, sum(&length)].concat()).unwrap();
        assert!(b.fill());
        assert_eq!(b.next_message(), Err(Malformed));
    }

    #[test]
    fn what_was_sent_before_the_end_is_read() {
        let (mut a, mut b) = pair();
        a.send(b"last").unwrap();
        drop(a);
        assert!(!b.fill());
        assert_eq!(b.next_message(), Ok(Some(b"last".to_vec())));
        assert_eq!(b.next_message(), Ok(None));
    }

    #[test]
    fn what_a_peer_does_not_read_is_bounded() {
        let (mut a, _b) = pair();
        let body = vec![0; 1024 * 1024];
        let e = (0..100).find_map(|_| a.send(&body).err()).unwrap();
        assert!(e.to_string().contains("does not read"), "{e}");
    }

    #[test]
    fn only_what_was_sealed_opens() {
        let (a, b) = both_ends(1);
        let text = b"gradients".to_vec();
        let mut data = text.clone();
        let tag = a.send.seal_in_place(7, b"clear", &mut data).unwrap();
        assert_ne!(data, text);
        let mut apart = vec![0; text.len()];
        assert_eq!(a.send.seal(7, b"clear", &text, &mut apart), Ok(tag));
        assert_eq!(apart, data);
        let open = |seal: &Seal, number, clear: &[u8], data: &[u8], tag| {
            let mut inside = data.to_vec();
            let mut apart = vec![7; data.len()];
            let opened = seal.open_in_place(number, clear, &mut inside, tag);
            assert_eq!(seal.open(number, clear, (data, tag), &mut apart), opened);
            // What does not open is not shown.
            assert!(if opened.is_ok() { apart == inside } else { apart.iter().all(|b| *b == 0) });
            opened.map(|()| inside)
        };
        assert_eq!(open(&b.recv, 7, b"clear", &data, tag).as_deref(), Ok(&text[..]));
        for i in 0..data.len() {
            let mut changed = data.clone();
            changed[i] ^= 1;
            assert_eq!(open(&b.recv, 7, b"clear", &changed, tag), Err(SealError));
        }
        // Another place in the stream, another header, another tag, one's own reflection, another connection.
        assert!(open(&b.recv, 8, b"clear", &data, tag).is_err());
        assert!(open(&b.recv, 7, b"Clear", &data, tag).is_err());
        assert!(open(&b.recv, 7, b"clear", &data, [0; TAG]).is_err());
        assert!(open(&a.recv, 7, b"clear", &data, tag).is_err());
        assert!(open(&both_ends(5).1.recv, 7, b"clear", &data, tag).is_err());
        assert_eq!(format!("{a:?} {:?}", a.send), "Seals(..) Seal(..)");
    }
}
