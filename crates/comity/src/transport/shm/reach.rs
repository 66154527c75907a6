//! Shared memory as a transport: the higher rank connects to the socket of the host, over which the lower one passes the memory.

use super::ShmLink;
use crate::{
    Result,
    channel::Stream,
    transport::{
        About, Connection, Job, Made, Missed, Note, Pair, Reached, Seen, Transport, Way, dial_within_host,
        note_of_host, within_host,
    },
};
use std::io;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shm;

impl Transport for Shm {
    type Settings = ();

    fn about() -> About {
        About {
            by_default: true,
            between_processes: true,
            within_host: true,
            shares_memory: true,
            is_private: true,
        }
    }

    fn note(_: &(), seen: Seen<'_>) -> Note {
        #[cfg(target_os = "linux")]
        if let Err(e) = crate::sys::Mapping::create(4096) {
            let why = format!("the system gives no memory to share: {e}");
            return Note { works: false, why, devices: Vec::new() };
        }
        note_of_host(seen)
    }

    fn find(_: &(), _: &Job) -> Result<Option<Self>> {
        Ok(Some(Self))
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        pair.share_a_host()
    }

    fn connect(&self, pair: &Pair<'_>, way: &dyn Way) -> Result<Reached, Missed> {
        Ok(match dial_within_host(pair, way)? {
            // It makes the memory when it opens the group.
            Ok(stream) => Reached::Soon(Stream::Unix(stream)),
            Err(why) => Reached::Not(why),
        })
    }

    fn attach(&self, stream: Stream) -> Made {
        match stream {
            Stream::Unix(stream) => ShmLink::attach(stream),
            Stream::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn accept(&self, _: &Pair<'_>, connections: Vec<Connection>, _: &dyn Way) -> Result<Reached, Missed> {
        Ok(within_host(connections).map_or_else(|not| not, |stream| Reached::Link(ShmLink::create(stream))))
    }
}
