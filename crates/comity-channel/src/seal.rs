//! AES-GCM over one connection: what a handshake leaves behind where data are to be secret.
//!
//! Each direction has a key of its own, derived from the two keys that the Noise handshake ends with. Each direction counts its frames, and
//! the count is the nonce. A frame that was changed, repeated, left out or moved does not open.

use aws_lc_rs::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};
use std::fmt;
use zeroize::Zeroizing;

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
