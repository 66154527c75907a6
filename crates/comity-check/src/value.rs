//! Values that ranks hold, which every rank can compute for every other, and the scalar reference.
//!
//! Three kinds of data go into reductions. `Exact` values are chosen so that every order of combining
//! them gives the same bits: small whole numbers to add, powers of two to multiply. `Special` ones are
//! infinities, NaN and signed zeros, chosen likewise. `Real` ones round, so that only a bound can be asked
//! of the value; of its bits, that they are the same everywhere.

use comity::{C64, Element, ReduceOp};
use half::{bf16, f16};
use std::{cmp::Ordering, fmt::Debug};

/// The kinds of data of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Every order of combining them gives the same bits.
    Exact,
    /// Infinities, NaN and signed zeros, chosen likewise.
    Special,
    /// Numbers that round.
    Real,
}

/// The numbers of one case: a draw for each rank and index.
#[derive(Clone, Copy, Debug)]
pub struct Deal {
    seed: u64,
}

impl Deal {
    /// The numbers of case number `case` of a run with this seed.
    pub fn new(seed: u64, case: u64) -> Self {
        Self { seed: mix(seed ^ mix(case)) }
    }

    /// Random number of this rank at this index.
    pub fn draw(self, rank: usize, index: usize) -> u64 {
        mix(self.seed.wrapping_add((rank as u64) << 40).wrapping_add(index as u64))
    }
}

/// The finalizer of SplitMix64: neighbours in, strangers out.
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Parameters of the value that one rank gives to a reduction of `n` ranks at one index.
#[derive(Clone, Copy, Debug)]
pub struct Give {
    /// Kind of data.
    pub data: Data,
    /// Operation that combines them.
    pub op: ReduceOp,
    /// Number of ranks.
    pub n: usize,
    /// Random.
    pub draw: u64,
    /// Rank plus index: some values go to a few ranks only, so that the result stays in range.
    pub turn: usize,
}

/// An element type of the check.
pub trait Sample: Element + Debug {
    /// True for types that round: `Real` and `Special` data are for these alone.
    const FLOAT: bool = false;

    /// Any value, for operations that move.
    fn any(draw: u64) -> Self;

    /// A value for a reduction.
    fn give(give: Give) -> Self;

    /// `a` and `b` combined; an average is added up.
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;

    /// The sum of an average, divided.
    fn divide(self, n: usize) -> Self;

    /// The bits, with one NaN for all.
    fn bits(self) -> u64;

    /// Normalizes what the order of combining may change although the data are `Exact`: nothing, but for the sign of a
    /// complex product's zeros.
    fn settle(self, _op: ReduceOp) -> Self {
        self
    }

    /// Checks that `got` is within rounding of these `Real` values; the error says which value was expected.
    fn near(_op: ReduceOp, _of: &[Self], _got: Self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the difference of two values; infinite for types that do not round, and where bits differ that are no numbers.
    fn off(self, other: Self) -> f64 {
        if self.bits() == other.bits() { 0.0 } else { f64::INFINITY }
    }

    /// The reference: combined one by one, by rank.
    fn fold(op: ReduceOp, of: &[Self]) -> Self {
        let mut rest = of.iter().copied();
        let first = rest.next().unwrap_or_else(|| Self::any(0));
        let all = rest.fold(first, |a, b| Self::combine(op, a, b));
        if op == ReduceOp::Avg { all.divide(of.len()) } else { all }
    }
}

impl Sample for bool {
    fn any(draw: u64) -> Self {
        draw & 1 == 1
    }

    fn give(g: Give) -> Self {
        // About one rank in all stands apart, so that both results occur whatever the size.
        let apart = g.draw.is_multiple_of(g.n as u64 + 1);
        match g.op {
            ReduceOp::Product | ReduceOp::Min | ReduceOp::And => !apart,
            ReduceOp::Xor => g.draw & 1 == 1,
            _ => apart,
        }
    }

    fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
        match op {
            ReduceOp::Product | ReduceOp::Min | ReduceOp::And => a && b,
            ReduceOp::Xor => a != b,
            _ => a || b,
        }
    }

    fn divide(self, _: usize) -> Self {
        self
    }

    fn bits(self) -> u64 {
        self.into()
    }
}

macro_rules! whole {
    ($($t:ty)*) => {$(
        impl Sample for $t {
            fn any(draw: u64) -> Self {
                draw as $t
            }

            fn give(g: Give) -> Self {
                let other = mix(g.draw);
                // Bits that are mostly set (or not) survive many ands (or ors).
                match g.op {
                    ReduceOp::And => (g.draw | other | mix(other)) as $t,
                    ReduceOp::Or => (g.draw & other & mix(other)) as $t,
                    // Odd factors keep a product from becoming 0.
                    ReduceOp::Product => (g.draw | 1) as $t,
                    _ => g.draw as $t,
                }
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Product => a.wrapping_mul(b),
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::And => a & b,
                    ReduceOp::Or => a | b,
                    ReduceOp::Xor => a ^ b,
                    _ => a.wrapping_add(b),
                }
            }

            fn divide(self, n: usize) -> Self {
                // 128 bits hold every value and every size; a quotient is never larger than `self`.
                (i128::from(self) / n as i128) as $t
            }

            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}
whole!(u8 u16 u32 u64 i8 i16 i32 i64);

/// A real number for a reduction, before it is rounded to its type.
fn number(g: Give) -> f64 {
    let unit = (g.draw >> 11) as f64 / (1u64 << 53) as f64;
    let sign = if g.draw & 1 == 0 { 1.0 } else { -1.0 };
    let every = |n: usize| g.turn.is_multiple_of(n);
    match (g.data, g.op) {
        (Data::Real, ReduceOp::Product) => 1.0 + (2.0 * unit - 1.0) * (4.0 / g.n as f64).min(0.5),
        (Data::Real, _) => 2.0 * unit - 1.0,
        (Data::Special, ReduceOp::Min | ReduceOp::Max) => match g.draw % 11 {
            0 if every(3) => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            // The largest and the smallest that f16 holds, normal and not.
            3 => 65504.0 * sign,
            4 => 2f64.powi(-14) * sign,
            5 => 2f64.powi(-24) * sign,
            6 | 7 => sign,
            _ => 0.0 * sign,
        },
        (Data::Special, _) => match g.draw % 23 {
            0 if every(2) => f64::NAN,
            1 => f64::INFINITY * sign,
            2 if every(2) => f64::NEG_INFINITY,
            3 | 4 => sign,
            n if n % 5 == 0 => 0.0,
            _ => -0.0,
        },
        // The 8 bits of bf16 hold every partial sum.
        (Data::Exact, ReduceOp::Sum | ReduceOp::Avg) => {
            let most = (128 / g.n).clamp(1, 64) as u64;
            let few = every(g.n.div_ceil(128));
            if few { (g.draw % (2 * most + 1)) as f64 - most as f64 } else { 0.0 }
        }
        (Data::Exact, ReduceOp::Product) => {
            let few = every((g.n / 8).max(3));
            sign * if few { [2.0, 0.5][(g.draw >> 1) as usize & 1] } else { 1.0 }
        }
        (Data::Exact, _) => (2.0 * unit - 1.0) * 1000.0,
    }
}

/// `got` against `expected`, in `f64`.
fn within(got: f64, expected: f64, bound: f64) -> Result<(), String> {
    // Not `> bound`: a NaN is to fail.
    if (got - expected).abs() <= bound { Ok(()) } else { Err(format!("{expected:e} ± {bound:.1e}")) }
}

/// Checks `got` within the rounding of `n` additions: half a unit in the last place of each partial sum, doubled since the
/// reference rounds too.
fn sum_is_near(op: ReduceOp, epsilon: f64, of: impl Iterator<Item = f64>, got: f64) -> Result<(), String> {
    let mut n = 0.0;
    let mut sum = 0.0;
    let mut all = 0.0;
    for x in of {
        n += 1.0;
        sum += x;
        all += x.abs();
    }
    let bound = n * epsilon * all;
    if op == ReduceOp::Avg {
        return within(got, sum / n, (bound + epsilon * sum.abs()) / n + epsilon * epsilon);
    }
    within(got, sum, bound)
}

macro_rules! real {
    ($($t:ident as $wide:ident from $bits:ident: $to:expr, $from:expr, $up:expr;)*) => {$(
        impl Sample for $t {
            const FLOAT: bool = true;

            fn any(draw: u64) -> Self {
                // A NaN whose payload is changed on the way is not wrong.
                let x = <$t>::from_bits(draw as $bits);
                if x.is_nan() { <$t>::from_bits((draw & 0xff) as $bits) } else { x }
            }

            fn give(g: Give) -> Self {
                $from(number(g) as $wide)
            }

            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                let x: $wide = $to(a);
                let y: $wide = $to(b);
                match op {
                    ReduceOp::Product => $from(x * y),
                    ReduceOp::Min | ReduceOp::Max if x.is_nan() || y.is_nan() => $from($wide::NAN),
                    ReduceOp::Min => if x.total_cmp(&y).is_le() { a } else { b },
                    ReduceOp::Max => if x.total_cmp(&y).is_ge() { a } else { b },
                    _ => $from(x + y),
                }
            }

            fn divide(self, n: usize) -> Self {
                $from($to(self) / n as $wide)
            }

            fn bits(self) -> u64 {
                if self.is_nan() { u64::MAX } else { self.to_bits().into() }
            }

            fn off(self, other: Self) -> f64 {
                let up: fn($t) -> f64 = $up;
                let off = (up(self) - up(other)).abs();
                match off.is_nan() {
                    true if self.bits() == other.bits() => 0.0,
                    true => f64::INFINITY,
                    false => off,
                }
            }

            fn near(op: ReduceOp, of: &[Self], got: Self) -> Result<(), String> {
                let up: fn($t) -> f64 = $up;
                let epsilon = up(<$t>::EPSILON);
                if op == ReduceOp::Product {
                    let product: f64 = of.iter().map(|&x| up(x)).product();
                    return within(up(got), product, 2.0 * of.len() as f64 * epsilon * product.abs());
                }
                sum_is_near(op, epsilon, of.iter().map(|&x| up(x)), up(got))
            }
        }
    )*};
}
real! {
    f16 as f32 from u16: Self::to_f32, Self::from_f32, |x| x.to_f64();
    bf16 as f32 from u16: Self::to_f32, Self::from_f32, |x| x.to_f64();
    f32 as f32 from u32: std::convert::identity, std::convert::identity, f64::from;
    f64 as f64 from u64: std::convert::identity, std::convert::identity, std::convert::identity;
}

impl Sample for C64 {
    const FLOAT: bool = true;

    fn any(draw: u64) -> Self {
        Self { re: f32::any(draw), im: f32::any(draw >> 32) }
    }

    fn give(g: Give) -> Self {
        let part = |draw| number(Give { draw, ..g }) as f32;
        let re = part(g.draw);
        let im = part(mix(g.draw));
        match (g.data, g.op) {
            // 1, i, -1, -i, and now and then twice or half of it.
            (Data::Exact | Data::Special, ReduceOp::Product) => {
                let size = number(Give { data: Data::Exact, ..g }) as f32;
                if g.draw & 2 == 0 { Self { re: size, im: 0.0 } } else { Self { re: 0.0, im: size } }
            }
            // Equal real parts, so that the imaginary ones decide.
            (Data::Exact, ReduceOp::Min | ReduceOp::Max) => Self { re: (re / 900.0).round(), im },
            (Data::Real, ReduceOp::Product) => Self { re, im: (im - 1.0) / 4.0 },
            _ => Self { re, im },
        }
    }

    fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
        // A NaN wins: the least for min, the greatest for max, as a whole and part by part.
        let wins = if op == ReduceOp::Min { Ordering::Less } else { Ordering::Greater };
        let part = |x: f32, y: f32| match (x.is_nan(), y.is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => wins,
            (false, true) => wins.reverse(),
            (false, false) => x.total_cmp(&y),
        };
        let whole = |z: Self| if z.re.is_nan() || z.im.is_nan() { f32::NAN } else { 0.0 };
        let order = || part(whole(a), whole(b)).then(part(a.re, b.re)).then(part(a.im, b.im));
        match op {
            ReduceOp::Product => Self { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re },
            ReduceOp::Min | ReduceOp::Max => {
                if order() == wins || order().is_eq() {
                    a
                } else {
                    b
                }
            }
            _ => Self { re: a.re + b.re, im: a.im + b.im },
        }
    }

    fn divide(self, n: usize) -> Self {
        Self { re: self.re / n as f32, im: self.im / n as f32 }
    }

    fn bits(self) -> u64 {
        // A NaN is u64::MAX there, which is cut to a NaN's 32 bits here.
        (self.re.bits() as u32 as u64) << 32 | self.im.bits() as u32 as u64
    }

    fn settle(self, op: ReduceOp) -> Self {
        if op == ReduceOp::Product { Self { re: self.re + 0.0, im: self.im + 0.0 } } else { self }
    }

    fn near(op: ReduceOp, of: &[Self], got: Self) -> Result<(), String> {
        let epsilon = f64::from(f32::EPSILON);
        if op != ReduceOp::Product {
            sum_is_near(op, epsilon, of.iter().map(|z| f64::from(z.re)), f64::from(got.re))
                .map_err(|e| format!("re {e}"))?;
            return sum_is_near(op, epsilon, of.iter().map(|z| f64::from(z.im)), f64::from(got.im))
                .map_err(|e| format!("im {e}"));
        }
        let (re, im) = of.iter().fold((1.0, 0.0), |(re, im), z| {
            let x = f64::from(z.re);
            let y = f64::from(z.im);
            (re * x - im * y, re * y + im * x)
        });
        let bound = 4.0 * of.len() as f64 * epsilon * f64::hypot(re, im);
        within(f64::from(got.re), re, bound).map_err(|e| format!("re {e}"))?;
        within(f64::from(got.im), im, bound).map_err(|e| format!("im {e}"))
    }
}

/// Runs `$body` with `$T` as the Rust type of `$dtype`.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::with_type!(@ $dtype, $T => $body; Bool bool, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16,
            I32 i32, I64 i64, F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, C64 comity::C64)
    };
    (@ $dtype:expr, $T:ident => $body:expr; $($name:ident $t:ty),*) => {
        match $dtype {
            $(comity::DType::$name => {
                type $T = $t;
                $body
            })*
            other => unreachable!("{other} is a type that this check does not know"),
        }
    };
}

/// Elements of each rank's part, a few times: with gaps, all at one rank, none at all. About `size` each.
pub(super) fn unequal(n: usize, size: usize) -> Vec<Vec<usize>> {
    let gaps = (0..n).map(|r| if r % 3 == 1 { 0 } else { (size + r * 37) % (size + 5) }).collect();
    let one = (0..n).map(|r| if r == size % n { size + 1 } else { 0 }).collect();
    let mut all = vec![gaps, one];
    if size == 0 {
        all.push(vec![0; n]);
    }
    all
}

pub(super) fn gives(from: usize, to: usize, size: usize) -> usize {
    match (from + 2 * to) % 4 {
        0 => 0,
        k => (size + 7 * from + 3 * to) % (size + k),
    }
}

#[cfg(test)]
mod tests;
