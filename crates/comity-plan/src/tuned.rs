//! Measurements of a machine: numbers of its links, and the ratio of each algorithm's time to the model's by them.
//!
//! The model's formulas know rounds, messages and bytes. They do not know caches, or how well the rounds of one algorithm overlap on this
//! processor. So beside the fitted numbers stands a ratio for each algorithm: measured over predicted, at some rank counts and sizes.
//!
//! ```text
//!   seconds = formula(numbers of the link) * ratio(operation, algorithm, ranks, bytes)      between two knots: a line
//! ```
//!
//! Every rank computes this alike, on any system: additions, multiplications and the bits of a number, nothing of a library of
//! mathematics. As bytes ([`to_bytes`](TunedCosts::to_bytes)) it is what rank 0 tells the others. May import `algorithms`, `pairs` and `shape`.

use crate::{
    algorithms::Algorithm,
    pairs::{Cost, LinkClass},
    shape::Kind,
};

/// Ratios are whole multiples of this, so that text, bytes and memory hold the same numbers.
const STEP: f64 = 1.0 / 1024.0;
/// The least and the largest multiple.
const MULTIPLES: (u16, u16) = (8, u16::MAX);
/// The most knots of an axis, and the most bytes of the whole.
const MOST_KNOTS: usize = 32;
const MOST_BYTES: usize = 40 << 10;
/// First byte of the bytes.
const FORMAT: u8 = 1;

/// Link over which ranks of a host move their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostLink {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
}

impl HostLink {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Shm, Self::Tcp];

    /// Its word in `COMITY_LINKS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Measured over predicted seconds of one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatioRow {
    /// The operation.
    pub kind: Kind,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// By rank count, then by size; multiples of 1/1024.
    ratios: Vec<u16>,
}

/// The ratios of one kind of link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatioTable {
    ranks: Vec<u32>,
    bytes: Vec<u64>,
    rows: Vec<RatioRow>,
}

/// The numbers of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedCosts {
    /// Classes of shared memory, then of TCP over loopback.
    classes: [LinkClass; 2],
    gamma: f64,
    tables: [RatioTable; 2],
}

impl RatioRow {
    /// `ratios` by rank count, then by size.
    pub fn new(kind: Kind, algorithm: Algorithm, ratios: impl IntoIterator<Item = f64>) -> Self {
        let multiple = |r: f64| (r / STEP).round().clamp(MULTIPLES.0.into(), MULTIPLES.1.into()) as u16;
        Self { kind, algorithm, ratios: ratios.into_iter().map(multiple).collect() }
    }

    /// By rank count, then by size.
    pub fn ratios(&self) -> impl Iterator<Item = f64> {
        self.ratios.iter().map(|&m| f64::from(m) * STEP)
    }
}

impl RatioTable {
    /// Knots that grow, and one row for an algorithm; `None` where something is missing.
    pub fn new(ranks: Vec<u32>, bytes: Vec<u64>, rows: Vec<RatioRow>) -> Option<Self> {
        let grow = |ok: bool, len: usize| ok && (1..=MOST_KNOTS).contains(&len);
        let same =
            |r: &RatioRow| rows.iter().filter(|s| (s.kind, s.algorithm) == (r.kind, r.algorithm)).count();
        let sound = grow(ranks.is_sorted_by(|a, b| a < b), ranks.len())
            && grow(bytes.is_sorted_by(|a, b| a < b), bytes.len())
            && ranks[0] >= 2
            // Of 0 and of 1 the logarithm here is the same.
            && bytes[0] >= 1
            && rows.iter().all(|r| {
                let whole = r.ratios.len() == ranks.len() * bytes.len();
                whole
                    && same(r) == 1
                    && r.algorithm.serves(r.kind)
                    && r.ratios.iter().all(|m| *m >= MULTIPLES.0)
            });
        sound.then_some(Self { ranks, bytes, rows })
    }

    /// Rank counts that were measured.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Sizes that were measured, of the whole buffer.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Returns the rows, one for each algorithm of each operation.
    pub fn rows(&self) -> &[RatioRow] {
        &self.rows
    }

    /// Returns the ratio of a call of `n` ranks over a buffer of so many bytes in all; 1 where the algorithm was not measured.
    fn ratio(&self, kind: Kind, algorithm: Algorithm, n: f64, bytes: f64) -> f64 {
        let Some(row) = self.rows.iter().find(|r| r.kind == kind && r.algorithm == algorithm) else {
            return 1.0;
        };
        let (i, across) = between(&self.ranks, n);
        let (j, along) = between(&self.bytes, bytes);
        let at = |i: usize, j: usize| {
            let i = i.min(self.ranks.len() - 1);
            let m = row.ratios.get(i * self.bytes.len() + j.min(self.bytes.len() - 1));
            m.map_or(1.0, |&m| f64::from(m) * STEP)
        };
        let line = |a: f64, b: f64, part: f64| a + (b - a) * part;
        line(line(at(i, j), at(i, j + 1), along), line(at(i + 1, j), at(i + 1, j + 1), along), across)
    }
}

/// The knot below `x`, and how far `x` is on the way to the next, by [`about_log2`].
fn between<T: Copy + Into<Knot>>(knots: &[T], x: f64) -> (usize, f64) {
    let value = |i: usize| knots.get(i).map(|&k| k.into().0);
    let above = (0..knots.len()).find(|&i| value(i).is_some_and(|k| k > x)).unwrap_or(knots.len());
    match (above.checked_sub(1).and_then(|i| Some((i, value(i)?))), value(above)) {
        (Some((i, low)), Some(high)) => {
            let [low, x, high] = [low, x, high].map(about_log2);
            (i, (x - low) / (high - low))
        }
        (Some((i, _)), None) => (i, 0.0),
        _ => (0, 0.0),
    }
}

/// A place on an axis.
struct Knot(f64);

impl From<u32> for Knot {
    fn from(n: u32) -> Self {
        Self(n.into())
    }
}

impl From<u64> for Knot {
    fn from(n: u64) -> Self {
        Self(n as f64)
    }
}

/// The logarithm of a number of 1 or more, exact at powers of two and a line between them: the same bits on every system.
fn about_log2(x: f64) -> f64 {
    let bits = x.max(1.0).to_bits();
    let (exponent, fraction) = ((bits >> 52) as f64 - 1023.0, bits & ((1 << 52) - 1));
    exponent + fraction as f64 / (1u64 << 52) as f64
}

impl TunedCosts {
    /// `None` where a number is none, or the whole is too long to be told.
    pub fn new(classes: [LinkClass; 2], gamma: f64, tables: [RatioTable; 2]) -> Option<Self> {
        let sound = |x: f64| x.is_finite() && (0.0..1e6).contains(&x);
        let all = classes.iter().all(|c| numbers(c).into_iter().all(sound));
        let new = Self { classes, gamma, tables };
        (all && sound(gamma) && new.len() <= MOST_BYTES).then_some(new)
    }

    /// Returns the class of a kind of link.
    pub fn class(&self, link: HostLink) -> LinkClass {
        self.classes[link as usize]
    }

    /// Seconds per byte added.
    pub fn gamma(&self) -> f64 {
        self.gamma
    }

    /// Returns the table of a kind of link.
    pub fn table(&self, link: HostLink) -> &RatioTable {
        &self.tables[link as usize]
    }

    /// Measured over predicted seconds; `bytes` of the whole buffer.
    pub(crate) fn ratio(&self, link: HostLink, kind: Kind, algorithm: Algorithm, n: f64, bytes: f64) -> f64 {
        self.table(link).ratio(kind, algorithm, n, bytes)
    }

    fn len(&self) -> usize {
        let knots = |t: &RatioTable| 4 + 4 * t.ranks.len() + 8 * t.bytes.len();
        let rows = |t: &RatioTable| t.rows.iter().map(|r| 2 + 2 * r.ratios.len()).sum::<usize>();
        1 + 11 * 8 + self.tables.iter().map(|t| knots(t) + rows(t)).sum::<usize>()
    }

    /// Encodes for [`from_bytes`](Self::from_bytes).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = vec![FORMAT];
        let all = self.classes.iter().flat_map(numbers).chain([self.gamma]);
        all.for_each(|x| b.extend(x.to_be_bytes()));
        for t in &self.tables {
            b.extend([t.ranks.len() as u8, t.bytes.len() as u8]);
            b.extend((t.rows.len() as u16).to_be_bytes());
            t.ranks.iter().for_each(|n| b.extend(n.to_be_bytes()));
            t.bytes.iter().for_each(|n| b.extend(n.to_be_bytes()));
            for r in &t.rows {
                let kind = Kind::ALL.iter().position(|k| *k == r.kind).unwrap_or_default();
                let algorithm = Algorithm::ALL.iter().position(|a| *a == r.algorithm).unwrap_or_default();
                b.extend([kind as u8, algorithm as u8]);
                r.ratios.iter().for_each(|m| b.extend(m.to_be_bytes()));
            }
        }
        b
    }

    /// `None` for bytes that no [`to_bytes`](Self::to_bytes) of this version made.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MOST_BYTES {
            return None;
        }
        let mut rest = bytes;
        if take::<1>(&mut rest)? != [FORMAT] {
            return None;
        }
        let classes = [class(&mut rest)?, class(&mut rest)?];
        let gamma = number(&mut rest)?;
        let tables = [table(&mut rest)?, table(&mut rest)?];
        rest.is_empty().then_some(())?;
        Self::new(classes, gamma, tables)
    }
}

fn numbers(c: &LinkClass) -> [f64; 5] {
    [c.cost.alpha, c.cost.beta, c.busy, c.crowd, c.same]
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn number(rest: &mut &[u8]) -> Option<f64> {
    take(rest).map(f64::from_be_bytes)
}

fn class(rest: &mut &[u8]) -> Option<LinkClass> {
    let cost = Cost { alpha: number(rest)?, beta: number(rest)? };
    Some(LinkClass { cost, busy: number(rest)?, crowd: number(rest)?, same: number(rest)? })
}

fn table(rest: &mut &[u8]) -> Option<RatioTable> {
    let [n, m] = take::<2>(rest)?.map(usize::from);
    let rows = u16::from_be_bytes(take(rest)?);
    // Nothing is believed to be longer than what is there.
    if n.max(m) > MOST_KNOTS || usize::from(rows) * (2 + 2 * n * m) > rest.len() {
        return None;
    }
    let ranks = (0..n).map(|_| take(rest).map(u32::from_be_bytes)).collect::<Option<_>>()?;
    let bytes = (0..m).map(|_| take(rest).map(u64::from_be_bytes)).collect::<Option<_>>()?;
    let row = |_| {
        let [kind, algorithm] = take::<2>(rest)?.map(usize::from);
        let ratios = (0..n * m).map(|_| take(rest).map(u16::from_be_bytes)).collect::<Option<_>>()?;
        Some(RatioRow { kind: *Kind::ALL.get(kind)?, algorithm: *Algorithm::ALL.get(algorithm)?, ratios })
    };
    RatioTable::new(ranks, bytes, (0..rows).map(row).collect::<Option<_>>()?)
}

#[cfg(test)]
mod tests;
