//! Shared memory as a transport: the higher rank connects to the socket of the host, over which it passes the memory.

use super::{ShmLink, loans::Pull};
use crate::{
    About, Attempt, Card, Connected, Connection, Connector, JobInfo, LinkKind, Missed, Pair, Result, Seen,
    Transport, TransportInfo, Variables,
    channel::Miss,
    connect_within_host, info_of_host,
    sys::{Lineage, PeerMemory, SharedMemory, Tracer, yama_scope},
    within_host,
};
use std::{os::fd::AsFd, thread};

#[derive(Debug)]
pub(crate) struct Shm {
    pull: Pull,
    tracer: Trace,
    /// Lineage of this process, where Yama needs a name.
    lineage: Option<Lineage>,
}

/// Process to name as this process's tracer, where a peer may not read it otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// The nearest ancestor of all ranks of the host.
    Ancestor,
    /// Every process of the user.
    Any,
    /// The tracer that the program has named itself, or none.
    Keep,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ShmSettings {
    /// Memory of this process, in MiB, that the other ranks of its host may read in place; `None`: as much as the system gives.
    pub(crate) shared_buffers: Option<usize>,
    /// Smallest message, in bytes, that is read in the sender's own memory, 0 for never; `None`: where that is quicker.
    pub(crate) pull: Option<usize>,
    pub(crate) tracer: Option<Trace>,
}

impl ShmSettings {
    /// Returns the messages that are read in the sender's own memory.
    fn pull(&self) -> Pull {
        match self.pull {
            None => Pull::WherePays,
            Some(0) => Pull::None,
            Some(least) => Pull::From(least),
        }
    }

    /// Returns the tracer that a rank names: none, unless the user has asked for it or for a setting that needs it.
    fn tracer(&self) -> Trace {
        let asked = if matches!(self.pull(), Pull::From(_)) { Trace::Ancestor } else { Trace::Keep };
        self.tracer.unwrap_or(asked)
    }
}

/// Far more MiB than any host has.
const MOST_MIB: usize = 1 << 24;

impl Transport for Shm {
    type Settings = ShmSettings;

    fn about() -> About {
        About { within_host: true, shares_memory: true, ..About::PRIVATE }
    }

    fn read(settings: &mut ShmSettings, vars: &dyn Variables) -> Result<()> {
        if let Some(mib) = vars.number("COMITY_SHARED_BUFFERS", MOST_MIB)? {
            settings.shared_buffers = Some(mib);
        }
        if let Some(least) = vars.number("COMITY_PULL", usize::MAX)? {
            settings.pull = Some(least);
        }
        if let Some(word) = vars.text("COMITY_PTRACER")? {
            settings.tracer = Some(match word.as_str() {
                "ancestor" => Trace::Ancestor,
                "any" => Trace::Any,
                "keep" => Trace::Keep,
                _ => return Err(vars.refusal("COMITY_PTRACER", &word, "is none of ancestor, any, keep")),
            });
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
            None => "buffers of alloc (comity.empty in Python) are shared".into(),
            Some(0) => {
                "buffers of alloc (comity.empty in Python) are not shared (COMITY_SHARED_BUFFERS=0)".into()
            }
            Some(mib) => format!("up to {mib} MiB of buffers of alloc (comity.empty in Python) are shared"),
        };
        let pull = pull_note(settings);
        TransportInfo { why: format!("{}; {buffers}; {pull}", info.why), ..info }
    }

    fn find(settings: &ShmSettings, _: &JobInfo) -> Result<Option<Self>> {
        let most = settings.shared_buffers.map_or(usize::MAX, |mib| mib.saturating_mul(1 << 20));
        SharedMemory::limit(most);
        let pull = settings.pull();
        let tracer = settings.tracer();
        let needs_name = pull != Pull::None && tracer == Trace::Ancestor;
        let lineage = needs_name.then(Lineage::own).flatten();
        Ok(Some(Self { pull, tracer, lineage }))
    }

    fn announce(&self) -> Vec<u8> {
        let cores = thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX));
        let lineage = self.lineage.as_ref().map_or_else(Vec::new, Lineage::to_bytes);
        [&cores.to_le_bytes(), &lineage[..]].concat()
    }

    fn meet(&mut self, me: usize, cards: &[Card]) {
        if self.pull != Pull::None && self.tracer == Trace::Any {
            Tracer::plan_any();
        }
        let (Some(own), Some(card)) = (&self.lineage, cards.get(me)) else { return };
        let here = cards.iter().filter(|c| c.host_id == card.host_id);
        let others: Vec<_> =
            here.filter_map(|c| Lineage::from_bytes(c.links.of(LinkKind::Shm)?.get(2..)?)).collect();
        if let Some(pid) = own.nearest(&others) {
            Tracer::plan(pid);
        }
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        pair.share_a_host()
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Attempt {
        connect_within_host(pair, connector, |stream| ShmLink::create(stream, self.pull))
    }

    fn accept(&self, _: &Pair<'_>, connections: Vec<Connection>, connector: &dyn Connector) -> Attempt {
        let stream = match within_host(connections) {
            Ok(stream) => stream,
            Err(not) => return Ok(not),
        };
        // WAIT(until): the memory, which the other end sends as soon as it has connected
        let waited = connector.wait(stream.as_fd(), connector.until());
        // Also of one that has left: what it has put there is to be read.
        match (ShmLink::attach(stream, self.pull), waited) {
            (Err(_), Err(error)) => {
                Err(Missed { at: "its socket on this host".into(), miss: Miss::Stop(error) })
            }
            (link, _) => Ok(Connected::Link(link)),
        }
    }
}

/// Describes the reading of a peer's own memory for `comity info`.
fn pull_note(settings: &ShmSettings) -> String {
    let (which, how_long) = match settings.pull() {
        Pull::None => return "long messages go through rings (COMITY_PULL=0)".into(),
        Pull::WherePays => {
            ("long messages of exchanges and sends".into(), ", as long as it is quicker than through rings")
        }
        Pull::From(least) => (format!("messages from {least} bytes on"), ""),
    };
    let own = [1u8];
    // Root passes the scopes but the last.
    let scope = yama_scope().filter(|scope| *scope > 2 || !rustix::process::geteuid().is_root());
    let why_not = match (PeerMemory::own().read(own.as_ptr() as u64, &mut [0]), scope, settings.tracer()) {
        (Err(e), ..) => format!("the system does not read a process's memory for another: {e}"),
        (_, Some(3..), _) => "Yama's ptrace_scope is 3: nobody reads other processes".into(),
        (_, Some(2), _) => "Yama's ptrace_scope is 2: only root reads other processes".into(),
        (_, Some(1), Trace::Keep) => {
            "Yama's ptrace_scope is 1: with COMITY_PTRACER=ancestor the ranks' launcher, and what it started, may read them".into()
        }
        (_, Some(1), Trace::Ancestor) => {
            return format!(
                "{which} are read where they lie, of ranks with one launcher (Yama's ptrace_scope is 1){how_long}"
            );
        }
        _ => return format!("{which} are read where they lie{how_long}"),
    };
    format!("long messages go through rings: {why_not}")
}
