//! Number of this host among those that start their own launchers, as a user gives it.

/// Number of this host, and the meeting place.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// Number of this host, from 0.
    pub node: usize,
    /// Number of hosts.
    pub nodes: usize,
    /// `HOST[:PORT],...`
    pub rendezvous: String,
}
