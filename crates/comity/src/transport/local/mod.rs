//! Links between threads of one process: shared memory's rings, in memory that nobody else maps.

use super::{
    About, Connection, Job, Link, LinkKind, Missed, Note, Pair, Reached, Seen, Transport, Way, shm::ShmLink,
};
use crate::Result;
use std::io;

/// Both ends, for two threads of this process.
pub(crate) fn pair() -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
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
            is_private: true,
        }
    }

    fn note(_: &(), _: Seen<'_>) -> Note {
        Note { works: true, why: "between threads of one process".into(), devices: Vec::new() }
    }

    fn find(_: &(), _: &Job) -> Result<Option<Self>> {
        Ok(None)
    }

    fn leads(&self, _: &Pair<'_>) -> Result<(), String> {
        match *self {}
    }

    fn connect(&self, _: &Pair<'_>, _: &dyn Way) -> Result<Reached, Missed> {
        match *self {}
    }

    fn accept(
        &self,
        _: &Pair<'_>,
        _: Vec<Connection>,
        _: &dyn Way,
    ) -> Result<Reached, Missed> {
        match *self {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::transport::conformance::conformance;

    conformance!(|| super::pair().unwrap());
}
