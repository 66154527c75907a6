//! Number of this host among those that start their own launchers, as a user gives it.

/// Number of this host, and the meeting place.
#[derive(Clone, Debug)]
pub(crate) struct NodeRequest {
    pub(crate) node: usize,
    pub(crate) nodes: usize,
    /// `HOST[:PORT],...`
    pub(crate) rendezvous: String,
}
