//! Agreement of the launchers: how they come together, and the facts that all of them get.
use super::NodeRequest;
use super::addresses::{self, NodeAddresses};
use crate::address;
use crate::host::job::Job;
use crate::host::meet::{self, ReservedPort};
use crate::host::sys::host;
use crate::machine::{Problem, REFUSED, USAGE};
use crate::protocol::Go;
use crate::request::JobRequest;
use comity::tools::Store;
use comity::{Config, Group, Key, Protection};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Variables for ranks that hold for the launchers' own connections too.
const HEEDED: [&str; 6] = [
    "COMITY_ADDRS",
    "COMITY_INTERFACES",
    "COMITY_PORTS",
    "COMITY_RELAY",
    "COMITY_JOIN_TIMEOUT",
    "COMITY_KEY_FILE",
];
/// More than any node has to say.
const LONGEST_WORD: u64 = 1 << 20;
/// Number of ports that are tried for the store, where it listens at several addresses.
const TRIES: usize = 8;

/// Number of this node, and the place where the nodes meet.
#[derive(Clone, Debug)]
pub(super) struct NodeCall {
    pub(super) node: usize,
    pub(super) nodes: usize,
    /// `host:port`, or several with a comma between.
    pub(super) at: String,
    insecure: bool,
    join: Duration,
}

impl NodeCall {
    pub(super) fn check(job: &JobRequest, given: NodeRequest) -> Result<Self, Problem> {
        let usage = |why: String| Err(Problem::usage(why));
        let NodeRequest { nnodes: Some(nodes), node_rank: Some(node), rendezvous: Some(rendezvous) } = given
        else {
            return usage("--nnodes, --node-rank and --rendezvous go together".into());
        };
        let nodes = nodes as usize;
        let node = node as usize;
        if node >= nodes {
            return usage(format!("--node-rank {node}: there are {nodes} nodes (--nnodes), from 0"));
        }
        if !job.terms.insecure && std::env::var_os("COMITY_KEY_FILE").is_none() {
            return usage(
                "--nnodes: the launchers have no key by which they know each other: make one (`comity key new`), copy it to every node, and set COMITY_KEY_FILE there; or say --insecure on a network that you trust".into(),
            );
        }
        let at = addresses::places(&rendezvous).map_err(Problem::usage)?;
        Ok(Self { node, nodes, at, insecure: job.terms.insecure, join: meet::join_limit(&job.env) })
    }
}

/// Description that a node sends of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeWord {
    pub(super) host: String,
    /// Ranks here.
    pub(super) size: usize,
    /// Address at which its ranks can be reached.
    at: IpAddr,
    /// A port for rank 0 of torch, then one for each rank.
    ports: Vec<u16>,
    backend: String,
    secure: String,
    /// Seconds.
    grace: String,
    command: Vec<String>,
}

/// Facts that all nodes know when they agree.
pub(super) struct Agreement {
    pub(super) go: Go,
    /// On node 0.
    pub(super) store: Option<Store>,
    pub(super) kept: Vec<ReservedPort>,
    pub(super) group: Group,
    pub(super) words: Vec<NodeWord>,
    pub(super) first: usize,
    pub(super) world: usize,
}

/// This node's word, as far as it is known before the nodes meet.
pub(super) fn word(job: &Job) -> NodeWord {
    NodeWord {
        host: host(),
        size: job.size,
        at: address::loopback(),
        ports: Vec::new(),
        backend: job.request.backend_of_ranks().map_or("any", |b| b.name()).into(),
        secure: job.request.terms.secure.unwrap_or_default().name().into(),
        grace: job.request.grace().as_secs_f64().to_string(),
        command: job.request.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
    }
}

/// Meets the other launchers and comes to an agreement with them.
pub(super) fn agree(call: &NodeCall, mut word: NodeWord) -> Result<Agreement, Problem> {
    let mut node_addresses = NodeAddresses::look_up(call.node, &call.at).map_err(Problem::usage)?;
    let group = meet_nodes(call)?;
    let lost =
        |e: String| Problem::machine(format!("the launchers, here called ranks, lost each other: {e}"));
    if call.node != 0 {
        node_addresses.try_all();
    }
    let said: Vec<Vec<IpAddr>> = gather(&group, &node_addresses.ips()).map_err(lost)?;
    let (homes, elsewhere) = match call.node {
        0 => addresses::sort_out(&said, node_addresses.own),
        _ => (vec![node_addresses.own], Vec::new()),
    };
    let own = homes.first().copied().unwrap_or(node_addresses.own);
    word.at = own.ip();
    let kept: Vec<ReservedPort> = (0..=word.size)
        .map(|_| ReservedPort::on(own))
        .collect::<Result<_, _>>()
        .map_err(|e| Problem::machine(format!("cannot take a port at {}: {e}", word.at)))?;
    word.ports = kept.iter().map(|r| r.addr.port()).collect();
    let words: Vec<NodeWord> = gather(&group, &word).map_err(lost)?;
    let differ = differences(&words);
    if !differ.is_empty() {
        // All find the same, so nobody waits for this one.
        return Err(Problem::usage(differ.join("\ncomity launch: ")));
    }
    let first = words[..call.node].iter().map(|w| w.size).sum();
    let world = words.iter().map(|w| w.size).sum();
    let (store, go) = match call.node {
        0 => start(call, &words, world, &homes, &elsewhere).map(|(s, g)| (Some(s), Some(g)))?,
        _ => (None, None),
    };
    let told: Vec<Option<Go>> = gather(&group, &go).map_err(lost)?;
    let mut go = told.into_iter().next().flatten().ok_or_else(|| lost("node 0 said nothing".into()))?;
    if call.node != 0 {
        go.store = node_addresses.to_store(&go.store);
        // Torch's rank 0 listens at all addresses; each host knows it by the one that leads there.
        if let Some(first) = go.store.first() {
            go.master.set_ip(first.ip());
            if let (SocketAddr::V6(master), SocketAddr::V6(first)) = (&mut go.master, first) {
                master.set_scope_id(first.scope_id());
            }
        }
    }
    Ok(Agreement { go, store, kept, group, words, first, world })
}

fn meet_nodes(call: &NodeCall) -> Result<Group, Problem> {
    let at = &call.at;
    let join = || -> comity::Result<Group> {
        let var = |name: &str| HEEDED.contains(&name).then(|| std::env::var_os(name)).flatten();
        let config = Config::new(call.node, call.nodes).settings_from_vars(var)?.rendezvous(at)?;
        let config = config.job("comity-launchers").join_timeout(call.join);
        // The job's key goes over these connections.
        let config = if call.insecure { config.insecure() } else { config.secure(Protection::Data) };
        config.connect()
    };
    join().map_err(|e| Problem {
        why: format!(
            "the launchers of {} nodes, here called ranks, did not come together at {at}: {e}",
            call.nodes
        ),
        code: if matches!(e.kind(), comity::ErrorKind::Config(_)) { USAGE } else { REFUSED },
    })
}

/// Node 0 runs the store of the ranks, at all its addresses that others know: at the port behind the launchers', or any.
fn start(
    call: &NodeCall,
    words: &[NodeWord],
    world: usize,
    homes: &[SocketAddr],
    elsewhere: &[IpAddr],
) -> Result<(Store, Go), Problem> {
    let fail = |e: String| Problem::machine(format!("cannot start the ranks' store: {e}"));
    let (key, job) = meet::identity(call.insecure, false).map_err(|e| fail(e.to_string()))?;
    let store = open_store(call, homes, world, &key, &job).map_err(|e| fail(e.to_string()))?;
    let ring: Vec<[String; 1]> = words
        .iter()
        .flat_map(|w| w.ports.iter().skip(1).map(|port| [SocketAddr::new(w.at, *port).to_string()]))
        .collect();
    let files = match world {
        1 => Vec::new(),
        _ => vec![("MLX_HOSTFILE".into(), serde_json::json!(ring).to_string())],
    };
    let mut master = homes.first().copied().unwrap_or_else(|| store.addr());
    master.set_port(words.first().and_then(|w| w.ports.first().copied()).unwrap_or_default());
    let key = (!call.insecure).then(|| *key.bytes());
    let others = elsewhere.iter().map(|ip| SocketAddr::new(*ip, store.addr().port()));
    let told = store.addrs().iter().copied().chain(others).collect();
    let go = Go { job, store: told, master, vars: Vec::new(), files, restarted: Vec::new(), key };
    Ok((store, go))
}

/// The store at the same port of each address: the one behind the launchers', else any that is free at all of them.
fn open_store(
    call: &NodeCall,
    homes: &[SocketAddr],
    world: usize,
    key: &Key,
    job: &str,
) -> comity::Result<Store> {
    let port = call.at.rsplit_once(':').and_then(|(_, p)| p.parse::<u16>().ok()?.checked_add(1));
    let at = |port: u16| {
        let mut all = homes.to_vec();
        all.iter_mut().for_each(|at| at.set_port(port));
        all
    };
    let begin = |port: u16| {
        let all = at(port);
        // There is one at least.
        let first = all.first().copied().unwrap_or_else(|| (address::loopback(), port).into());
        Store::start_at(first, all.get(1..).unwrap_or_default(), world, key, job, call.join)
    };
    let is_whole = |store: &Store| store.addrs().len() == homes.len();
    if let Some(store) = port.and_then(|port| begin(port).ok()).filter(is_whole) {
        return Ok(store);
    }
    for _ in 0..TRIES {
        // One that is free at the first address may be taken at another.
        let port = begin(0)?.addr().port();
        if let Some(store) = begin(port).ok().filter(is_whole) {
            return Ok(store);
        }
    }
    begin(0)
}

/// Differences between the nodes' wishes: a sentence each.
fn differences(words: &[NodeWord]) -> Vec<String> {
    let Some((first, others)) = words.split_first() else { return Vec::new() };
    let mut all = Vec::new();
    for (node, word) in others.iter().enumerate().map(|(at, w)| (at + 1, w)) {
        for (what, ours, theirs) in [
            ("--backend", &first.backend, &word.backend),
            ("--secure", &first.secure, &word.secure),
            ("--grace", &first.grace, &word.grace),
            ("command", &first.command.join(" "), &word.command.join(" ")),
        ] {
            if ours != theirs {
                all.push(format!(
                    "the nodes differ: node 0 (host {}) has {what} {ours:?}, node {node} (host {}) has {theirs:?}; start all alike",
                    first.host, word.host
                ));
            }
        }
    }
    all
}

pub(super) fn gather<T: Serialize + for<'a> Deserialize<'a>>(
    group: &Group,
    own: &T,
) -> Result<Vec<T>, String> {
    let own = serde_json::to_vec(own).map_err(|e| e.to_string())?;
    let mut lengths = vec![0u64; group.size()];
    group.all_gather(&[own.len() as u64], &mut lengths).map_err(|e| e.to_string())?;
    if lengths.iter().any(|l| *l > LONGEST_WORD) {
        return Err("a node has too much to say".into());
    }
    let counts: Vec<usize> = lengths.iter().map(|l| *l as usize).collect();
    let mut all = vec![0u8; counts.iter().sum()];
    group.all_gather_v(&own, &mut all, &counts).map_err(|e| e.to_string())?;
    let mut rest = all.as_slice();
    let mut words = Vec::new();
    for count in counts {
        let (word, more) = rest.split_at_checked(count).ok_or("a word that was cut off")?;
        words.push(serde_json::from_slice(word).map_err(|e| format!("a word that cannot be read: {e}"))?);
        rest = more;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_said_with_both_hosts() {
        let word = |host: &str, command: &str| NodeWord {
            host: host.into(),
            size: 1,
            at: address::loopback(),
            ports: Vec::new(),
            backend: "any".into(),
            secure: "handshake".into(),
            grace: "3".into(),
            command: vec!["python".into(), command.into()],
        };
        let mut words = vec![word("a", "x.py"), word("b", "x.py"), word("c", "y.py")];
        words[1].backend = "nccl".into();
        let all = differences(&words);
        assert_eq!(all.len(), 2);
        assert!(
            all[0].contains("node 0 (host a) has --backend \"any\", node 1 (host b) has \"nccl\""),
            "{all:?}"
        );
        assert!(all[1].contains("\"python x.py\", node 2 (host c) has \"python y.py\""), "{all:?}");
    }
}
