//! Meeting of the ranks of all hosts, as the hosts get its addresses, and as other libraries read them.
use super::plan::FleetPlan;
use super::supervise::Fleet;
use crate::host::meet;
use crate::protocol::Go;
use comity::{Key, tools::Store};
use std::net::{IpAddr, SocketAddr};

/// More networks than a machine has.
const WAYS: usize = 16;

/// Names and what they stand for.
type Named = Vec<(String, String)>;

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
    pub(super) fn meeting(&self) -> Go {
        let mut next = self.plan.starting_port;
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
                    for _ in 0..self.plan.connections_per_ip {
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
        let key = (!self.plan.insecure).then(|| *self.key.bytes());
        Go { job: self.job.clone(), store, master, vars, files, restarted: Vec::new(), key }
    }

    /// The addresses of the store: those by which hosts know this machine, and those of hosts between, where a rank passes on what comes.
    fn store_addresses(&self) -> Vec<SocketAddr> {
        let mut all = self.store.addrs().to_vec();
        if self.plan.meet_at.is_none() {
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
        let mut all: Vec<IpAddr> = Vec::new();
        for ip in self.connections.iter().filter_map(|c| c.ready.as_ref()?.from) {
            if !all.contains(&ip) && all.len() < WAYS {
                all.push(ip);
            }
        }
        all
    }

    /// Hosts may know this machine by different addresses, as in a triangle of cables: the store listens at all of them.
    pub(super) fn listen_everywhere(&mut self) {
        let first = self.store.addr().ip();
        let also: Vec<IpAddr> = self.seen_from().into_iter().filter(|ip| *ip != first).collect();
        if also.is_empty() || self.plan.meet_at.is_some() {
            return;
        }
        let identity = (&self.key, self.job.as_str());
        if *self.plan.ports.end() > 0 {
            // It holds the port.
            let elsewhere = (meet::loopback(), 0).into();
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
    fn for_mlx(&self, ring: &[Vec<String>], master: SocketAddr) -> (Named, Named) {
        let mut files = Vec::new();
        let mut vars = Vec::new();
        let mut var = |name: &str, value: String| vars.push((name.to_owned(), value));
        let backend = self.plan.backend;
        let rows: Vec<&str> = self.plan.hosts.iter().filter_map(|h| h.host.rdma.as_deref()).collect();
        let matrix = !rows.is_empty() && rows.len() == self.plan.world;
        if matrix {
            files.push(("MLX_IBV_DEVICES".into(), format!("[{}]", rows.join(","))));
        }
        match backend {
            "nccl" => {
                let port = self.plan.nccl_port.unwrap_or_else(|| master.port());
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
