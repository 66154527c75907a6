//! Sizes as people write them: `8`, `1K`, `64M`, `2G`, in binary units.

use std::str::FromStr;

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number = s.strip_suffix("iB").or_else(|| s.strip_suffix(['B', 'b'])).unwrap_or(s);
        let unit =
            number.chars().last().and_then(|c| UNITS.into_iter().find(|u| u.0 == c.to_ascii_uppercase()));
        let digits = if unit.is_some() { &number[..number.len() - 1] } else { number };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << unit.map_or(0, |u| u.1)))
            .filter(|&n| n <= 1 << 45)
            .map(Self)
            .ok_or_else(|| {
                "a size is a whole number of bytes, or one with K, M, G or T (binary units): 8, 1K, 64M, 2G"
                    .into()
            })
    }
}

/// Sizes from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) first: Size,
    pub(crate) last: Size,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (first, last) = s.split_once(':').unwrap_or((s, s));
        let first: Size = first.parse()?;
        let last: Size = last.parse()?;
        if first > last {
            return Err(format!("{s} goes down; write the smaller size first"));
        }
        Ok(Self { first, last })
    }
}

impl Sizes {
    /// From the first to the last, each `factor` times the one before; the last one itself too where the factor leads to it.
    pub(crate) fn by(self, factor: u64) -> impl Iterator<Item = u64> {
        let factor = factor.max(2);
        let up = move |&n: &u64| if n == 0 { Some(1) } else { n.checked_mul(factor) };
        std::iter::successors(Some(self.first.0), up).take_while(move |&n| n <= self.last.0)
    }
}

/// Bytes in few characters: `64M` where that is exact, else `1.5 GiB`.
pub(crate) fn bytes(n: u64) -> String {
    let exact = UNITS.iter().rev().find(|u| n > 0 && n.is_multiple_of(1 << u.1) && n >> u.1 < 10_000);
    match exact {
        Some(&(c, shift)) => format!("{}{c}", n >> shift),
        None => match UNITS.iter().rev().find(|u| n >= 10 << u.1) {
            Some(&(c, shift)) => format!("{:.1}{c}", n as f64 / (1u64 << shift) as f64),
            None => n.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, n) in
            [("8", 8), ("1K", 1024), ("64M", 64 << 20), ("2g", 2 << 30), ("1KiB", 1024), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Size(n)), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "1 K", "99999999999T", "1X", "é", "0x8"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        let sizes: Sizes = "8:1K".parse().unwrap();
        assert_eq!(sizes.by(4).collect::<Vec<_>>(), [8, 32, 128, 512]);
        assert_eq!("1M".parse::<Sizes>().unwrap().by(2).collect::<Vec<_>>(), [1 << 20]);
        assert_eq!("0:4".parse::<Sizes>().unwrap().by(2).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert!("8:".parse::<Sizes>().is_err() && "1K:8".parse::<Sizes>().is_err());
        let shown = [0, 8, 1024, 1500, 3 << 20, (5 << 30) + 1, 12_000_000_000].map(bytes);
        assert_eq!(shown, ["0", "8", "1K", "1500", "3M", "5120.0M", "11.2G"]);
    }
}
