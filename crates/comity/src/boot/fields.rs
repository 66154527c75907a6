//! The fields that messages are made of: written in full, read with every length bounded before anything is allocated from it.

use crate::{
    CallInfo, DType, Op, ReduceOp,
    engine::{Differs, Header},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The longest text: a cause, a host name, an error in words.
pub(super) const MAX_TEXT: usize = 4096;

/// In place of a number that there is none of.
const NONE: u32 = u32::MAX;

/// Bytes that no peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Appends fields to a message.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(super) fn u16(&mut self, v: u16) {
        self.0.extend(v.to_be_bytes());
    }

    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend(v.to_be_bytes());
    }

    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend(v.to_be_bytes());
    }

    /// Text beyond the limit is cut.
    pub(super) fn text(&mut self, s: &str) {
        let s = s.get(..s.floor_char_boundary_at(MAX_TEXT)).unwrap_or_default();
        self.u16(s.len() as u16);
        self.0.extend(s.as_bytes());
    }

    pub(super) fn differs(&mut self, d: &Differs) {
        self.u8(Header::DIFFERENCES.iter().position(|w| *w == d.what).unwrap_or_default() as u8);
        for call in [&d.ours, &d.theirs] {
            let some = |x: Option<u32>| x.unwrap_or(NONE);
            self.u8(call.op as u8);
            self.u64(call.seq);
            self.u64(call.count as u64);
            self.u32(some(call.dtype.map(|d| d as u32)));
            self.u32(some(call.reduce.map(|r| r as u32)));
            self.u32(some(call.root.map(|r| r as u32)));
            self.u32(some(call.tag));
        }
    }

    pub(super) fn addr(&mut self, a: SocketAddr) {
        match a {
            SocketAddr::V4(a) => {
                self.u8(4);
                self.0.extend(a.ip().octets());
            }
            SocketAddr::V6(a) => {
                self.u8(6);
                self.0.extend(a.ip().octets());
                self.u32(a.scope_id());
            }
        }
        self.u16(a.port());
    }
}

/// Takes fields from a message.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let n = usize::from(self.u16()?);
        if n > MAX_TEXT {
            return Err(Malformed);
        }
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = tail;
        Ok(std::str::from_utf8(head).map_err(|_| Malformed)?.to_owned())
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(super) fn differs(&mut self) -> Result<Differs, Malformed> {
        let what = Header::DIFFERENCES.get(usize::from(self.u8()?)).copied().ok_or(Malformed)?;
        Ok(Differs { what, ours: self.call()?, theirs: self.call()? })
    }

    fn call(&mut self) -> Result<CallInfo, Malformed> {
        let op = *Op::ALL.get(usize::from(self.u8()?).wrapping_sub(1)).ok_or(Malformed)?;
        let (seq, count) = (self.u64()?, self.u64()?);
        let mut some = || Ok(Some(self.u32()?).filter(|x| *x != NONE));
        let (dtype, reduce, root, tag) = (some()?, some()?, some()?, some()?);
        let dtype = dtype.map(|d| DType::ALL.get(d as usize).copied().ok_or(Malformed)).transpose()?;
        let reduce = reduce.map(|r| ReduceOp::ALL.get(r as usize).copied().ok_or(Malformed)).transpose()?;
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        Ok(CallInfo { op, seq, count, dtype, reduce, root: root.map(|r| r as usize), tag })
    }

    pub(super) fn addr(&mut self) -> Result<SocketAddr, Malformed> {
        match self.u8()? {
            4 => {
                let ip = Ipv4Addr::from(self.bytes::<4>()?);
                Ok(SocketAddr::new(IpAddr::V4(ip), self.u16()?))
            }
            6 => {
                let ip = Ipv6Addr::from(self.bytes::<16>()?);
                let scope = self.u32()?;
                Ok(SocketAddrV6::new(ip, self.u16()?, 0, scope).into())
            }
            _ => Err(Malformed),
        }
    }

    /// `value`, if nothing is left over.
    pub(super) fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}

/// `str::floor_char_boundary`, which the oldest supported compiler lacks.
trait CharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|i| self.is_char_boundary(*i)).unwrap_or(0)
    }
}
