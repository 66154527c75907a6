//! Meeting point of the ranks.

use super::HostPort;
use crate::exchange::Exchange;
use std::{fmt, sync::Arc};

/// Meeting point of the ranks. [`Config::meeting_point`](../comity/struct.Config.html#method.meeting_point) returns it.
///
/// ```
/// use comity::{Config, MeetingPoint};
///
/// let config = Config::new(1, 2).store("10.0.0.1:7000")?;
/// assert!(matches!(config.meeting_point(), MeetingPoint::Store(at) if at[0].port() == 7000));
/// assert_eq!(config.meeting_point().to_string(), "at the store at 10.0.0.1:7000");
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MeetingPoint {
    /// Nowhere: a group of one.
    Alone,
    /// At a store that runs elsewhere, such as the launcher's; its addresses. An address of a rank's host leads to the store too: that
    /// rank passes on what comes there.
    Store(Vec<HostPort>),
    /// At a store that rank 0 runs at these addresses and, at the same port, at all others of its own; as above.
    Host(Vec<HostPort>),
    /// At a store that rank 0 runs at its first address; each rank's addresses to listen on, by rank.
    ///
    /// A rank whose addresses the file does not tell has an empty list; that is never rank 0. Only this rank's own
    /// may be unspecified (`0.0.0.0`), which stands for all addresses of this host.
    Hostfile(Vec<Vec<HostPort>>),
    /// At a store that rank 0 runs at an ephemeral port, which it tells the others through this exchange.
    Exchange(Arc<dyn Exchange>),
}

impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("nowhere (one rank)"),
            Self::Store(at) => write!(f, "at the store at {}", list(at)),
            Self::Host(at) => write!(f, "at rank 0's store at {}", list(at)),
            Self::Hostfile(ranks) => match ranks.first().and_then(|r| r.first()) {
                Some(at) => write!(f, "at rank 0's store at {at}, from the hostfile"),
                None => f.write_str("at rank 0's store"),
            },
            Self::Exchange(exchange) => write!(f, "at rank 0's store, told through {exchange}"),
        }
    }
}

/// Addresses with a comma between.
fn list(all: &[HostPort]) -> String {
    all.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
}
