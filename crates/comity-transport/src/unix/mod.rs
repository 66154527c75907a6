//! Links over Unix stream sockets between processes of one host: for where memory cannot be shared.
//!
//! The higher rank connects to the socket of the host, and that connection is the link: nothing is framed, summed or sealed, since what
//! the system copies between two processes of a host is not damaged and leaves it nowhere. A pair takes it only where `COMITY_LINKS`
//! names it: shared memory is faster, and copies nothing through the system.

mod link;

use super::{
    About, Connected, Connection, Connector, JobInfo, Missed, Pair, Seen, Transport, TransportInfo,
    dial_within_host, info_of_host, within_host,
};
use crate::Result;
use link::UnixLink;

/// The transport over Unix sockets.
#[derive(Debug)]
pub(crate) struct Unix;

impl Transport for Unix {
    type Settings = ();

    fn about() -> About {
        About { by_default: false, within_host: true, ..About::PRIVATE }
    }

    fn note(_: &(), seen: Seen<'_>) -> TransportInfo {
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
            Ok(stream) => Connected::Link(UnixLink::boxed(stream)),
            Err(why) => Connected::Not(why),
        })
    }

    fn accept(
        &self,
        _: &Pair<'_>,
        connections: Vec<Connection>,
        _: &dyn Connector,
    ) -> Result<Connected, Missed> {
        Ok(within_host(connections).map_or_else(|not| not, |stream| Connected::Link(UnixLink::boxed(stream))))
    }
}
