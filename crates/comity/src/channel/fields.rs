//! The fields that messages are made of: written in full, read with every length bounded before anything is allocated from it.

use crate::{
    CallInfo, DType, Op, ReduceOp,
    status::{Differs, Failure, Header, Late, Reached, Why},
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

/// The longest text: a cause, a host name, an error in words.
pub(crate) const MAX_TEXT: usize = 4096;

/// The most ranks that one failure names.
const MAX_NAMED: usize = 1024;

/// In place of a number that there is none of.
const NONE: u32 = u32::MAX;

/// Bytes that no peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends fields to a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.0.extend(v.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.0.extend(v.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.0.extend(v.to_be_bytes());
    }

    /// Text beyond the limit is cut.
    pub(crate) fn text(&mut self, s: &str) {
        let s = s.get(..s.floor_char_boundary_at(MAX_TEXT)).unwrap_or_default();
        self.u16(s.len() as u16);
        self.0.extend(s.as_bytes());
    }

    pub(crate) fn differs(&mut self, d: &Differs) {
        self.u8(Header::DIFFERENCES.iter().position(|w| *w == d.what).unwrap_or_default() as u8);
        self.call(&d.ours);
        self.call(&d.theirs);
    }

    fn call(&mut self, call: &CallInfo) {
        let some = |x: Option<u32>| x.unwrap_or(NONE);
        self.u8(call.op as u8);
        self.u64(call.seq);
        self.u64(call.count as u64);
        self.u32(some(call.dtype.map(|d| d as u32)));
        self.u32(some(call.reduce.map(|r| r as u32)));
        self.u32(some(call.root.map(|r| r as u32)));
        self.u32(some(call.tag));
    }

    pub(crate) fn failure(&mut self, f: &Failure) {
        self.u32(f.culprit as u32);
        self.u32(f.by as u32);
        self.text(&f.cause);
        match &f.why {
            Why::Lost => self.u8(0),
            Why::Reported => self.u8(1),
            Why::Differs(calls) => {
                self.u8(2);
                self.differs(calls);
            }
            Why::Late(late) => {
                self.u8(3);
                self.call(&late.call);
                self.u64(late.after.as_nanos() as u64);
                self.u16(late.missing.len().min(MAX_NAMED) as u16);
                late.missing.iter().take(MAX_NAMED).for_each(|r| self.u32(*r as u32));
                self.u8(u8::from(late.stalled.is_some()));
                if let Some((a, b)) = late.stalled {
                    self.u32(a as u32);
                    self.u32(b as u32);
                }
            }
        }
    }

    pub(crate) fn reached(&mut self, reached: &Reached) {
        self.u64(reached.made);
        self.u8(u8::from(reached.digest.is_some()) | u8::from(reached.lacks.is_some()) << 1);
        if let Some(digest) = reached.digest {
            self.u64(digest);
        }
        if let Some((whom, since)) = reached.lacks {
            self.u32(whom as u32);
            self.u64(since);
        }
    }

    pub(crate) fn addr(&mut self, a: SocketAddr) {
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
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let n = usize::from(self.u16()?);
        if n > MAX_TEXT {
            return Err(Malformed);
        }
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = tail;
        Ok(std::str::from_utf8(head).map_err(|_| Malformed)?.to_owned())
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn differs(&mut self) -> Result<Differs, Malformed> {
        let what = Header::DIFFERENCES.get(usize::from(self.u8()?)).copied().ok_or(Malformed)?;
        Ok(Differs { what, ours: self.call()?, theirs: self.call()? })
    }

    pub(crate) fn failure(&mut self) -> Result<Failure, Malformed> {
        let (culprit, by) = (self.u32()? as usize, self.u32()? as usize);
        let cause = self.text()?;
        let why = match self.u8()? {
            0 => Why::Lost,
            1 => Why::Reported,
            2 => Why::Differs(self.differs()?),
            3 => {
                let (call, after) = (self.call()?, Duration::from_nanos(self.u64()?));
                let named = usize::from(self.u16()?);
                if named > MAX_NAMED {
                    return Err(Malformed);
                }
                let missing = (0..named).map(|_| Ok(self.u32()? as usize)).collect::<Result<_, _>>()?;
                let stalled =
                    if self.flag()? { Some((self.u32()? as usize, self.u32()? as usize)) } else { None };
                Why::Late(Late { call, after, missing, stalled })
            }
            _ => return Err(Malformed),
        };
        Ok(Failure { culprit, by, cause, why })
    }

    pub(crate) fn reached(&mut self) -> Result<Reached, Malformed> {
        let (made, has) = (self.u64()?, self.u8()?);
        if has > 3 {
            return Err(Malformed);
        }
        let digest = if has & 1 != 0 { Some(self.u64()?) } else { None };
        let lacks = if has & 2 != 0 { Some((self.u32()? as usize, self.u64()?)) } else { None };
        Ok(Reached { made, digest, lacks })
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

    pub(crate) fn addr(&mut self) -> Result<SocketAddr, Malformed> {
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
    pub(crate) fn end<T>(self, value: T) -> Result<T, Malformed> {
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
