//! Lines by which ranks tell the program that started them what they see.

/// Event of a rank, on a line of its own: the words after [`MARK`].
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) event: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Times of `chaos::monotonic` and other numbers.
    pub(super) numbers: Vec<u64>,
}

const MARK: &str = "@elastic ";

impl Line {
    /// Print an event.
    pub(super) fn say(event: &str, rank: usize, size: usize, numbers: &[u64]) {
        let numbers: String = numbers.iter().map(|n| format!(" {n}")).collect();
        println!("{MARK}{event} {rank} {size}{numbers}");
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix(MARK)?.split(' ');
        let event = words.next()?.to_owned();
        let rank = words.next()?.parse().ok()?;
        let size = words.next()?.parse().ok()?;
        let numbers = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
        Some(Self { event, rank, size, numbers })
    }
}
