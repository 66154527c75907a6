//! Values as fields of messages, and messages as lists of their fields: the same list writes a message and reads it.

use crate::{
    channel::{Malformed, Reader, Writer},
    transport::Card,
};
use std::{net::SocketAddr, time::Duration};

/// A value that stands in messages.
pub trait Field: Sized {
    fn put(&self, w: &mut Writer);

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Bytes of a message that is this alone.
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.put(&mut w);
        w.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let value = Self::take(&mut r)?;
        r.end(value)
    }
}

/// Implements [`Field`], or a trait with the same functions, for structures and enums: `fields!(Field: Name { a, b: codec })` for fields in
/// their order on the wire, `fields!(Field: enum Name { 1 One { a }, 2 Two(b), 3 Three })` for variants after their numbers. A codec is a
/// module whose `put` and `take` stand in for those of the field's type.
#[macro_export]
macro_rules! fields {
    ($trait:ident: $name:ty { $($field:ident $(: $codec:ident)?),* $(,)? }) => {
        impl $trait for $name {
            fn put(&self, w: &mut $crate::Writer) {
                $($crate::fields!(@put w, &self.$field $(, $codec)?);)*
            }

            fn take(r: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                Ok(Self { $($field: $crate::fields!(@take r $(, $codec)?)),* })
            }
        }
    };
    ($trait:ident: enum $name:ty {
        $($number:literal $variant:ident $({ $($field:ident $(: $codec:ident)?),* })? $(($inner:ident))?),* $(,)?
    }) => {
        impl $trait for $name {
            fn put(&self, w: &mut $crate::Writer) {
                match self {$(
                    Self::$variant $({ $($field),* })? $(($inner))? => {
                        w.u8($number);
                        $($($crate::fields!(@put w, $field $(, $codec)?);)*)?
                        $($crate::fields!(@put w, $inner);)?
                    }
                )*}
            }

            fn take(r: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                Ok(match r.u8()? {
                    $($number => Self::$variant
                        $({ $($field: $crate::fields!(@take r $(, $codec)?)),* })?
                        $(({ let $inner = $crate::Field::take(r)?; $inner }))?,)*
                    _ => return Err($crate::Malformed),
                })
            }
        }
    };
    (@put $w:ident, $value:expr) => { $crate::Field::put($value, $w) };
    (@put $w:ident, $value:expr, $codec:ident) => { $codec::put($value, $w) };
    (@take $r:ident) => { $crate::Field::take($r)? };
    (@take $r:ident, $codec:ident) => { $codec::take($r)? };
}

/// Implements [`Field`] by what writes a value and what reads it.
macro_rules! by {
    ($($type:ty: |$value:ident, $w:ident| $put:expr, |$r:ident| $take:expr;)*) => {$(
        impl Field for $type {
            fn put(&self, $w: &mut Writer) {
                let $value = self;
                $put;
            }

            fn take($r: &mut Reader<'_>) -> Result<Self, Malformed> {
                $take
            }
        }
    )*};
}
by! {
    u8: |v, w| w.u8(*v), |r| r.u8();
    u32: |v, w| w.u32(*v), |r| r.u32();
    u64: |v, w| w.u64(*v), |r| r.u64();
    bool: |v, w| w.u8(u8::from(*v)), |r| r.flag();
    // A rank, or a number of ranks.
    usize: |v, w| w.u32(*v as u32), |r| Ok(r.u32()? as usize);
    String: |v, w| w.text(v), |r| r.text();
    SocketAddr: |v, w| w.addr(*v), |r| r.addr();
    Card: |v, w| v.put(w), |r| Self::take(r);
    Duration: |v, w| w.u64(v.as_nanos() as u64), |r| Ok(Self::from_nanos(r.u64()?));
}

/// The most values of a list; those beyond are left out.
pub const MAX_LIST: usize = 2048;

impl<T: Field> Field for Vec<T> {
    fn put(&self, w: &mut Writer) {
        w.u16(self.len().min(MAX_LIST) as u16);
        self.iter().take(MAX_LIST).for_each(|value| value.put(w));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let n = usize::from(r.u16()?);
        if n > MAX_LIST {
            return Err(Malformed);
        }
        (0..n).map(|_| T::take(r)).collect()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, w: &mut Writer) {
        self.is_some().put(w);
        self.iter().for_each(|value| value.put(w));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        r.flag()?.then(|| T::take(r)).transpose()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, w: &mut Writer) {
        self.0.put(w);
        self.1.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::take(r)?, B::take(r)?))
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, w: &mut Writer) {
        (**self).put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::take(r).map(Self::new)
    }
}
