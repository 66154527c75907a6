//! The fields that messages are made of: written in full, read with every length bounded before anything is allocated from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The longest text: a cause, a host name, an error in words.
pub const MAX_TEXT: usize = 4096;

/// Bytes that no peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Appends fields to a message.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub fn u16(&mut self, v: u16) {
        self.0.extend(v.to_be_bytes());
    }

    pub fn u32(&mut self, v: u32) {
        self.0.extend(v.to_be_bytes());
    }

    pub fn u64(&mut self, v: u64) {
        self.0.extend(v.to_be_bytes());
    }

    /// Text beyond the limit is cut.
    pub fn text(&mut self, s: &str) {
        // `str::floor_char_boundary`, which the oldest supported compiler lacks.
        let s = (0..=MAX_TEXT.min(s.len())).rev().find_map(|end| s.get(..end)).unwrap_or_default();
        self.u16(s.len() as u16);
        self.0.extend(s.as_bytes());
    }

    /// A list after its length in a byte; what is beyond `most` is left out.
    pub fn list<T>(&mut self, most: usize, all: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.u8(all.len().min(most) as u8);
        all.iter().take(most).for_each(|value| one(self, value));
    }

    pub fn addr(&mut self, a: SocketAddr) {
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
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        Ok(std::str::from_utf8(self.slice(MAX_TEXT)?).map_err(|_| Malformed)?.to_owned())
    }

    /// Up to so many bytes, after their number.
    pub fn slice(&mut self, most: usize) -> Result<&[u8], Malformed> {
        let n = usize::from(self.u16()?);
        if n > most {
            return Err(Malformed);
        }
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    /// Up to `most` values, after their number in a byte.
    pub fn list<T>(
        &mut self,
        most: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let n = usize::from(self.u8()?);
        if n > most {
            return Err(Malformed);
        }
        (0..n).map(|_| one(self)).collect()
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn addr(&mut self) -> Result<SocketAddr, Malformed> {
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
    pub fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}
