//! Commands that give the cables of each host addresses, and the commands that undo them.
//!
//! A setup may have been cut off in its middle, and a host that restarts forgets all of it. So each step is looked up in what the host says of
//! itself: what is not there is undone already, and what somebody else changed since is left to people.
use crate::addresses::AddressPlan;
use crate::addresses::Subnet;
use crate::facts::{HostFacts, HostSystem};
use crate::graph::Cluster;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// The most that the kernel takes.
const MOST_PATHS: usize = 8;

/// Returns whether this is a command of the few kinds that steps are made of. An undo file may come from anybody, and `ip` alone could
/// start any program.
pub fn is_step(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ip", "link", "set", "dev", ..] | ["ip", "addr", "add" | "del", _, "dev", _] => true,
        ["ip", "addr", "add", _, "dev", _, "nodad"] => true,
        ["ifconfig", nic, "inet" | "inet6" | "addm" | "deletem", ..] => !nic.starts_with('-'),
        ["route", "-n", "add" | "delete", "-host", ..] => true,
        ["ip", "mptcp", "limits", "set", "subflow", _, "add_addr_accepted", _] => true,
        ["ip", "mptcp", "endpoint", "add", _, "dev", _, "id", _, "signal"] => true,
        ["ip", "mptcp", "endpoint", "delete", "id", _] => true,
        _ => false,
    }
}

/// A command, as a list of arguments, and its undo command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupStep {
    pub run: Vec<String>,
    /// Command that undoes it; empty where none is needed.
    pub undo: Vec<String>,
}

/// The steps of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSetup {
    /// The host, as ssh takes it.
    pub ssh: String,
    /// Identity of the host: [`HostFacts::identity`].
    pub identity: String,
    /// In their order.
    pub steps: Vec<SetupStep>,
    /// The interface and the address that are there once all is done.
    pub gives: Vec<(String, Subnet)>,
}

/// The steps of every host that has some.
pub fn setup(cluster: &Cluster, plan: &AddressPlan) -> Vec<HostSetup> {
    let mut all = Vec::new();
    for (host, facts) in cluster.hosts.iter().enumerate() {
        let mut steps = Vec::new();
        let mut gives = Vec::new();
        for (cable, own, other) in plan.of_host(cluster, host) {
            let kept = cluster.cables.iter().zip(&plan.cables).any(|(c, at)| c == cable && at.kept);
            if kept {
                continue;
            }
            let nic = &cable.ends(host).0.nic;
            match facts.system {
                HostSystem::Macos => macos(facts, nic, own, other, &mut steps),
                _ => linux(facts, nic, own, &mut steps),
            }
            gives.push((nic.clone(), own));
        }
        multipath(cluster, plan, host, &mut steps);
        if !steps.is_empty() {
            all.push(HostSetup { ssh: facts.ssh.clone(), identity: facts.identity.clone(), steps, gives });
        }
    }
    all
}

fn step(run: &[&str], undo: &[&str]) -> SetupStep {
    let words = |w: &[&str]| w.iter().map(|w| (*w).to_owned()).collect();
    SetupStep { run: words(run), undo: words(undo) }
}

fn linux(facts: &HostFacts, nic: &str, own: Subnet, steps: &mut Vec<SetupStep>) {
    let at = own.to_string();
    let found = facts.nic(nic);
    if let Some(bridge) = found.and_then(|n| n.bridge.as_deref()) {
        // In a bridge an interface has no address of its own.
        steps.push(step(
            &["ip", "link", "set", "dev", nic, "nomaster"],
            &["ip", "link", "set", "dev", nic, "master", bridge],
        ));
    }
    if found.is_some_and(|n| !n.is_up) {
        steps
            .push(step(&["ip", "link", "set", "dev", nic, "up"], &["ip", "link", "set", "dev", nic, "down"]));
    }
    let undo = ["ip", "addr", "del", &at, "dev", nic];
    steps.push(match own.ip {
        IpAddr::V4(_) => step(&["ip", "addr", "add", &at, "dev", nic], &undo),
        // While the system looks for duplicates, for a second or two, nobody can listen there.
        IpAddr::V6(_) => step(&["ip", "addr", "add", &at, "dev", nic, "nodad"], &undo),
    });
}

/// Let connections use all cables between two hosts: each host offers its end of each, and takes the other's.
fn multipath(cluster: &Cluster, plan: &AddressPlan, host: usize, steps: &mut Vec<SetupStep>) {
    let Some(now) = cluster.hosts[host].multipath.as_ref().filter(|m| m.is_enabled) else { return };
    let nics = cluster.doubled(host);
    let ends = plan.of_host(cluster, host).map(|(cable, own, _)| (&cable.ends(host).0.nic, own));
    let offered: Vec<_> = ends.filter(|(nic, _)| nics.contains(&nic.as_str())).collect();
    if offered.is_empty() {
        return;
    }
    let limits = |subflows: u64, accepted: u64| {
        let subflows = subflows.to_string();
        let accepted = accepted.to_string();
        ["ip", "mptcp", "limits", "set", "subflow", &subflows, "add_addr_accepted", &accepted]
            .map(String::from)
            .to_vec()
    };
    let wanted = [now.subflows, now.accepted].map(|n| n.max(offered.len().min(MOST_PATHS) as u64));
    if wanted != [now.subflows, now.accepted] {
        steps.push(SetupStep { run: limits(wanted[0], wanted[1]), undo: limits(now.subflows, now.accepted) });
    }
    let mut free = (1u64..256).filter(|id| now.endpoints.iter().all(|(used, _)| used != id));
    for (nic, own) in offered.iter().filter(|(_, own)| now.endpoints.iter().all(|(_, ip)| *ip != own.ip)) {
        let Some(id) = free.next().map(|id| id.to_string()) else { return };
        let ip = own.ip.to_string();
        steps.push(step(
            &["ip", "mptcp", "endpoint", "add", &ip, "dev", nic, "id", &id, "signal"],
            &["ip", "mptcp", "endpoint", "delete", "id", &id],
        ));
    }
}

pub(crate) fn macos(facts: &HostFacts, nic: &str, own: Subnet, other: Subnet, steps: &mut Vec<SetupStep>) {
    if let Some(bridge) = facts.nic(nic).and_then(|n| n.bridge.as_deref()) {
        // A bridge over cables in a ring sends broadcasts round for ever, and RDMA does not work on its members.
        steps.push(step(&["ifconfig", bridge, "deletem", nic], &["ifconfig", bridge, "addm", nic]));
    }
    if own.ip.is_ipv6() {
        let ip = own.ip.to_string();
        let prefix = own.prefix.to_string();
        steps.push(step(
            &["ifconfig", nic, "inet6", &ip, "prefixlen", &prefix, "alias"],
            &["ifconfig", nic, "inet6", &ip, "-alias"],
        ));
        return;
    }
    let ip = own.ip.to_string();
    let mask = own.netmask().to_string();
    let peer = other.ip.to_string();
    steps.push(step(
        &["ifconfig", nic, "inet", &ip, "netmask", &mask, "alias"],
        &["ifconfig", nic, "inet", &ip, "-alias"],
    ));
    steps.push(step(
        &["route", "-n", "add", "-host", &peer, "-interface", nic],
        &["route", "-n", "delete", "-host", &peer],
    ));
}

/// The command as a person would type it.
pub fn typed(words: &[String], root: bool) -> String {
    let plain =
        |w: &String| w.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@%+".contains(c)) && !w.is_empty();
    let shown: Vec<String> = words
        .iter()
        .map(|w| if plain(w) { w.clone() } else { format!("'{}'", w.replace('\'', "'\\''")) })
        .collect();
    format!("{}{}", if root { "sudo " } else { "" }, shown.join(" "))
}

/// All commands, host by host, for people.
pub fn in_words(all: &[HostSetup]) -> String {
    let mut text = String::new();
    for host in all {
        text += &format!("{}:\n", host.ssh);
        host.steps.iter().for_each(|s| text += &format!("  {}\n", typed(&s.run, true)));
    }
    text
}

/// Steps that were done, so that they can be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoFile {
    /// The form of this file.
    pub comity_undo: u32,
    /// Steps that were done, host by host.
    pub hosts: Vec<HostSetup>,
}

/// The form that this version writes and reads.
const FORM: u32 = 1;

/// Work that is left to do on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoWork {
    /// The commands, in the order in which they are run.
    pub commands: Vec<Vec<String>>,
    /// Steps that are undone already, for people.
    pub notes: Vec<String>,
}

/// State in which a step is found.
enum StepState {
    InForce,
    Undone,
    /// Somebody else changed what it did, in words.
    Changed(String),
}

impl UndoFile {
    /// Makes a file of these hosts.
    pub fn new(hosts: Vec<HostSetup>) -> Self {
        Self { comity_undo: FORM, hosts }
    }

    /// Reads a file that this program wrote.
    ///
    /// # Errors
    /// It is of another form, or has commands that this program does not write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = serde_json::from_str(text).map_err(|e| format!("is no undo file of comity: {e}"))?;
        if file.comity_undo != FORM {
            return Err(format!("has form {}; this version reads {FORM}", file.comity_undo));
        }
        let all = file.hosts.iter().flat_map(|h| &h.steps).flat_map(|s| [&s.run, &s.undo]);
        let strange = { all }.find(|words| !words.is_empty() && !is_step(words));
        if let Some(words) = strange {
            return Err(format!("has a command that comity does not write: {words:?}"));
        }
        Ok(file)
    }
}

impl HostSetup {
    /// Finds the steps that are still to be undone on this host, the last step first.
    ///
    /// # Errors
    /// Somebody else changed what a step did, so what was there before cannot be known; or the host does not say what it has.
    pub fn left(&self, facts: &HostFacts) -> Result<UndoWork, String> {
        let ssh = &self.ssh;
        // Who does not say what it has must not be taken for one that has nothing.
        let is_told = !facts.nics.is_empty() && !facts.identity.trim().is_empty();
        if !is_told || facts.problems.iter().any(|p| p.about == "survey") {
            let why = facts.problems.first().map(|p| format!(": {}: {}", p.why, p.mend)).unwrap_or_default();
            return Err(format!("host {ssh} does not say which addresses it has{why}"));
        }
        if self.identity != facts.identity {
            let note =
                format!("host {ssh} was started anew since, or is another host: what was set up is gone");
            return Ok(UndoWork { commands: Vec::new(), notes: vec![note] });
        }
        let mut work = UndoWork::default();
        for step in self.steps.iter().rev().filter(|s| !s.undo.is_empty()) {
            match self.state(step, facts) {
                StepState::InForce => work.commands.push(step.undo.clone()),
                StepState::Undone => {
                    work.notes.push(format!("host {ssh}: undone already: {}", typed(&step.run, false)));
                }
                StepState::Changed(what) => {
                    return Err(format!(
                        "host {ssh}: {what}, so somebody changed it since: undo the rest by hand"
                    ));
                }
            }
        }
        Ok(work)
    }

    fn state(&self, step: &SetupStep, facts: &HostFacts) -> StepState {
        let words: Vec<&str> = step.run.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["ip", "addr", "add", address, "dev", nic, ..] => given(facts, nic, Subnet::parse(address)),
            ["ifconfig", nic, "inet", ip, "netmask", mask, ..] => {
                let prefix = mask.parse::<Ipv4Addr>().ok().map(|m| m.to_bits().count_ones() as u8);
                given(facts, nic, ip.parse().ok().zip(prefix).map(|(ip, p)| Subnet::new(ip, p)))
            }
            ["ifconfig", nic, "inet6", ip, "prefixlen", prefix, ..] => {
                let both = ip.parse::<IpAddr>().ok().zip(prefix.parse().ok());
                given(facts, nic, both.map(|(ip, p)| Subnet::new(ip, p)))
            }
            ["ip", "link", "set", "dev", nic, "up"] => self.raised(facts, nic),
            ["ip", "link", "set", "dev", nic, "nomaster"] => {
                freed(facts, nic, step.undo.last().map(String::as_str))
            }
            ["ifconfig", bridge, "deletem", nic] => freed(facts, nic, Some(bridge)),
            ["route", "-n", "add", "-host", peer, ..] => {
                let there = peer.parse::<IpAddr>().ok().map(|ip| Subnet::new(ip, 128));
                let is_there = there.is_some_and(|to| facts.in_use.contains(&to));
                if is_there { StepState::InForce } else { StepState::Undone }
            }
            ["ip", "mptcp", "endpoint", "add", ip, .., "id", id, _] => {
                offered(facts, ip.parse().ok(), id.parse().ok())
            }
            ["ip", "mptcp", "limits", "set", _, subflows, _, accepted] => {
                let now = facts.multipath.as_ref().map(|m| (m.subflows.to_string(), m.accepted.to_string()));
                let is_ours = now.is_some_and(|(s, a)| s == *subflows && a == *accepted);
                if is_ours { StepState::InForce } else { StepState::Undone }
            }
            // Of a kind that this version does not look up: it is tried.
            _ => StepState::InForce,
        }
    }

    /// An interface that was turned on is turned off again, unless somebody has given it another address since.
    fn raised(&self, facts: &HostFacts, name: &str) -> StepState {
        let own = |a: &Subnet| self.gives.iter().any(|(nic, given)| nic == name && given == a);
        let Some(nic) = facts.nic(name).filter(|n| n.is_up) else { return StepState::Undone };
        let other = nic.addresses.iter().find(|a| !a.is_link_local() && !own(a));
        match other {
            Some(a) => StepState::Changed(format!("{name} has another address, {a}")),
            None => StepState::InForce,
        }
    }
}

/// An address that was given to an interface.
fn given(facts: &HostFacts, name: &str, address: Option<Subnet>) -> StepState {
    // It is of our own file, where it is always one.
    let Some(address) = address else { return StepState::InForce };
    let all = facts.nics.iter().flat_map(|n| n.addresses.iter().map(move |a| (n, a)));
    let there: Vec<_> = all.filter(|(_, a)| a.ip == address.ip).collect();
    if there.iter().any(|(n, a)| n.name == name && **a == address) {
        return StepState::InForce;
    }
    match there.first() {
        Some((n, a)) => StepState::Changed(format!("{} has {a}, not {name} the address {address}", n.name)),
        None => StepState::Undone,
    }
}

/// An address that connections were offered.
fn offered(facts: &HostFacts, ip: Option<IpAddr>, id: Option<u64>) -> StepState {
    let (Some(ip), Some(id)) = (ip, id) else { return StepState::InForce };
    match facts.multipath.iter().flat_map(|m| &m.endpoints).find(|(used, _)| *used == id) {
        None => StepState::Undone,
        Some((_, now)) if *now == ip => StepState::InForce,
        Some((_, now)) => StepState::Changed(format!("MPTCP's endpoint {id} is {now}, not {ip}")),
    }
}

/// An interface that was taken out of a bridge.
fn freed(facts: &HostFacts, name: &str, bridge: Option<&str>) -> StepState {
    let Some(nic) = facts.nic(name) else { return StepState::Undone };
    match nic.bridge.as_deref() {
        None => StepState::InForce,
        now if now == bridge => StepState::Undone,
        Some(now) => StepState::Changed(format!("{name} is in the bridge {now}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::AddressPlan;
    use crate::graph::Cluster;
    use crate::read::facts_of;
    use crate::samples::{cluster, linux, macs};

    fn words(all: &[&str]) -> Vec<Vec<String>> {
        all.iter().map(|w| w.split(' ').map(String::from).collect()).collect()
    }

    /// A host whose cable was down and in a bridge, with these addresses now.
    fn host(address: &str) -> (HostSetup, HostFacts) {
        let step = |run: &str, undo: &str| SetupStep {
            run: words(&[run]).remove(0),
            undo: words(&[undo]).remove(0),
        };
        let facts = facts_of("a", &linux("a", &[("eth0", "10.0.0.2/24", 1000), ("ab", address, 1000)]));
        let at = Subnet::parse("10.93.0.1/30").unwrap();
        let setup = HostSetup {
            ssh: "a".into(),
            identity: facts.identity.clone(),
            steps: vec![
                step("ip link set dev ab nomaster", "ip link set dev ab master br0"),
                step("ip link set dev ab up", "ip link set dev ab down"),
                step("ip addr add 10.93.0.1/30 dev ab", "ip addr del 10.93.0.1/30 dev ab"),
            ],
            gives: vec![("ab".into(), at)],
        };
        (setup, facts)
    }

    #[test]
    fn what_is_there_is_undone_the_last_step_first() {
        let (setup, facts) = host("10.93.0.1/30");
        let work = setup.left(&facts).unwrap();
        let wanted =
            ["ip addr del 10.93.0.1/30 dev ab", "ip link set dev ab down", "ip link set dev ab master br0"];
        assert_eq!((work.commands, work.notes.len()), (words(&wanted), 0));
    }

    #[test]
    fn steps_that_never_ran_and_addresses_that_are_gone_are_undone_already() {
        let (setup, mut facts) = host("");
        let work = setup.left(&facts).unwrap();
        assert_eq!(work.commands, words(&["ip link set dev ab down", "ip link set dev ab master br0"]));
        assert_eq!(work.notes, ["host a: undone already: ip addr add 10.93.0.1/30 dev ab"]);
        (facts.nics[1].is_up, facts.nics[1].bridge) = (false, Some("br0".into()));
        let work = setup.left(&facts).unwrap();
        assert_eq!((work.commands.len(), work.notes.len()), (0, 3));
        facts.nics.pop();
        assert_eq!(setup.left(&facts).unwrap().commands.len(), 0, "an interface that is gone");
    }

    #[test]
    fn a_host_that_was_started_anew_has_nothing_to_undo() {
        let (mut setup, facts) = host("10.93.0.1/30");
        setup.identity = "another boot".into();
        let work = setup.left(&facts).unwrap();
        assert_eq!((work.commands.len(), work.notes.len()), (0, 1));
        assert!(work.notes[0].contains("host a was started anew since"), "{work:?}");
    }

    #[test]
    fn a_host_that_does_not_tell_is_not_taken_for_one_that_has_nothing() {
        let (setup, facts) = host("10.93.0.1/30");
        let text = linux("a", &[("eth0", "10.0.0.2/24", 1000), ("ab", "10.93.0.1/30", 1000)]);
        let begin = text.find("@@ addr").unwrap();
        let broken = [
            facts_of("a", &text[..begin]),
            facts_of("a", &format!("{}@@ addr\nno\n@@! 127\n@@ end\n", &text[..begin])),
            HostFacts { identity: " ".into(), ..facts },
        ];
        for facts in broken {
            let why = setup.left(&facts).unwrap_err();
            assert!(why.contains("host a does not say which addresses it has"), "{why}");
        }
    }

    #[test]
    fn what_somebody_changed_is_left_to_people() {
        let refused = |setup: &HostSetup, facts: &HostFacts| setup.left(facts).unwrap_err();
        let (setup, facts) = host("10.93.0.1/24");
        let why = refused(&setup, &facts);
        assert!(why.contains("ab has 10.93.0.1/24, not ab the address 10.93.0.1/30"), "{why}");
        let (setup, mut facts) = host("");
        facts.nics[1].bridge = Some("br7".into());
        assert!(refused(&setup, &facts).contains("ab is in the bridge br7"));
        let (setup, facts) = host("10.5.0.1/24");
        assert!(refused(&setup, &facts).contains("ab has another address, 10.5.0.1/24"));
        let (setup, mut facts) = host("");
        facts.nics[0].addresses.push(Subnet::parse("10.93.0.1/30").unwrap());
        assert!(refused(&setup, &facts).contains("eth0 has 10.93.0.1/30"));
    }

    #[test]
    fn the_steps_of_a_mac_are_looked_up_too() {
        let mut all = macs(2, &[(0, 1)]);
        all[0].bridge = true;
        let before = cluster(&all);
        let steps = setup(&before, &AddressPlan::of(&before).unwrap());
        // Nothing ran yet.
        assert_eq!(steps[0].left(&before.hosts[0]).unwrap().commands.len(), 0);
        let mut after = before.hosts[0].clone();
        let nic = after.nics.iter_mut().find(|n| n.name == "en2").unwrap();
        (nic.bridge, nic.addresses) = (None, vec![Subnet::parse("10.93.0.1/30").unwrap()]);
        after.in_use.push(Subnet::parse("10.93.0.2").unwrap());
        let wanted = [
            "route -n delete -host 10.93.0.2",
            "ifconfig en2 inet 10.93.0.1 -alias",
            "ifconfig bridge0 addm en2",
        ];
        assert_eq!(steps[0].left(&after).unwrap().commands, words(&wanted));
    }

    #[test]
    fn both_ends_of_two_cables_are_offered_to_connections_and_taken_back() {
        let nics = |last: u8| [format!("10.93.0.{last}/30"), format!("10.93.0.{}/30", last + 4)];
        let host = |name, last| {
            let [ab, cd] = nics(last);
            let text = linux(name, &[("ab", &ab, 1000), ("cd", &cd, 1000)]);
            let said = "1\nadd_addr_accepted 0 subflows 2 \n10.93.0.1 id 1 signal dev ab \n";
            facts_of(name, &text.replace("@@ yama\n", &format!("@@ mptcp\n{said}\n@@ yama\n")))
        };
        let mut cluster = Cluster::of(vec![host("a", 1), host("b", 2)], &[]);
        let steps = setup(&cluster, &AddressPlan::of(&cluster).unwrap());
        let run: Vec<_> =
            steps.iter().map(|s| s.steps.iter().map(|s| s.run.join(" ")).collect::<Vec<_>>()).collect();
        let limits = "ip mptcp limits set subflow 2 add_addr_accepted 2";
        // The first host offers one of its ends already.
        assert_eq!(run[0], [limits, "ip mptcp endpoint add 10.93.0.5 dev cd id 2 signal"]);
        assert_eq!(
            run[1][1..],
            [
                "ip mptcp endpoint add 10.93.0.2 dev ab id 2 signal",
                "ip mptcp endpoint add 10.93.0.6 dev cd id 3 signal"
            ]
        );
        UndoFile::parse(&serde_json::to_string(&UndoFile::new(steps.clone())).unwrap()).unwrap();
        assert_eq!(steps[0].left(&cluster.hosts[0]).unwrap().commands.len(), 0);
        let now = cluster.hosts[0].multipath.as_mut().unwrap();
        now.accepted = 2;
        now.endpoints.push((2, "10.93.0.5".parse().unwrap()));
        let wanted = ["ip mptcp endpoint delete id 2", "ip mptcp limits set subflow 2 add_addr_accepted 0"];
        assert_eq!(steps[0].left(&cluster.hosts[0]).unwrap().commands, words(&wanted));
        cluster.hosts[0].multipath.as_mut().unwrap().endpoints[1].1 = "10.5.0.1".parse().unwrap();
        assert!(steps[0].left(&cluster.hosts[0]).unwrap_err().contains("endpoint 2 is 10.5.0.1"));
        // Off, or one cable: nothing is done.
        cluster.hosts[1].multipath.as_mut().unwrap().is_enabled = false;
        cluster.cables.truncate(1);
        assert_eq!(setup(&cluster, &AddressPlan::of(&cluster).unwrap()), []);
    }
}
