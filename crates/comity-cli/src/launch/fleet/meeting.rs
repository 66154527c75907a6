//! Where the ranks of all hosts meet, as the hosts are told it, and what other libraries read of that.
use super::supervise::Fleet;
use crate::launch::wire::Go;
use std::net::SocketAddr;

/// Names and what they stand for.
type Named = Vec<(String, String)>;

impl Fleet {
    pub(super) fn meeting(&self) -> Go {
        let mut next = self.plan.starting_port;
        let (mut ring, mut master) = (Vec::new(), None);
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
        let key = (!self.plan.insecure).then(|| *self.key.bytes());
        Go { job: self.job.clone(), store: self.store.addr(), master, vars, files, key }
    }

    /// What MLX's backends read: files that variables lead to, and variables.
    fn for_mlx(&self, ring: &[Vec<String>], master: SocketAddr) -> (Named, Named) {
        let (mut files, mut vars) = (Vec::new(), Vec::new());
        let mut var = |name: &str, value: String| vars.push((name.to_owned(), value));
        let backend = self.plan.backend.as_str();
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
