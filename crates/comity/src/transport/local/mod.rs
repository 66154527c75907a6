//! Links between threads of one process: shared memory's rings, in memory that nobody else maps.

use super::{Link, LinkKind, shm::ShmLink};
use std::io;

/// Both ends, for two threads of this process.
pub(crate) fn pair() -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
    ShmLink::pair(LinkKind::Local)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::transport::conformance::conformance;

    conformance!(|| super::pair().unwrap());
}
