//! RDMA as a transport: which devices a rank may use, wires made beside a TCP connection of the pair, settings, and what `comity info`
//! says.

use super::{Devices, Edges, Matrix};
use crate::{
    ConfigError, Error, Result,
    channel::{Miss, Refusal, Stream, Target},
    sys::verbs::{Service, Verbs},
    transport::{
        About, Connection, Job, LinkKind, Made, Missed, Note, Pair, Reached, Seen, Transport, Variables, Way,
    },
};
use std::net::TcpStream;

/// Names of the device matrix; JACCL's own go before MLX's.
const DEVICES: [&str; 3] = ["COMITY_DEVICES", "JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"];

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// What leads from each rank to each other.
    pub(crate) devices: Option<Matrix>,
    /// Nothing but this service of devices.
    pub(crate) service: Option<Service>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rdma(Edges);

impl Transport for Rdma {
    type Settings = Settings;

    fn about() -> About {
        About {
            by_default: true,
            between_processes: true,
            within_host: false,
            shares_memory: false,
            is_private: false,
        }
    }

    fn read(settings: &mut Settings, vars: &dyn Variables) -> Result<()> {
        for name in DEVICES {
            // The first that is set decides.
            if settings.devices.is_none()
                && let Some(text) = vars.text(name)?
            {
                settings.devices =
                    Some(Matrix::read(&text).map_err(|why| vars.refusal(name, &text, &why))?);
            }
        }
        if let Some(text) = vars.text("COMITY_RDMA")? {
            settings.service = Some(match text.as_str() {
                "rc" => Service::Reliable,
                "uc" => Service::Unreliable,
                _ => return Err(vars.refusal("COMITY_RDMA", &text, "is neither rc nor uc")),
            });
        }
        Ok(())
    }

    fn check(settings: &Settings, size: usize) -> Result<()> {
        match settings.devices.as_ref().filter(|m| size > 1 && m.rows.len() != size) {
            None => Ok(()),
            Some(Matrix { rows }) => {
                let rows = rows.len();
                let why = format!("the device matrix has {rows} rows, but the size is {size}; they must be equal");
                Err(ConfigError::new(why).with_key("devices").into())
            }
        }
    }

    fn note(_: &Settings, _: Seen<'_>) -> Note {
        let note = |works, why, devices| Note { works, why, devices };
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

    fn find(settings: &Settings, job: &Job) -> Result<Option<Self>> {
        if job.sealed || job.size == 1 {
            return Ok(None);
        }
        let devices = match &settings.devices {
            Some(matrix) => Devices::Named(matrix.rows.get(job.rank).cloned().unwrap_or_default()),
            None => Devices::Found,
        };
        match (devices.check(), job.wanted) {
            (Ok(()), _) => Ok(Some(Self(Edges::new(job.rank, job.size, devices, settings.service)))),
            // A row of holes is what the user said.
            (Err(reason), Some((LinkKind::Rdma, backend))) if settings.devices.is_none() => {
                Err(Error::Unavailable { backend, reason })
            }
            (Err(why), _) => {
                tracing::debug!(why, "no RDMA");
                Ok(None)
            }
        }
    }

    fn leads(&self, pair: &Pair<'_>) -> Result<(), String> {
        self.0.leads_to(pair.peer).then_some(()).ok_or_else(|| "no device leads to it".into())
    }

    fn standing(&self, pair: &Pair<'_>) -> Option<Made> {
        self.0.link(pair.peer, pair.context)
    }

    fn connect(&self, pair: &Pair<'_>, way: &dyn Way) -> Result<Reached, Missed> {
        let mut words = Vec::new();
        for addr in &pair.theirs.addrs {
            let stream = match way.dial(Target::Tcp(*addr), 0, 1) {
                Ok((Stream::Tcp(stream), _)) => stream,
                Ok((Stream::Unix(_), _)) => continue,
                Err(Miss::Refused(Refusal::No(why))) => {
                    words.push(why);
                    break;
                }
                Err(miss) => return Err(Missed { at: addr.to_string(), miss }),
            };
            match self.wire(pair, stream, way)? {
                Reached::Not(why) => words.push(why),
                reached => return Ok(reached),
            }
            // Named devices do not depend on the address.
            if self.0.are_named() {
                break;
            }
        }
        words.dedup();
        self.0.give_up(pair.peer);
        Ok(Reached::Not(words.join("; ")))
    }

    fn accept(
        &self,
        pair: &Pair<'_>,
        connections: Vec<Connection>,
        way: &dyn Way,
    ) -> Result<Reached, Missed> {
        for (stream, _) in connections {
            if let Stream::Tcp(stream) = stream {
                return self.wire(pair, stream, way);
            }
        }
        Ok(Reached::Not("it brought no TCP connection".into()))
    }
}

impl Rdma {
    /// Make wires beside a connection of the pair.
    fn wire(&self, pair: &Pair<'_>, stream: TcpStream, way: &dyn Way) -> Result<Reached, Missed> {
        // WAIT(until): wires being made, to the join deadline
        match self.0.raise(pair.peer, stream, way.until(), &|fd, until| way.wait(fd, until)) {
            Ok(Ok(())) => Ok(match self.standing(pair) {
                Some(link) => Reached::Link(link),
                None => Reached::Not("the wire was taken down again".into()),
            }),
            Ok(Err(why)) => {
                tracing::warn!(rank = pair.peer, why, "no RDMA wire to a rank; another link is taken");
                Ok(Reached::Not(why))
            }
            Err(error) => Err(Missed { at: "its RDMA device".into(), miss: Miss::Stop(error) }),
        }
    }
}
