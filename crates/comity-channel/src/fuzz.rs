//! Fuzzes handshakes.

use super::hello::{Channel, HandshakeStep, Hello, HelloVerdict, Initiator, Responder, Secret};
use crate::{Key, fuzz_input::FuzzInput};
use std::io::{self, ErrorKind, Read};

/// Gives at most `piece` bytes at a time, then says that there are no more for now.
struct Drip<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Read for Drip<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() && !buf.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = self.bytes.len().min(buf.len()).min(self.piece);
        buf[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }
}

/// Nobody without the key gets through, whatever it sends, also if it repeats and changes what others have sent.
pub fn handshake(bytes: &[u8]) {
    let mut input = FuzzInput(bytes);
    let mode = input.roll();
    let piece = input.roll() + 1;
    let secret = Secret::new(&Key::from([7; 32]), "job", 0);
    let hello = Hello {
        from: 1,
        to: 0,
        world: 5,
        group_id: 2,
        channel: Channel::Link { transport: 2, index: 0, of: 2 },
        sealed: false,
    };
    if let Ok(hello) = Hello::decode(input.0) {
        assert_eq!(hello.encode(), input.0);
    }
    let Some((mut initiator, first)) = Initiator::start(&secret, &hello) else { panic!("no handshake") };
    let mut responder = Responder::new();
    // Three kinds: all bytes are the stranger's; it changes a true hello; it repeats one and goes on by itself.
    let true_hello = match mode % 3 {
        0 => Vec::new(),
        1 => {
            let at = input.roll() % first.len();
            let flip = input.roll() as u8 | 1;
            let mut first = first;
            first[at] ^= flip;
            first
        }
        _ => first,
    };
    let incoming = [&true_hello, input.0].concat();
    let mut incoming = Drip { bytes: &incoming, piece };
    let mut answers = 0;
    loop {
        match responder.step(&mut incoming, &secret, &mut |_| HelloVerdict::Yes) {
            HandshakeStep::Done(hello, _) => panic!("a stranger got through as {hello:?}"),
            HandshakeStep::Send(_) => {
                // To a hello that was recorded, then to padding, which proves nothing and costs no more than it brings.
                assert!(mode % 3 == 2 && answers < 2, "an answer to a stranger");
                assert!(responder.knows_key());
                answers += 1;
            }
            HandshakeStep::More
            | HandshakeStep::Close
            | HandshakeStep::SendAndClose(_)
            | HandshakeStep::PassOn(_)
            | HandshakeStep::Foreign(_) => break,
        }
    }
    let answer = initiator.read(Drip { bytes: input.0, piece });
    assert!(!matches!(answer, Ok(Some(_))), "a stranger passes for a listener");
}
