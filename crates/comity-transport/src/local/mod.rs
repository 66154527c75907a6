//! Links between threads of one process: shared memory's rings, in memory that nobody else maps.

use super::{
    About, Attempt, Connection, Connector, JobInfo, Link, LinkKind, Pair, Seen, Transport, TransportInfo,
    shm::ShmLink,
};
use crate::Result;
use std::io;

/// Both ends, for two threads of this process.
pub fn pair() -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
    ShmLink::pair(LinkKind::Local)
}

/// No process opens it: there is none. Threads make their links by [`pair`].
#[derive(Debug)]
pub(crate) enum Local {}

impl Transport for Local {
    type Settings = ();

    fn about() -> About {
        About {
            by_default: false,
            between_processes: false,
            within_host: true,
            shares_memory: true,
            ..About::PRIVATE
        }
    }

    fn note(_: &(), _: Seen<'_>) -> TransportInfo {
        TransportInfo { works: true, why: "between threads of one process".into(), devices: Vec::new() }
    }

    fn find(_: &(), _: &JobInfo) -> Result<Option<Self>> {
        Ok(None)
    }

    fn leads(&self, _: &Pair<'_>) -> Result<(), String> {
        match *self {}
    }

    fn connect(&self, _: &Pair<'_>, _: &dyn Connector) -> Attempt {
        match *self {}
    }

    fn accept(&self, _: &Pair<'_>, _: Vec<Connection>, _: &dyn Connector) -> Attempt {
        match *self {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::conformance::conformance;

    conformance!(|| super::pair().unwrap());
}
