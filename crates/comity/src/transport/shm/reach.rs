//! Shared memory as a transport: the higher rank connects to the socket of the host, over which the lower one passes the memory.

use super::ShmLink;
use crate::{
    Result,
    channel::Stream,
    transport::{
        About, Connected, Connection, Connector, JobInfo, Missed, NewLink, Pair, Seen, Transport, TransportInfo, dial_within_host,
        info_of_host, within_host,
    },
};
use std::io;

/// The transport over shared memory.
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
            first_for: None,
        }
    }

    fn note(_: &(), seen: Seen<'_>) -> TransportInfo {
        #[cfg(target_os = "linux")]
        if let Err(e) = crate::sys::Mapping::create(4096) {
            let why = format!("the system gives no memory to share: {e}");
            return TransportInfo { works: false, why, devices: Vec::new() };
        }
        info_of_host(seen)
    }

    fn find(_: &(), _: &JobInfo) -> Result<Option<Self>> {
        Ok(Some(Self))
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        pair.share_a_host()
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Result<Connected, Missed> {
        Ok(match dial_within_host(pair, connector)? {
            // It makes the memory when it opens the group.
            Ok(stream) => Connected::Soon(Stream::Unix(stream)),
            Err(why) => Connected::Not(why),
        })
    }

    fn attach(&self, stream: Stream) -> NewLink {
        match stream {
            Stream::Unix(stream) => ShmLink::attach(stream),
            Stream::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn accept(&self, _: &Pair<'_>, connections: Vec<Connection>, _: &dyn Connector) -> Result<Connected, Missed> {
        Ok(within_host(connections).map_or_else(|not| not, |stream| Connected::Link(ShmLink::create(stream))))
    }
}
