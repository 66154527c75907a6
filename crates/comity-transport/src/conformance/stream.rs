//! A stream whose bytes follow from their places.

use super::eventually;
use crate::{Link, LinkError};
use scope::Rng;

pub(super) fn byte(at: usize) -> u8 {
    // No period that a buffer size divides.
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

#[track_caller]
pub(crate) fn expect(got: &[u8], from: usize) {
    if let Some(i) = (0..got.len()).find(|&i| got[i] != byte(from + i)) {
        panic!("byte {} of the stream is wrong ({} into a piece of {})", from + i, i, got.len());
    }
}

/// A direction of a link: the position of each end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamCheck {
    pub(super) put: usize,
    /// Last position that bytes may reach: as far as they were accepted, or offered where a link runs ahead.
    offered: usize,
    pub(super) got: usize,
    /// The most bytes that were accepted at once.
    most: usize,
}

impl StreamCheck {
    pub(super) fn put(&mut self, link: &mut dyn Link, head: usize, body: usize) -> Result<usize, LinkError> {
        let h = bytes(self.put, head);
        let b = bytes(self.put + head, body);
        let n = link.put(&h, &b)?;
        self.offered = self.offered.max(self.put + if link.progress().runs_ahead { head + body } else { n });
        assert!(n <= head + body, "accepted {n} of {}", head + body);
        self.put += n;
        self.most = self.most.max(n);
        Ok(n)
    }

    /// A [length] to offer: some times what the link accepts in a call, or nearly all time would go into bytes that it refuses.
    pub(super) fn offer(&self, input: &mut Rng) -> usize {
        length(input).min(4 * self.most + 4096)
    }

    pub(super) fn put_all(&mut self, link: &mut dyn Link, len: usize) {
        let end = self.put + len;
        eventually("room", || {
            self.put(link, 0, end - self.put).unwrap();
            (self.put == end).then_some(())
        });
    }

    /// Peek at about `want` and give back `share` of 256 parts of it, at least a byte.
    pub(super) fn peek(
        &mut self,
        link: &mut dyn Link,
        want: usize,
        share: usize,
    ) -> Result<usize, LinkError> {
        let lent = link.peek(want)?;
        expect(lent, self.got);
        let n = lent.len();
        assert!(self.got + n <= self.offered, "lent more than was put");
        let n = (n * share / 256).max(n.min(1));
        link.consume(n);
        self.got += n;
        Ok(n)
    }

    pub(super) fn take(&mut self, link: &mut dyn Link, len: usize) -> Result<usize, LinkError> {
        let mut place = vec![0xee; len];
        let n = link.take(&mut place)?;
        expect(&place[..n], self.got);
        self.got += n;
        assert!(self.got <= self.offered, "took more than was put");
        Ok(n)
    }

    /// Get all that was put, by any means.
    pub(super) fn catch_up(&mut self, link: &mut dyn Link) {
        eventually("bytes that were put", || {
            if self.got < self.put {
                self.peek(link, 5000, 256).unwrap();
            }
            if self.got < self.put {
                self.take(link, 100_000).unwrap();
            }
            (self.got >= self.put).then_some(())
        });
    }
}

/// A length: as likely small as large.
pub(super) fn length(input: &mut Rng) -> usize {
    let sides = 1 << input.below(21);
    input.below(sides)
}
