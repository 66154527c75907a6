//! RDMA as a transport: which devices a rank may use, paths made beside a TCP connection of the pair, settings, and what `comity info`
//! says.

use super::{
    Matrix, VerbsLink,
    driver::{Handle, Held, Slots},
    establish::{Ours, WaitReadable, establish},
};
use crate::{
    About, Attempt, ConfigError, Connected, Connection, Connector, ErrorKind, JobInfo, Link, LinkKind,
    Missed, NewLink, Pair, Result, Seen, Transport, TransportInfo, TransportSettings, Variables,
    channel::{Miss, Refusal, Stream, Target},
    sync::lock,
    sys::verbs::{Device, QueueService, Verbs},
};
use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

/// Names of the device matrix; JACCL's own go before MLX's.
const DEVICES: [&str; 3] = ["COMITY_DEVICES", "JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"];

#[derive(Clone, Debug, Default)]
pub(crate) struct VerbsSettings {
    /// Devices that lead from each rank to each other.
    pub(crate) devices: Option<Matrix>,
    /// Nothing but this service of devices.
    pub(crate) service: Option<QueueService>,
}

impl TransportSettings {
    /// Sets the devices that lead from each rank to each other: a file's path or the JSON itself.
    pub fn set_devices(&mut self, matrix: &str) -> Result<(), ConfigError> {
        self.verbs.devices = Some(Matrix::read(matrix)?);
        Ok(())
    }

    /// Returns the number of ranks of such a matrix.
    pub fn ranks_of_devices(matrix: &str) -> Result<usize, ConfigError> {
        Ok(Matrix::read(matrix)?.rows.len())
    }
}

/// This process's peer connections, by rank, and the devices that lead to them.
#[derive(Debug)]
pub(crate) struct Rdma {
    me: usize,
    size: usize,
    devices: Devices,
    only: Option<QueueService>,
    slots: Slots,
    made: Mutex<HashMap<usize, Arc<Handle>>>,
    /// Peers to whom it was tried in vain.
    vain: Mutex<HashSet<usize>>,
}

impl Transport for Rdma {
    type Settings = VerbsSettings;

    fn about() -> About {
        About { is_private: false, first_for: Some("jaccl"), ..About::PRIVATE }
    }

    fn read(settings: &mut VerbsSettings, vars: &dyn Variables) -> Result<()> {
        for name in DEVICES {
            if let Some(text) = vars.text(name)? {
                let read = Matrix::read(&text);
                settings.devices = Some(read.map_err(|why| {
                    let e = vars.refusal(name, &text, &why.to_string());
                    why.place(e)
                })?);
                // The first that is set decides.
                break;
            }
        }
        if let Some(text) = vars.text("COMITY_RDMA")? {
            settings.service = Some(match text.as_str() {
                "rc" => QueueService::Reliable,
                "uc" => QueueService::Unreliable,
                _ => return Err(vars.refusal("COMITY_RDMA", &text, "is neither rc nor uc")),
            });
        }
        Ok(())
    }

    fn check(settings: &VerbsSettings, size: usize) -> Result<()> {
        match settings.devices.as_ref().filter(|m| size > 1 && m.rows.len() != size) {
            None => Ok(()),
            Some(Matrix { rows }) => {
                let rows = rows.len();
                let why =
                    format!("the device matrix has {rows} rows, but the size is {size}; they must be equal");
                Err(ConfigError::new(why).with_key("devices").into())
            }
        }
    }

    fn note(_: &VerbsSettings, _: Seen<'_>) -> TransportInfo {
        let note = |works, why, devices| TransportInfo { works, why, devices };
        match Verbs::find().map(Verbs::survey) {
            // On one line.
            Err(_) => note(false, "no library with RDMA verbs can be loaded".into(), Vec::new()),
            Ok(all) if all.is_empty() => note(false, "this host has no RDMA device".into(), all),
            Ok(all) => {
                let usable = all.iter().filter(|(_, at)| at.is_ok()).count();
                let why = format!("with ranks that a device leads to; {usable} of {} can be used", all.len());
                note(usable > 0, why, all)
            }
        }
    }

    fn find(settings: &VerbsSettings, job: &JobInfo) -> Result<Option<Self>> {
        if job.sealed || job.size == 1 {
            return Ok(None);
        }
        let devices = match &settings.devices {
            Some(matrix) => Devices::Named(matrix.rows.get(job.rank).cloned().unwrap_or_default()),
            None => Devices::Found,
        };
        match (devices.check(), job.wanted) {
            (Ok(()), _) => Ok(Some(Self::new(job.rank, job.size, devices, settings.service))),
            // A row of holes is what the user said.
            (Err(reason), Some((LinkKind::Rdma, backend))) if settings.devices.is_none() => {
                Err(ErrorKind::Unavailable { backend, reason }.into())
            }
            (Err(why), _) => {
                tracing::debug!(why, "no RDMA");
                Ok(None)
            }
        }
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        let may_lead = match &self.devices {
            Devices::Named(row) => row.get(pair.peer).is_some_and(|names| !names.is_empty()),
            Devices::Found => true,
        };
        let leads = may_lead && !lock(&self.vain).contains(&pair.peer);
        leads.then_some(()).ok_or_else(|| "no device leads to it".into())
    }

    fn existing(&self, pair: &Pair<'_>) -> Option<NewLink> {
        self.link(pair.peer, pair.group_id)
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Attempt {
        let mut words = Vec::new();
        let targets: Vec<_> = connector.candidates().all.iter().map(|c| Target::Tcp(c.at)).collect();
        let works =
            connector.answering(&targets).map_err(|miss| Missed { at: "its addresses".into(), miss })?;
        if works.is_empty() {
            words.push("none of its addresses answers".into());
        }
        for addr in works.into_iter().filter_map(|i| targets.get(i)) {
            let stream = match connector.dial(addr.clone(), 0, 1) {
                Ok((Stream::Tcp(stream), _)) => stream,
                Ok((Stream::Unix(_), _)) => continue,
                Err(Miss::Refused(Refusal::No(why))) => {
                    words.push(why.to_string());
                    break;
                }
                Err(miss) => return Err(Missed { at: addr.to_string(), miss }),
            };
            match self.path(pair, stream, connector)? {
                Connected::Not(why) => words.push(why),
                reached => return Ok(reached),
            }
            // Named devices do not depend on the address.
            if matches!(self.devices, Devices::Named(_)) {
                break;
            }
        }
        words.dedup();
        lock(&self.vain).insert(pair.peer);
        Ok(Connected::Not(words.join("; ")))
    }

    fn accept(&self, pair: &Pair<'_>, connections: Vec<Connection>, connector: &dyn Connector) -> Attempt {
        for (stream, _) in connections {
            if let Stream::Tcp(stream) = stream {
                return self.path(pair, stream, connector);
            }
        }
        Ok(Connected::Not("it brought no TCP connection".into()))
    }
}

impl Rdma {
    /// Make paths beside a connection of the pair.
    fn path(&self, pair: &Pair<'_>, stream: TcpStream, connector: &dyn Connector) -> Attempt {
        // WAIT(until): paths being made, to the join deadline
        match self.establish(pair.peer, stream, connector.until(), &|fd, until| connector.wait(fd, until)) {
            Ok(Ok(())) => Ok(match self.existing(pair) {
                Some(link) => Connected::Link(link),
                None => Connected::Not("the path was taken down again".into()),
            }),
            Ok(Err(why)) => {
                tracing::warn!(rank = pair.peer, why, "no RDMA path to a rank; another link is taken");
                Ok(Connected::Not(why))
            }
            Err(error) => Err(Missed { at: "its RDMA device".into(), miss: Miss::Stop(error) }),
        }
    }

    /// Makes the table of rank `me` among `size`; limited to one service, if so.
    pub(crate) fn new(me: usize, size: usize, devices: Devices, only: Option<QueueService>) -> Self {
        Self {
            me,
            size,
            devices,
            only,
            slots: Slots::DEFAULT,
            made: Mutex::default(),
            vain: Mutex::default(),
        }
    }

    /// A group's link to `peer`, if there is a peer connection.
    pub(crate) fn link(&self, peer: usize, group_id: u64) -> Option<io::Result<Box<dyn Link>>> {
        let peer_connection = lock(&self.made).get(&peer).cloned()?;
        Some(VerbsLink::new(peer_connection, group_id).map(|link| Box::new(link) as Box<dyn Link>))
    }

    /// Make the peer connection to `peer` beside this connection; the reason if there is none, which the peer knows too.
    pub(crate) fn establish(
        &self,
        peer: usize,
        stream: TcpStream,
        until: Instant,
        wait: WaitReadable<'_>,
    ) -> Result<Result<(), String>> {
        let (held, why) = self.open(peer, stream.local_addr().ok().map(|a| a.ip()));
        let ours = Ours { held, why, slots: self.slots, only: self.only, lower: self.me < peer };
        Ok(match establish(stream, ours, until, wait)? {
            Ok(handle) => {
                lock(&self.made).insert(peer, Arc::new(handle));
                Ok(())
            }
            Err(why) => Err(why),
        })
    }

    /// The devices that lead to `peer`, and why there are not more.
    fn open(&self, peer: usize, local: Option<IpAddr>) -> (Vec<Arc<Held>>, String) {
        let mut held = Vec::new();
        let mut why = Vec::new();
        let names = match &self.devices {
            Devices::Named(row) => {
                let names = row.get(peer).cloned().unwrap_or_default();
                if names.is_empty() {
                    why.push("the device matrix has no device for this pair".to_owned());
                }
                names
            }
            Devices::Found => match Verbs::find() {
                Ok(verbs) => {
                    let mut names = verbs.devices();
                    names.retain(|name| match Device::look(name) {
                        Ok(at) => at.ip().map(IpAddr::from) == local,
                        Err(t) => {
                            why.push(t.to_string());
                            false
                        }
                    });
                    if names.is_empty() {
                        let at = local.map_or_else(|| "of the connection".to_owned(), |ip| ip.to_string());
                        why.push(format!("no device has the address {at}"));
                    }
                    names
                }
                Err(e) => {
                    why.push(e.to_owned());
                    Vec::new()
                }
            },
        };
        for name in names {
            match Held::open(&name, self.size - 1) {
                Ok(h) => held.push(Arc::new(h)),
                Err(t) => why.push(t.to_string()),
            }
        }
        (held, why.join("; "))
    }

    /// Over shorter slots, for tests.
    #[cfg(test)]
    pub(super) fn with_slots(mut self, slots: Slots) -> Self {
        self.slots = slots;
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// By peer: the devices that lead to it; none where the pair goes another way.
    Named(Vec<Vec<String>>),
    /// The one with the address that the pair's connection has here.
    Found,
}

impl Devices {
    /// Checks that RDMA may be used at all here; the reason if not.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Self::Named(row) = self {
            return match row.iter().any(|names| !names.is_empty()) {
                true => Verbs::find().map(drop).map_err(str::to_owned),
                false => Err("the device matrix names no device of this rank".into()),
            };
        }
        // Most hosts have none, and need not load a library to know it.
        let named = std::env::var_os("COMITY_VERBS").is_some_and(|v| !v.is_empty());
        if cfg!(target_os = "linux") && !named && !Path::new("/sys/class/infiniband").exists() {
            return Err("this host has no RDMA device (/sys/class/infiniband)".into());
        }
        let verbs = Verbs::find()?;
        match verbs.devices().is_empty() {
            true => Err(format!("{} lists no device", verbs.name())),
            false => Ok(()),
        }
    }
}
