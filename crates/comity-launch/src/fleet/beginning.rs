//! Before the ranks run: every host is waited for, gets the files that it is to have, has the same programs as the others, and hears
//! where the ranks meet, also as other libraries read it.
use super::connection::{HostConnection, HostPhase};
use super::plan::FleetPlan;
use super::supervise::Fleet;
use crate::address::{distinct, loopback};
use crate::fleet::stage;
use crate::host::output::OutputStream;
use crate::machine::{Event, Problem, USAGE};
use crate::protocol::{FleetOrder, Go};
use comity::Key;
use comity::tools::Store;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Time that a host has to answer.
const CONNECT: Duration = Duration::from_secs(30);
/// When it is said for the first time which hosts are waited for, and how often after that.
const PATIENCE_SHOWN: Duration = Duration::from_secs(2);
/// On a terminal, where the line is written over.
const UNSEEN: Duration = Duration::from_millis(300);

/// More networks than a machine has.
const WAYS: usize = 16;

/// Names and what they stand for.
type NamedValues = Vec<(String, String)>;

/// The store of a job's ranks, at the same port of all these addresses where the user wants certain ports. The first address is a must.
pub(super) fn open_store(
    plan: &FleetPlan,
    (key, job): (&Key, &str),
    first: IpAddr,
    also: &[IpAddr],
) -> comity::Result<Store> {
    let begin = |port: u16| {
        let also: Vec<SocketAddr> = also.iter().map(|ip| (*ip, port).into()).collect();
        Store::start_at((first, port).into(), &also, plan.world, key, job, plan.join)
    };
    let last = *plan.ports.end();
    let others = plan.ports.clone().take_while(|port| *port < last);
    // The last one tells why, where none is free.
    others.filter_map(|port| begin(port).ok()).next().map_or_else(|| begin(last), Ok)
}

impl Fleet {
    /// Until every host has said whether it can run its part, or the job is to end.
    pub(super) fn gather(&mut self) {
        let since = Instant::now();
        let mut shown = String::new();
        let mut say = since + PATIENCE_SHOWN;
        while self.machine.is_gathering() {
            let open = |c: &HostConnection| matches!(c.phase, HostPhase::Connecting | HostPhase::Preparing);
            let waiting: Vec<usize> =
                (0..self.connections.len()).filter(|i| open(&self.connections[*i])).collect();
            let is_late = |i: &usize| self.connections[*i].is_late(since, CONNECT);
            let late: Vec<_> = waiting.iter().copied().filter(is_late).collect();
            let problems: Vec<_> = late.iter().map(|host| self.lateness(*host)).collect();
            if !problems.is_empty() {
                self.tell(Event::HostsLate { problems });
            }
            let names: Vec<_> = waiting.iter().map(|i| self.plan.hosts[*i].name()).collect();
            let line = format!("waiting for {}", names.join(", "));
            let live = OutputStream::Err.is_live();
            if Instant::now() >= say && !live {
                self.output.say(&line);
                say = Instant::now() + PATIENCE_SHOWN * 3;
            }
            if live && since.elapsed() > UNSEEN {
                let line = format!("comity launch: {line} ({} s)", since.elapsed().as_secs());
                if line != shown {
                    self.output.progress(OutputStream::Err, line.as_bytes());
                    shown = line;
                }
            }
            self.step(Some(if live { Instant::now() + UNSEEN } else { say }));
        }
    }

    /// A host that was lost, and is tried again, is given up where it does not answer either.
    pub(super) fn miss_the_late(&mut self) {
        for host in 0..self.connections.len() {
            let connection = &self.connections[host];
            let opens = matches!(connection.phase, HostPhase::Connecting | HostPhase::Preparing);
            if opens && connection.is_late(connection.heard, CONNECT) {
                let why = format!("it did not answer within {} s", CONNECT.as_secs());
                self.lose(host, &why);
            }
        }
    }

    fn lateness(&self, host: usize) -> Problem {
        let name = self.plan.hosts[host].name();
        let seconds = CONNECT.as_secs();
        let why = format!("host {name}: did not answer within {seconds} s: is it up, and can ssh reach it?");
        Problem::usage(why)
    }

    /// A host has no program of this version: it gets this one, if that runs there.
    pub(super) fn give_program(&mut self, host: usize, system: &str) {
        let own = self.plan.program.as_ref().filter(|_| stage::runs_on(system));
        let copy = own.and_then(|own| Some((own.open().ok()?, own.size)));
        if let Some((_, size)) = &copy {
            let name = self.plan.hosts[host].name();
            let size = *size as f64 / 1e6;
            let version = crate::VERSION;
            self.output.say(&format!(
                "host {name}: has no comity {version}, and gets a copy of this program ({size:.0} MB, in ~/.cache/comity)"
            ));
        }
        self.connections[host].answer_lack(copy);
    }

    /// A host lacks this file, from there on.
    pub(super) fn give(&mut self, host: usize, file: u32, at: u64) {
        let Some(file) = self.plan.stage.get(file as usize) else { return };
        match stage::piece(file, at) {
            Ok(bytes) => {
                if at == 0 && self.plan.job.verbose {
                    self.output.say(&format!("host {}: gets {}", self.plan.hosts[host].name(), file.name));
                }
                self.connections[host].staging = true;
                self.connections[host].send(&FleetOrder::Piece(bytes));
            }
            Err(e) => {
                let why = format!("--stage {}: {e}", file.name);
                self.connections[host].phase = HostPhase::Lost;
                self.connections[host].close();
                self.cannot_begin(host, why, USAGE);
            }
        }
    }

    /// Programs and scripts of one name that are not the same everywhere.
    pub(super) fn differences(&self) -> Vec<Problem> {
        if self.plan.fleet.mixed_programs {
            return Vec::new();
        }
        let mut found: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
        for (connection, host) in self.connections.iter().zip(&self.plan.hosts) {
            let Some(ready) = &connection.ready else { continue };
            for (name, digest) in &ready.digests {
                // Machines of another kind have programs of their own.
                let kind = if name.ends_with(".py") { "" } else { &ready.system };
                found.entry((name, kind)).or_default().entry(digest).or_default().push(host.name());
            }
        }
        let differ = found.iter().filter(|(_, contents)| contents.len() > 1);
        let said = differ.map(|((name, _), contents)| {
            let short = |digest: &str| digest.chars().take(8).collect::<String>();
            let who: Vec<_> =
                contents.iter().map(|(digest, hosts)| format!("{} on {}", short(digest), hosts.join(", "))).collect();
            let why = format!(
                "'{name}' is not the same on all hosts: {}; copy one to all (--stage {name}), or say --mixed-programs",
                who.join("; ")
            );
            Problem::usage(why)
        });
        said.collect()
    }

    pub(super) fn meeting(&self) -> Go {
        let mut next = self.plan.fleet.starting_port;
        let mut ring = Vec::new();
        let mut master = None;
        for (connection, host) in self.connections.iter().zip(&self.plan.hosts) {
            let Some(ready) = &connection.ready else { continue };
            let mut ports = ready.ports.iter().copied();
            let ips = if host.host.ips.is_empty() { vec![ready.at] } else { host.host.ips.clone() };
            let first = ports.next().unwrap_or_default();
            master = master.or_else(|| Some(SocketAddr::new(*ips.first()?, first)));
            for _ in 0..host.part.size {
                let mut own = Vec::new();
                for ip in &ips {
                    for _ in 0..self.plan.fleet.connections_per_ip {
                        let port = next.or_else(|| ports.next()).unwrap_or_default();
                        next = next.map(|p| p.saturating_add(1));
                        own.push(SocketAddr::new(*ip, port).to_string());
                    }
                }
                ring.push(own);
            }
        }
        let master = master.unwrap_or_else(|| self.store.addr());
        let (files, vars) = self.for_mlx(&ring, master);
        let store = self.store_addresses();
        let key = (!self.plan.job.terms.insecure).then(|| *self.key.bytes());
        Go { job: self.job.clone(), store, master, vars, files, restarted: Vec::new(), key }
    }

    /// The addresses of the store: those by which hosts know this machine, and those of hosts between, where a rank passes on what comes.
    fn store_addresses(&self) -> Vec<SocketAddr> {
        let mut all = self.store.addrs().to_vec();
        if self.plan.meet_at().is_none() {
            for ip in self.seen_from() {
                if !all.iter().any(|a| a.ip() == ip) {
                    all.push(SocketAddr::new(ip, self.store.addr().port()));
                }
            }
        }
        all
    }

    /// From where hosts say that they were called.
    fn seen_from(&self) -> Vec<IpAddr> {
        let mut all = distinct(self.connections.iter().filter_map(|c| c.ready.as_ref()?.from));
        all.truncate(WAYS);
        all
    }

    /// Hosts may know this machine by different addresses, as in a triangle of cables: the store listens at all of them.
    pub(super) fn listen_everywhere(&mut self) {
        let first = self.store.addr().ip();
        let also: Vec<IpAddr> = self.seen_from().into_iter().filter(|ip| *ip != first).collect();
        if also.is_empty() || self.plan.meet_at().is_some() {
            return;
        }
        let identity = (&self.key, self.job.as_str());
        if *self.plan.ports.end() > 0 {
            // It holds the port.
            let elsewhere = (loopback(), 0).into();
            let world = self.plan.world;
            let join = self.plan.join;
            match Store::start(elsewhere, world, &self.key, &self.job, join) {
                Ok(store) => self.store = store,
                Err(_) => return,
            }
        }
        let begun = open_store(&self.plan, identity, first, &also);
        // Where that fails, the first address is there, or can be had again.
        match begun.or_else(|_| open_store(&self.plan, identity, first, &[])) {
            Ok(store) => {
                store.on_waiting(self.output.voice());
                self.store = store;
            }
            Err(e) => self.output.say(&format!("the ranks cannot meet: {e}")),
        }
    }

    /// Settings that MLX's backends read: files that variables lead to, and variables.
    fn for_mlx(&self, ring: &[Vec<String>], master: SocketAddr) -> (NamedValues, NamedValues) {
        let mut files = Vec::new();
        let mut vars = Vec::new();
        let mut var = |name: &str, value: String| vars.push((name.to_owned(), value));
        let backend = self.plan.job.backend_name();
        let rows: Vec<&str> = self.plan.hosts.iter().filter_map(|h| h.host.rdma.as_deref()).collect();
        let matrix = !rows.is_empty() && rows.len() == self.plan.world;
        if matrix {
            files.push(("MLX_IBV_DEVICES".into(), format!("[{}]", rows.join(","))));
        }
        match backend {
            "nccl" => {
                let port = self.plan.fleet.nccl_port.unwrap_or_else(|| master.port());
                var("NCCL_HOST_IP", master.ip().to_string());
                var("NCCL_PORT", port.to_string());
                var("MLX_WORLD_SIZE", self.plan.world.to_string());
            }
            _ if backend.starts_with("jaccl") => var("MLX_JACCL_COORDINATOR", master.to_string()),
            _ if self.plan.world > 1 => {
                files.push(("MLX_HOSTFILE".into(), serde_json::json!(ring).to_string()));
            }
            _ => {}
        }
        (files, vars)
    }
}
