//! Checks of a configuration as a whole, before anything is opened.

use super::{Insecure, Launcher, MAX_TIMEOUT, MeetingPoint, Protection, Settings, Trust, bad, bad_value};
use crate::{LinkKind, MAX_SIZE, Result};
use std::{net::IpAddr, sync::Once};

impl Settings {
    /// Checks the configuration as a whole, before anything is opened.
    pub fn check(&self) -> Result<()> {
        check_place("size", self.size, "rank", self.rank)?;
        if let Some((rank, size)) = self.local {
            check_place("local size", size, "local rank", rank)?;
            if size > self.size {
                let why = format!("local size {size} is larger than the whole size {}", self.size);
                return bad_value("local size", size, why);
            }
        }
        self.check_meeting()?;
        self.check_values()?;
        self.check_trust()?;
        self.check_links()?;
        self.transports.check(self.size)
    }

    pub(super) fn check_values(&self) -> Result<()> {
        check_name("job", "COMITY_JOB", &self.job)?;
        for ((what, key), limit) in [
            (("timeout", "COMITY_TIMEOUT"), self.timeout),
            (("join_timeout", "COMITY_JOIN_TIMEOUT"), self.join_timeout),
        ] {
            if limit.is_zero() || limit > MAX_TIMEOUT {
                let words =
                    format!("{what} ({key}) is {limit:?}; allowed is more than 0 and at most ten years");
                return bad_value(key, format_args!("{limit:?}"), words);
            }
        }
        self.detection.check()?;
        self.check_ports()?;
        for (i, addr) in self.addrs.iter().enumerate() {
            if let Err(why) = check_own(addr.ip()) {
                return bad_value("COMITY_ADDRS", addr, format!("addrs (COMITY_ADDRS) holds {addr}: {why}"));
            }
            if self.addrs[..i].contains(addr) {
                return bad_value("COMITY_ADDRS", addr, format!("addrs (COMITY_ADDRS) holds {addr} twice"));
            }
        }
        self.host.iter().try_for_each(|host| check_name("host name", "COMITY_HOST", host))
    }
}

/// Checks that the meeting point, the key, the links and the devices fit the rest.
impl Settings {
    /// By what this rank will know the others; an error that says what to do if by nothing.
    pub fn trust(&self) -> Result<Trust<'_>> {
        match (&self.key, self.insecure, &self.meeting_point) {
            (Some(key), ..) => Ok(Trust::Held(key)),
            (None, Insecure::No, MeetingPoint::Exchange(_)) => Ok(Trust::Exchange),
            (None, Insecure::No, _) => bad(self.no_key()),
            (None, ..) => {
                note_once();
                Ok(Trust::Nobody)
            }
        }
    }

    fn no_key(&self) -> String {
        let channel = match self.evidence.launcher {
            Launcher::OpenMpi => "with MASTER_ADDR set, mpirun has no way to hand one over",
            Launcher::Slurm => "srun has no way to hand one over, but srun --mpi=pmi2 has",
            Launcher::Mlx => "MLX's hostfile has no place for one",
            Launcher::Explicit => "the program gave none",
            _ => "there is no launcher to hand one over",
        };
        format!(
            "rank {} of {} has no job key ({channel}): start the job with `comity launch`, or give every rank the same key: COMITY_KEY_FILE names a file of 32 random bytes that only you can read (head -c 32 /dev/urandom > key; chmod 600 key); or say that none is wanted: COMITY_INSECURE=1, or `comity ... --insecure`",
            self.rank, self.size
        )
    }

    /// Checks a configuration's key before anything is opened.
    fn check_trust(&self) -> Result<()> {
        if self.insecure == Insecure::No {
            return Ok(());
        }
        if self.key.is_some() {
            return bad("a key is given and insecure (COMITY_INSECURE) is asked for; drop one of them");
        }
        if self.secure == Protection::Data {
            return bad(
                "secure data (COMITY_SECURE=data) needs a key, but insecure (COMITY_INSECURE) is asked for; drop one of them",
            );
        }
        Ok(())
    }

    fn check_meeting(&self) -> Result<()> {
        match &self.meeting_point {
            MeetingPoint::Alone
            | MeetingPoint::Host(_)
            | MeetingPoint::Hostfile(_)
            | MeetingPoint::Exchange(_)
                if self.joins =>
            {
                bad(
                    "a process that joins while the job runs needs the address of the job's store: set COMITY_STORE=host:port",
                )
            }
            MeetingPoint::Hostfile(ranks) if ranks.len() != self.size => {
                bad(format!("the hostfile lists {} ranks, but the size is {}", ranks.len(), self.size))
            }
            MeetingPoint::Alone if self.size > 1 => bad(format!(
                "{} ranks need a place to meet: set COMITY_STORE=host:port, or give the configuration a store, a rendezvous, a hostfile or an exchange",
                self.size
            )),
            MeetingPoint::Store(all) | MeetingPoint::Host(all) => all.iter().try_for_each(|at| match at {
                // Of several another may do.
                at if all.iter().all(|at| at.lacks_interface().is_some()) => {
                    bad(format!("ranks cannot meet at {at}: {}", at.lacks_interface().unwrap_or_default()))
                }
                at if at.port() == 0 => {
                    bad(format!("ranks cannot meet at {at}: port 0 stands for any port; give a real one"))
                }
                at if at.is_unspecified() => bad(format!(
                    "ranks cannot meet at {at}: nobody can connect to it; give an address of that host"
                )),
                _ => Ok(()),
            }),
            _ => Ok(()),
        }
    }

    fn check_ports(&self) -> Result<()> {
        let Some((first, last)) = self.ports.filter(|(first, last)| *first == 0 || first > last) else {
            return Ok(());
        };
        let range = format!("{first}-{last}");
        let why = "is no range; give the first and the last port, such as 7000-7031";
        bad_value("COMITY_PORTS", &range, format!("ports (COMITY_PORTS) {range} {why}"))
    }

    fn check_links(&self) -> Result<()> {
        if self.links.is_empty() {
            let all: Vec<_> = LinkKind::choices().map(LinkKind::name).collect();
            return bad_value(
                "COMITY_LINKS",
                "",
                format!("links names no kind of link; name one or several of {}", all.join(", ")),
            );
        }
        let wanted = self.backend.link();
        if let Some(kind) = wanted.filter(|k| !self.links.has(*k)) {
            return bad(format!(
                "the backend {} and links (COMITY_LINKS) without {kind} do not go together; drop one of them",
                self.backend
            ));
        }
        let is_open = |kind: &LinkKind| kind.about().is_none_or(|a| !a.is_private);
        let open = wanted
            .filter(is_open)
            .or_else(|| self.links.iter().next().filter(|_| self.links.iter().all(|k| is_open(&k))));
        if let Some(kind) = open.filter(|_| self.secure == Protection::Data) {
            return bad(format!(
                "secure data (COMITY_SECURE=data) and {} do not go together: what a device sends is not encrypted; drop one of them",
                kind.medium()
            ));
        }
        Ok(())
    }
}

fn note_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // It was asked for.
        tracing::info!("no job key: whoever can connect and knows the job's name can join");
    });
}

fn check_name(what: &str, key: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
        let why = format!("{what} ({key}) {name:?} is not a name of 1 to 255 printable bytes");
        return bad_value(key, name, why);
    }
    Ok(())
}

fn check_place(size_is: &str, size: usize, rank_is: &str, rank: usize) -> Result<()> {
    if size == 0 || size > MAX_SIZE {
        return bad_value(size_is, size, format!("{size_is} is {size}; allowed is 1 to {MAX_SIZE}"));
    }
    if rank >= size {
        let why = format!("{rank_is} is {rank}, but {size_is} is {size}; allowed is 0 to {}", size - 1);
        return bad_value(rank_is, rank, why);
    }
    Ok(())
}

/// Checks that a process can listen on `ip` and announce it to a peer.
fn check_own(ip: IpAddr) -> Result<(), &'static str> {
    if ip.is_unspecified() {
        return Err(
            "it stands for every address, and Comity listens only where it is told; name the address",
        );
    }
    if ip.is_multicast() || ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
        return Err("it belongs to many hosts; name an address of this host");
    }
    Ok(())
}
