//! Figures of each rank, for the last lines of the examples here and of candle's.

/// Bytes of memory that this process has, and the most that it has had; zeros where the system does not say.
#[must_use]
pub fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// Bytes in MiB, by rank.
#[must_use]
pub fn mib(bytes: impl IntoIterator<Item = u64>) -> String {
    let each: Vec<String> = bytes.into_iter().map(|b| format!("{:.1}", b as f64 / 1048576.0)).collect();
    each.join(", ")
}

/// Shares, in thousandths, as percent by rank.
#[must_use]
pub fn percent(shares: impl IntoIterator<Item = u64>) -> String {
    let each: Vec<String> = shares.into_iter().map(|s| format!("{:.0}", s as f64 / 10.0)).collect();
    format!("{} %", each.join(", "))
}

/// A share in thousandths.
#[must_use]
pub fn thousandths(share: f64) -> u64 {
    (1e3 * share).round() as u64
}
