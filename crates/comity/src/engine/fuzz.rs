//! Fuzzes the engine's reading of a link.

use super::stream::{Begin, Rx, STASH};
use crate::{
    CallInfo, DType, LinkKind, Op, ReduceOp,
    fuzz_input::FuzzInput,
    status::{HEADER as LEN, Header},
    transport::{Interest, Lending, Link, LinkError, LinkProperties},
};
use std::os::fd::BorrowedFd;

/// A link that brings `bytes`, at most `piece` at a time.
#[derive(Debug)]
struct Bytes<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Lending for Bytes<'_> {}

impl Link for Bytes<'_> {
    fn properties(&self) -> LinkProperties {
        LinkProperties::of_system(LinkKind::LISTED[0])
    }

    fn chunk(&self) -> usize {
        64 << 10
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        Ok(head.len() + body.len())
    }

    fn peek(&mut self, _: usize) -> Result<&[u8], LinkError> {
        Ok(self.bytes)
    }

    fn consume(&mut self, n: usize) {
        self.bytes = &self.bytes[n..];
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        let n = self.bytes.len().min(dst.len()).min(self.piece);
        dst[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }

    fn arm(&mut self, _: Interest) {}

    fn disarm(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn fds<'a>(&'a self, _: Interest, _: &mut Vec<(BorrowedFd<'a>, Interest)>) {}
}

/// Several messages in a row: those that are expected begin, sends for later are kept within bounds, all else is refused.
pub fn stream(bytes: &[u8]) {
    let mut input = FuzzInput(bytes);
    let piece = input.roll() + 1;
    let kind = input.roll();
    let plan: Vec<usize> = (0..4).map(|_| input.roll()).collect();
    if let Some((head, _)) = input.0.split_first_chunk::<LEN>()
        && let Some(h) = Header::decode(head, 1)
    {
        assert_eq!(Header::decode(&h.encode(), 1), Some(h));
    }
    let info = CallInfo::new(Op::AllReduce).with(|c| {
        c.count = 3;
        c.dtype = Some(DType::F32);
    });
    let info = info.with(|c| match kind % 3 {
        0 => {
            c.seq = 1;
            c.reduce = Some(ReduceOp::Sum);
        }
        1 => {
            c.op = Op::Send;
            c.tag = Some(7);
            c.root = Some(1);
        }
        _ => {
            c.op = Op::Barrier;
            c.seq = 1;
            c.count = 0;
            c.dtype = None;
        }
    });
    let expected = Header { info, shape: 0, group_id: 0, lends: false };
    let mut link = Bytes { bytes: input.0, piece };
    let mut rx = Rx::new();
    let brought = input.0.len();
    for len in plan {
        // A first message has a header; those after it in the same call have none.
        let header = (len % 2 == 0).then_some(&expected);
        loop {
            match rx.begin(&mut link, header, len, 1) {
                Ok(Begin::Body) => break,
                Ok(Begin::More) => {}
                Ok(Begin::Nothing) | Err(_) => return,
            }
        }
        let mut body = vec![0; len];
        let mut at = 0;
        while at < len {
            let Ok(n) = link.take(&mut body[at..]) else { return };
            if n == 0 {
                return;
            }
            rx.took(n, 0);
            at += n;
        }
        if rx.end_checked().is_err() {
            return;
        }
        while let Some(message) = rx.unstash(|_| true) {
            assert!(message.bytes.len() <= brought.min(STASH));
            assert_eq!(message.header.pair_bytes(), Some(message.bytes.len()));
        }
    }
}
