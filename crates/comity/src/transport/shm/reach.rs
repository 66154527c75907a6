//! Shared memory as a transport: the higher rank connects to the socket of the host, over which the lower one passes the memory.

use super::ShmLink;
use crate::{
    Result,
    channel::Stream,
    sys::SharedMemory,
    transport::{
        About, Connected, Connection, Connector, JobInfo, Missed, NewLink, Pair, Seen, Transport, TransportInfo, Variables, dial_within_host,
        info_of_host, within_host,
    },
};
use std::io;

/// The transport over shared memory.
#[derive(Debug)]
pub(crate) struct Shm;

/// What users may choose about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShmSettings {
    /// How many MiB of this process the other ranks of its host may read where they lie; `None`: as many as the system gives.
    pub(crate) shared_buffers: Option<usize>,
}

/// Far more MiB than any host has.
const MOST_MIB: usize = 1 << 24;

impl Transport for Shm {
    type Settings = ShmSettings;

    fn about() -> About {
        About {
            by_default: true,
            between_processes: true,
            within_host: true,
            shares_memory: true,
            reads_buffers: true,
            is_private: true,
            first_for: None,
        }
    }

    fn read(settings: &mut ShmSettings, vars: &dyn Variables) -> Result<()> {
        if let Some(mib) = vars.number("COMITY_SHARED_BUFFERS", MOST_MIB)? {
            settings.shared_buffers = Some(mib);
        }
        Ok(())
    }

    fn note(settings: &ShmSettings, seen: Seen<'_>) -> TransportInfo {
        #[cfg(target_os = "linux")]
        if let Err(e) = crate::sys::Mapping::create(4096) {
            let why = format!("the system gives no memory to share: {e}");
            return TransportInfo { works: false, why, devices: Vec::new() };
        }
        let info = info_of_host(seen);
        let buffers = match settings.shared_buffers {
            None => "buffers of Group::alloc are shared".into(),
            Some(0) => "buffers of Group::alloc are not shared (COMITY_SHARED_BUFFERS=0)".into(),
            Some(mib) => format!("up to {mib} MiB of buffers of Group::alloc are shared"),
        };
        TransportInfo { why: format!("{}; {buffers}", info.why), ..info }
    }

    fn find(settings: &ShmSettings, _: &JobInfo) -> Result<Option<Self>> {
        let most = settings.shared_buffers.map_or(usize::MAX, |mib| mib.saturating_mul(1 << 20));
        SharedMemory::limit(most);
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
