//! Cells of the measurement: an operation, on how many ranks, of how many bytes of which type.

use comity_kernel::named;
use std::fmt;

named! {
    /// An operation that libraries have in common.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Operation: "operation" {
        AllReduce => "all_reduce",
        AllGather => "all_gather",
        ReduceScatter => "reduce_scatter",
        Broadcast => "broadcast",
        AllToAll => "all_to_all",
        PingPong => "pingpong",
        Barrier => "barrier",
    }
}

impl Operation {
    /// Meaning of the bytes and the time.
    pub(crate) const fn about(self) -> &'static str {
        match self {
            Self::AllReduce => "in place",
            Self::AllGather => "bytes of the result",
            Self::ReduceScatter => "bytes of the source",
            Self::Broadcast => "roots 0 and 1 in turn",
            Self::AllToAll => "bytes that a rank holds",
            Self::PingPong => "half a round trip of ranks 0 and 1",
            Self::Barrier => "no bytes",
        }
    }

    /// Return whether the buffer holds a part for each rank.
    pub(crate) const fn has_parts(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllToAll)
    }

    /// Calls in one timed step. A root that is always the same would run ahead of the others.
    pub(crate) const fn calls(self) -> usize {
        if matches!(self, Self::Broadcast | Self::PingPong) { 2 } else { 1 }
    }
}

named! {
    /// Types of elements.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Element: "type" {
        F32 => "f32",
        Bf16 => "bf16",
    }
}

/// Subject of a row of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cell {
    pub(crate) op: Operation,
    pub(crate) element: Element,
    pub(crate) ranks: usize,
    pub(crate) bytes: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.op.name();
        let element = self.element.name();
        let ranks = self.ranks;
        write!(f, "{op} {element} {ranks} ranks {}", size(self.bytes))
    }
}

/// `16 KiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Microseconds: `0.23`, `12.3`, `4,470`.
pub(crate) fn microseconds(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => thousands(us.round() as u64),
    }
}

fn thousands(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", thousands(n / 1000), n % 1000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_in_words() {
        assert_eq!([size(8), size(16 << 10), size(64 << 20)], ["8 B", "16 KiB", "64 MiB"]);
        assert_eq!(
            [microseconds(0.234), microseconds(12.34), microseconds(4470.4), microseconds(1_047_169.0)],
            ["0.23", "12.3", "4,470", "1,047,169"]
        );
    }

    #[test]
    fn operations_have_names() {
        for op in Operation::ALL {
            assert_eq!(Operation::from_name(op.name()), Some(op));
        }
        assert_eq!(Element::from_name("bf16"), Some(Element::Bf16));
        assert_eq!(Operation::from_name("ar"), None);
    }
}
