//! Exchange: how rank 0 tells the others one short text, with the job's key in it where the launcher gives none, before any of
//! Comity's own connections exists.
//!
//! Every launcher that does not run a store for Comity has a channel of its own on which a few bytes can be told: torchrun's
//! store, MPICH's process manager, the host itself when all ranks are on it.

mod pmi;
mod torch;
mod unix;

use crate::{
    Error, HostPort, Result,
    sync::lock,
    sys::{give_up, nap},
};
pub use pmi::PmiExchange;
use rustix::net::{
    SendFlags, send,
    sockopt::{Timeout, set_socket_timeout},
};
use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read},
    ops::RangeInclusive,
    os::fd::AsFd,
    sync::Mutex,
    time::{Duration, Instant},
};
pub use torch::TorchExchange;
pub use unix::UnixExchange;

/// The longest text that every exchange can carry.
pub const MAX_EXCHANGE_TEXT: usize = 512;

/// The most failed shares that a late rank may be behind.
const MAX_TRIES: usize = 15;

/// A place where rank 0 posts a text that every other rank reads.
///
/// All ranks call [`share`](Self::share) equally often; call k of one rank belongs to call k of the others. Exchanges
/// that other code implements (over Ray, Kubernetes or a torch `Store`) go into [`Config::exchange`](../comity/struct.Config.html#method.exchange).
///
/// ```
/// use comity::{Error, Exchange, Result};
/// use std::{fmt, fs, path::PathBuf, thread, time::{Duration, Instant}};
///
/// /// A file that only this job's user can read, in a folder that all hosts see. Serves one group.
/// #[derive(Debug)]
/// struct File(PathBuf);
///
/// impl fmt::Display for File {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "the file {}", self.0.display())
///     }
/// }
///
/// impl Exchange for File {
///     fn share(&self, _rank: usize, _size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
///         let failed = |what: &str, e: std::io::Error| Error::os(format!("{what} {self}"), e);
///         if let Some(text) = mine {
///             let new = self.0.with_extension("new");
///             fs::write(&new, text).and_then(|()| fs::rename(&new, &self.0)).map_err(|e| failed("writing", e))?;
///         }
///         loop {
///             match fs::read_to_string(&self.0) {
///                 Ok(text) => return Ok(text),
///                 Err(e) if Instant::now() >= until => return Err(failed("waiting for rank 0 to write", e)),
///                 Err(_) => thread::sleep(Duration::from_millis(10)),
///             }
///         }
///     }
/// }
///
/// let file = File(std::env::temp_dir().join(format!("comity-doc-exchange-{}", std::process::id())));
/// assert_eq!(file.share(0, 2, Some("hello"), Instant::now())?, "hello");
/// assert_eq!(file.share(1, 2, None, Instant::now())?, "hello");
/// # let _ = fs::remove_file(&file.0);
/// # Ok::<(), Error>(())
/// ```
pub trait Exchange: Send + Sync + fmt::Debug + fmt::Display {
    /// Tell rank 0's text to all: rank 0 gives it as `mine`, the others give `None`, and each rank gets it back.
    ///
    /// The text may hold the job's key: do not log it. It has 1 to 512 bytes, all of them printable ASCII other than space, `=`, `;` and
    /// quotes. Others may read as long as rank 0 keeps the exchange, which it does until all have met.
    ///
    /// # Errors
    /// Your own, by `until` at the latest. It says what was waited for.
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> Result<String>;

    /// The address at which all ranks reach the exchange, if it has one, as torchrun's store has `MASTER_ADDR`.
    ///
    /// Rank 0 then listens on its address in that network, unless [`Config::addrs`](../comity/struct.Config.html#method.addrs) names one. Default: `None`.
    fn address(&self) -> Option<HostPort> {
        None
    }
}

/// Number of shares of this process, by the exchange's name.
static SHARES: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// The number of this process's next share over the exchange `name`: as many as it has made before.
///
/// Counted per process, because a process that makes a second group makes a second exchange, which must not find
/// what was posted for the first.
fn begin_share(name: &str) -> usize {
    let mut shares = lock(&SHARES);
    let next = shares.entry(name.to_owned()).or_default();
    let this = *next;
    *next += 1;
    this
}

/// Take back share number `n`, in which this process has read nothing: it asks for the same again.
fn forget_share(name: &str, n: usize) {
    let mut shares = lock(&SHARES);
    if let Some(next) = shares.get_mut(name)
        && *next == n + 1
    {
        *next = n;
    }
}

/// The numbers under which rank 0 posts the text of its share number `n`. Where it tries again after a failure, others may not have come to the
/// failed share yet: they find the new text there, and not an address at which nobody listens any more. Whoever came in time has read the old one.
fn numbers(n: usize) -> RangeInclusive<usize> {
    n.saturating_sub(MAX_TRIES)..=n
}

/// The text if rank 0 gave one that every exchange can carry, and the others none.
fn own_text(rank: usize, mine: Option<&str>) -> Result<Option<&str>> {
    match mine {
        Some(text) if rank == 0 && is_text(text) => Ok(Some(text)),
        None if rank != 0 => Ok(None),
        Some(_) if rank == 0 => Err(Error::config(format!(
            "an exchange carries 1 to {MAX_EXCHANGE_TEXT} printable ASCII characters other than space, '=', ';' and quotes"
        ))),
        _ => Err(Error::config("rank 0, and no other, gives the text that an exchange shares")),
    }
}

fn is_text(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'=' | b';' | b'"' | b'\'');
    !text.is_empty() && text.len() <= MAX_EXCHANGE_TEXT && text.bytes().all(fits)
}

/// Checks that an answer is a text.
fn checked(text: String, from: &dyn fmt::Display) -> Result<String> {
    if is_text(&text) {
        Ok(text)
    } else {
        Err(Error::join(format!("{from} answered with {} bytes that no rank gave", text.len())))
    }
}

/// Systems without this flag set an option on the socket, which the standard library does for its own.
#[cfg(target_vendor = "apple")]
const QUIET: SendFlags = SendFlags::empty();
#[cfg(not(target_vendor = "apple"))]
const QUIET: SendFlags = SendFlags::NOSIGNAL;

/// Gives each call on a stream so long.
fn limit(stream: &impl AsFd, limit: Duration) -> io::Result<()> {
    set_socket_timeout(stream, Timeout::Recv, Some(limit))?;
    Ok(set_socket_timeout(stream, Timeout::Send, Some(limit))?)
}

/// The time left until `until`, as sockets take it: never zero, which would mean for ever.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.max(Duration::from_millis(1))) }
}

/// The time left, or until the thread asks whether it is to give up.
fn slice(until: Instant) -> io::Result<Duration> {
    give_up().map_err(|e| io::Error::other(e.to_string()))?;
    left(until).map(nap)
}

/// Fill `buf` by `until`.
fn read_all(stream: &mut (impl Read + AsFd), mut buf: &mut [u8], until: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        limit(stream, slice(until)?)?;
        match stream.read(buf) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buf = buf.get_mut(n..).unwrap_or_default(),
            Err(e) => retry(e)?,
        }
    }
    Ok(())
}

/// Write all of `buf` by `until`. An end that is gone is an error and never a signal, whatever the program does with signals.
fn write_all(stream: &impl AsFd, mut buf: &[u8], until: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        limit(stream, slice(until)?)?;
        match send(stream, buf, QUIET).map_err(io::Error::from) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => buf = buf.get(n..).unwrap_or_default(),
            Err(e) => retry(e)?,
        }
    }
    Ok(())
}

/// Nothing for an error that says "again"; the loop looks at the clock then.
fn retry(e: io::Error) -> io::Result<()> {
    match e.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(e),
    }
}

fn is_late(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_0_gives_a_text_and_one_that_fits() {
        assert_eq!(own_text(0, Some("[::1]:5000")).unwrap(), Some("[::1]:5000"));
        assert_eq!(own_text(1, None).unwrap(), None);
        let long = "x".repeat(MAX_EXCHANGE_TEXT + 1);
        for (rank, mine) in [
            (0, None),
            (1, Some("a")),
            (0, Some("")),
            (0, Some("a b")),
            (0, Some("a=b")),
            (0, Some("é")),
            (0, Some(&long)),
        ] {
            let e = own_text(rank, mine).unwrap_err();
            assert!(matches!(e.kind(), crate::ErrorKind::Config(_)), "{rank} {mine:?}: {e}");
        }
    }
}
