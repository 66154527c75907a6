//! The hosts of a job: `--hosts a,b:4,user@c`.
use std::net::IpAddr;

/// A host, and what is particular to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetHost {
    /// Name as `ssh` takes it, with the user before it if one was given.
    pub name: String,
    /// Number of ranks, where the list or file gives it.
    pub slots: Option<usize>,
    pub port: Option<u16>,
    pub identity: Option<String>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub python: Option<String>,
    /// The addresses on which its ranks listen.
    pub ips: Vec<IpAddr>,
    /// MLX's row of RDMA devices, as JSON.
    pub rdma: Option<String>,
}

impl FleetHost {
    pub fn named(name: &str) -> Result<Self, String> {
        check_name(name)?;
        let ip = name.rsplit('@').next().and_then(|n| n.parse::<IpAddr>().ok());
        // Others cannot reach one at such an address.
        let ips = ip.filter(|ip| !ip.is_loopback()).into_iter().collect();
        Ok(Self { name: name.into(), ips, ..Self::default() })
    }

    /// This machine itself, which needs no `ssh`.
    pub fn is_here(&self) -> bool {
        matches!(self.name.as_str(), "localhost" | "127.0.0.1" | "::1")
    }
}

/// A name that can only mean a host, to `ssh` and to any command of its configuration.
pub fn check_name(name: &str) -> Result<(), String> {
    let why = if name.is_empty() {
        "the name is empty"
    } else if name.split('@').any(|part| part.starts_with('-')) {
        "a host's name does not begin with '-'; ssh would take it for an option"
    } else if name.split('@').any(str::is_empty) {
        "there is nothing before or after '@'"
    } else if name.len() > 255 {
        "the name is longer than 255 bytes"
    } else if !name.chars().all(|c| c.is_alphanumeric() || "._-:@%+".contains(c)) {
        "allowed are letters, digits and . _ - : @ % +; give what differs in ~/.ssh/config"
    } else {
        return Ok(());
    };
    Err(format!("host {name:?}: {why}"))
}

/// `--hosts`: the hosts, or everything that is wrong with them.
pub fn list(text: &str) -> Result<Vec<FleetHost>, Vec<String>> {
    let mut hosts: Vec<FleetHost> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for entry in text.split(',').map(str::trim) {
        match one(entry) {
            Ok(host) => hosts.push(host),
            Err(why) => wrong.push(format!("--hosts: {why}")),
        }
    }
    wrong.extend(twice(&hosts).map(|why| format!("--hosts: {why}")));
    if wrong.is_empty() { Ok(hosts) } else { Err(wrong) }
}

/// A sentence for each host that is named again.
pub(super) fn twice(hosts: &[FleetHost]) -> impl Iterator<Item = String> {
    let again = hosts.iter().enumerate().filter(|(i, h)| hosts[..*i].iter().any(|o| o.name == h.name));
    again.map(|(_, h)| format!("host {:?} is named twice; write {}:2 for two ranks there", h.name, h.name))
}

/// Files name a host once for each rank, as mlx.launch and Open MPI read them: neighbours of one name that are alike but for their
/// slots are one host with so many ranks.
pub(super) fn merged(hosts: Vec<FleetHost>) -> Vec<FleetHost> {
    let mut all: Vec<FleetHost> = Vec::with_capacity(hosts.len());
    for host in hosts {
        let alike = |last: &FleetHost| {
            let same = FleetHost { slots: last.slots, ..host.clone() };
            *last == same && host.rdma.is_none()
        };
        match all.last_mut().filter(|last| alike(last)) {
            Some(last) => last.slots = Some(last.slots.unwrap_or(1) + host.slots.unwrap_or(1)),
            None => all.push(host),
        }
    }
    // One that comes again later has as many ranks each time as it says there, or one.
    let again = |name: &str, all: &[FleetHost]| all.iter().filter(|h| h.name == name).count() > 1;
    let names: Vec<bool> = all.iter().map(|h| again(&h.name, &all)).collect();
    for (host, again) in all.iter_mut().zip(names) {
        if again {
            host.slots = host.slots.or(Some(1));
        }
    }
    all
}

fn one(entry: &str) -> Result<FleetHost, String> {
    let (name, count) = match entry.strip_prefix('[').and_then(|e| e.split_once(']')) {
        Some((name, rest)) => (name, rest.strip_prefix(':')),
        // More colons than one are an address of IPv6.
        None => match entry.split_once(':') {
            Some((name, count)) if !count.contains(':') => (name, Some(count)),
            _ => (entry, None),
        },
    };
    if count.is_none()
        && !entry.starts_with('[')
        && let Some((address, count)) = crate::address::end_of_address(name)
    {
        return Err(format!(
            "host {name:?} may be the address {name} or {count} ranks at {address}; write [{name}] or [{address}]:{count}"
        ));
    }
    let mut host = FleetHost::named(name)?;
    host.slots = count.map(|c| ranks(c).map_err(|why| format!("host {name:?}: {why}"))).transpose()?;
    Ok(host)
}

/// A number of ranks.
pub(super) fn ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=4096).contains(n));
    number.ok_or_else(|| format!("{text:?} is no number of ranks; allowed is 1 to 4096"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_users_and_counts() {
        let hosts = list("a,b:4,user@c, 10.0.0.7:2,fd00::1,[fd00::2]:3").unwrap();
        let short: Vec<_> = hosts.iter().map(|h| (h.name.as_str(), h.slots, h.ips.len())).collect();
        let wanted = [("a", None, 0), ("b", Some(4), 0), ("user@c", None, 0)];
        assert_eq!(short[..3], wanted);
        assert_eq!(short[3..], [("10.0.0.7", Some(2), 1), ("fd00::1", None, 1), ("fd00::2", Some(3), 1)]);
        assert!(list("localhost").unwrap()[0].is_here() && !hosts[0].is_here());
    }

    #[test]
    fn an_address_that_may_end_with_a_count_is_asked_about() {
        let why = list("fd00::3:2").unwrap_err();
        assert!(why[0].contains("write [fd00::3:2] or [fd00::3]:2"), "{why:?}");
        let hosts = list("[fd00::3:2],[fd00::4]:2,fd00::5,fd00::3:a2,me@fd00::7").unwrap();
        let short: Vec<_> = hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect();
        let all = ["fd00::3:2", "fd00::4", "fd00::5", "fd00::3:a2", "me@fd00::7"];
        assert_eq!(short, all.map(|n| (n, (n == "fd00::4").then_some(2))));
        assert!(list("me@fd00::3:2").is_err());
    }

    #[test]
    fn a_file_may_name_a_host_for_each_rank() {
        let named = |names: &[&str]| names.iter().map(|n| FleetHost::named(n).unwrap()).collect::<Vec<_>>();
        let short = |hosts: Vec<FleetHost>| -> Vec<_> {
            merged(hosts).into_iter().map(|h| (h.name, h.slots)).collect()
        };
        let a = |n| ("a".to_owned(), n);
        let b = |n| ("b".to_owned(), n);
        assert_eq!(short(named(&["a", "a", "b"])), [a(Some(2)), b(None)]);
        assert_eq!(short(named(&["a", "b", "a"])), [a(Some(1)), b(None), a(Some(1))]);
        let mut other = named(&["a", "a"]);
        other[1].env = vec![("A".into(), "1".into())];
        assert_eq!(short(other), [a(Some(1)), a(Some(1))]);
    }

    #[test]
    fn every_problem_is_told_and_no_name_is_an_option() {
        let wrong = list("-oProxyCommand=touch x,u@-l,b:0,c:many,,d,d,e;ls,f$(x)").unwrap_err();
        for (at, part) in
            [(0, "begin with '-'"), (1, "begin with '-'"), (2, "1 to 4096"), (3, "many"), (4, "empty")]
        {
            assert!(wrong[at].contains(part), "{wrong:?}");
        }
        assert!(wrong[5].contains("e;ls") && wrong[6].contains("f$(x)"), "{wrong:?}");
        assert!(wrong[7].contains("\"d\" is named twice; write d:2"), "{wrong:?}");
        assert_eq!(wrong.len(), 8);
    }
}
