//! How the launchers come together, and what they agree on.
use super::super::job::{Job, LaunchRefusal};
use super::super::meet::{self, Reserved};
use super::super::supervisor::host;
use super::super::wire::Go;
use super::super::{LaunchArgs, REFUSED, USAGE};
use comity::tools::Store;
use comity::{Config, Group, Secure};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// As torchrun's.
const PORT: u16 = 29400;
/// Of the variables for ranks, those that hold for the launchers' own connections.
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

/// Which node this is, and where the nodes meet.
#[derive(Clone, Debug)]
pub(super) struct NodeCall {
    pub(super) node: usize,
    pub(super) nodes: usize,
    /// `host:port`
    pub(super) at: String,
    insecure: bool,
    join: Duration,
}

impl NodeCall {
    pub(super) fn check(args: &LaunchArgs) -> Result<Self, LaunchRefusal> {
        let usage = |why: String| Err(LaunchRefusal::usage(why));
        let given = &args.node;
        let (Some(node), Some(nodes), Some(at)) = (given.node_rank, given.nnodes, &given.rendezvous) else {
            return usage("--nnodes, --node-rank and --rendezvous go together".into());
        };
        let (node, nodes) = (node as usize, nodes as usize);
        if node >= nodes {
            return usage(format!("--node-rank {node}: there are {nodes} nodes (--nnodes), from 0"));
        }
        if !args.insecure && std::env::var_os("COMITY_KEY_FILE").is_none() {
            return usage(
                "--nnodes: the launchers have no key by which they know each other: make one (`comity key new`), copy it to every node, and set COMITY_KEY_FILE there; or say --insecure on a network that you trust".into(),
            );
        }
        let at = address(at).map_err(LaunchRefusal::usage)?;
        Ok(Self { node, nodes, at, insecure: args.insecure, join: meet::join_limit(&args.env) })
    }
}

/// With the port that it has if none is given.
fn address(text: &str) -> Result<String, String> {
    let bad = || format!("--rendezvous {text:?} is not HOST or HOST:PORT, such as 10.0.0.1 or node0:{PORT}");
    let (host, port) = match text.parse::<IpAddr>() {
        Ok(ip) => return Ok(SocketAddr::new(ip, PORT).to_string()),
        Err(_) => match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|p| *p > 0).ok_or_else(bad)?),
            None => (text, PORT),
        },
    };
    if host.is_empty() || (host.contains(':') && !host.starts_with('[')) {
        return Err(bad());
    }
    Ok(format!("{host}:{port}"))
}

/// What a node says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeWord {
    pub(super) host: String,
    /// Ranks here.
    pub(super) size: usize,
    /// Where its ranks can be reached.
    at: IpAddr,
    /// One for rank 0 of torch, then one for each rank.
    ports: Vec<u16>,
    backend: String,
    secure: String,
    command: Vec<String>,
}

/// What all nodes know when they agree.
pub(super) struct Agreement {
    pub(super) go: Go,
    /// On node 0.
    pub(super) store: Option<Store>,
    pub(super) kept: Vec<Reserved>,
    pub(super) group: Group,
    pub(super) words: Vec<NodeWord>,
    pub(super) first: usize,
    pub(super) world: usize,
}

/// This node's word, as far as it is known before the nodes meet.
pub(super) fn word(_: &NodeCall, job: &Job) -> NodeWord {
    let args = job.args.iter().map(|a| a.to_string_lossy().into_owned());
    NodeWord {
        host: host(),
        size: job.size,
        at: meet::loopback(),
        ports: Vec::new(),
        backend: job.backend.map_or("any", |b| b.name()).into(),
        secure: if job.secure == Some(Secure::Data) { "data" } else { "handshake" }.into(),
        command: std::iter::once(job.name.to_string_lossy().into_owned()).chain(args).collect(),
    }
}

/// Meets the other launchers and comes to an agreement with them.
pub(super) fn agree(call: &NodeCall, mut word: NodeWord) -> Result<Agreement, LaunchRefusal> {
    let machine = |e: String| LaunchRefusal { text: e, code: REFUSED };
    word.at = own_address(call).map_err(LaunchRefusal::usage)?;
    let kept: Vec<Reserved> = (0..=word.size)
        .map(|_| Reserved::at(word.at))
        .collect::<Result<_, _>>()
        .map_err(|e| machine(format!("cannot take a port at {}: {e}", word.at)))?;
    word.ports = kept.iter().map(|r| r.addr.port()).collect();
    let group = meet_nodes(call)?;
    let lost = |e: String| machine(format!("the launchers, here called ranks, lost each other: {e}"));
    let words: Vec<NodeWord> = gather(&group, &word).map_err(lost)?;
    let differ = differences(&words);
    if !differ.is_empty() {
        // All find the same, so nobody waits for this one.
        return Err(LaunchRefusal { text: differ.join("\ncomity launch: "), code: USAGE });
    }
    let (first, world) =
        (words[..call.node].iter().map(|w| w.size).sum(), words.iter().map(|w| w.size).sum());
    let (store, go) = match call.node {
        0 => start(call, &words, world).map(|(s, g)| (Some(s), Some(g)))?,
        _ => (None, None),
    };
    let told: Vec<Option<Go>> = gather(&group, &go).map_err(lost)?;
    let go = told.into_iter().next().flatten().ok_or_else(|| lost("node 0 said nothing".into()))?;
    Ok(Agreement { go, store, kept, group, words, first, world })
}

fn meet_nodes(call: &NodeCall) -> Result<Group, LaunchRefusal> {
    let at = &call.at;
    let join = || -> comity::Result<Group> {
        let var = |name: &str| HEEDED.contains(&name).then(|| std::env::var_os(name)).flatten();
        let config = Config::new(call.node, call.nodes).settings_from_vars(var)?.rendezvous(at)?;
        let config = config.job("comity-launchers").join_timeout(call.join);
        // The job's key goes over these connections.
        let config = if call.insecure { config.insecure() } else { config.secure(Secure::Data) };
        config.connect()
    };
    join().map_err(|e| LaunchRefusal {
        text: format!(
            "the launchers of {} nodes, here called ranks, did not come together at {at}: {e}",
            call.nodes
        ),
        code: if matches!(e, comity::Error::Config(_)) { USAGE } else { REFUSED },
    })
}

/// An address of this host by which the others reach it.
fn own_address(call: &NodeCall) -> Result<IpAddr, String> {
    let at = &call.at;
    let fail = |e: String| format!("--rendezvous {at}: {e}");
    let all: Vec<SocketAddr> = at.to_socket_addrs().map_err(|e| fail(e.to_string()))?.collect();
    if call.node == 0 {
        let own = all.iter().find(|a| TcpListener::bind((a.ip(), 0)).is_ok());
        return own.map(SocketAddr::ip).ok_or_else(|| {
            fail(format!(
                "this is node 0, but {all:?} is no address of this host ({}); name one of its own",
                host()
            ))
        });
    }
    let mut last = "it has no address".to_owned();
    for to in all {
        let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        // No packet is sent: connecting only looks up the way.
        match UdpSocket::bind(any).and_then(|s| s.connect(to).and_then(|()| s.local_addr())) {
            Ok(own) => return Ok(own.ip()),
            Err(e) => last = e.to_string(),
        }
    }
    Err(fail(last))
}

/// Node 0 runs the store of the ranks: at the port behind the launchers', or any.
fn start(call: &NodeCall, words: &[NodeWord], world: usize) -> Result<(Store, Go), LaunchRefusal> {
    let fail = |e: String| LaunchRefusal::machine(format!("cannot start the ranks' store: {e}"));
    let (key, job) = meet::identity(call.insecure).map_err(|e| fail(e.to_string()))?;
    let at = words[0].at;
    let port = call.at.rsplit_once(':').and_then(|(_, p)| p.parse::<u16>().ok()?.checked_add(1));
    let begin = |port: u16| Store::start((at, port).into(), world, &key, &job, call.join);
    let store = begin(port.unwrap_or(0)).or_else(|_| begin(0)).map_err(|e| fail(e.to_string()))?;
    let ring: Vec<[String; 1]> = words
        .iter()
        .flat_map(|w| w.ports.iter().skip(1).map(|port| [SocketAddr::new(w.at, *port).to_string()]))
        .collect();
    let files = match world {
        1 => Vec::new(),
        _ => vec![("MLX_HOSTFILE".into(), serde_json::json!(ring).to_string())],
    };
    let master = SocketAddr::new(at, words[0].ports.first().copied().unwrap_or_default());
    let key = (!call.insecure).then(|| *key.bytes());
    let go = Go { job, store: vec![store.addr()], master, vars: Vec::new(), files, key };
    Ok((store, go))
}

/// What nodes ask for that does not go together: a sentence each.
fn differences(words: &[NodeWord]) -> Vec<String> {
    let Some((first, others)) = words.split_first() else { return Vec::new() };
    let mut all = Vec::new();
    for (node, word) in others.iter().enumerate().map(|(at, w)| (at + 1, w)) {
        for (what, ours, theirs) in [
            ("--backend", &first.backend, &word.backend),
            ("--secure", &first.secure, &word.secure),
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

/// What each node says.
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
    fn a_place_to_meet_has_a_port() {
        for (text, at) in [
            ("node0", "node0:29400"),
            ("node0:7", "node0:7"),
            ("10.0.0.1", "10.0.0.1:29400"),
            ("fd00::1", "[fd00::1]:29400"),
            ("[fd00::1]:7", "[fd00::1]:7"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(at));
        }
        for text in ["", ":7", "a:0", "a:x", "a:b:7", "a:70000"] {
            assert!(address(text).unwrap_err().contains("--rendezvous"), "{text}");
        }
    }

    #[test]
    fn what_differs_is_said_with_both_hosts() {
        let word = |host: &str, command: &str| NodeWord {
            host: host.into(),
            size: 1,
            at: meet::loopback(),
            ports: Vec::new(),
            backend: "any".into(),
            secure: "handshake".into(),
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
