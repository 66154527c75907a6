//! The hosts of a job: `--hosts a,b:4,user@c`, and `--hostfile`: MLX's forms (a list, or an object with `hosts`), Open MPI's lines, and ours,
//! which adds keys to either.
//!
//! A file is read whole, and every problem is told with its line and key.
use crate::request::AskedBackend;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// More than any cluster's.
const LARGEST_FILE: u64 = 1 << 20;

/// Content of a hostfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetFile {
    pub hosts: Vec<FleetHost>,
    pub backend: Option<AskedBackend>,
    pub env: Vec<(String, String)>,
}

/// Reads a file; or everything that is wrong with it.
pub fn read(path: &Path) -> Result<FleetFile, Vec<String>> {
    let shown = path.display();
    let fail = |why: String| vec![format!("--hostfile {shown}: {why}")];
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| fail(e.to_string()))?;
    file.take(LARGEST_FILE + 1).read_to_end(&mut text).map_err(|e| fail(e.to_string()))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(fail(format!("is larger than {LARGEST_FILE} bytes, which no list of hosts is")));
    }
    let text = String::from_utf8(text).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        fail(format!("line {line}: is not UTF-8 text"))
    })?;
    parse(&text).map_err(|all| all.into_iter().flat_map(fail).collect())
}

/// The same of a text.
pub(super) fn parse(text: &str) -> Result<FleetFile, Vec<String>> {
    // Some editors put a mark before UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = HostfileReader { text, wrong: Vec::new(), file: FleetFile::default() };
    match text.trim_start().as_bytes().first() {
        None => reading.wrong.push("names no host".into()),
        Some(b'[' | b'{') if !begins_with_address(text) => reading.json(),
        Some(_) => reading.lines(),
    }
    let HostfileReader { mut wrong, mut file, .. } = reading;
    if file.hosts.is_empty() && wrong.is_empty() {
        wrong.push("names no host".into());
    }
    file.hosts = merged(file.hosts);
    if wrong.is_empty() { Ok(file) } else { Err(wrong) }
}

type Object<'a> = BTreeMap<String, &'a RawValue>;

struct HostfileReader<'a> {
    text: &'a str,
    wrong: Vec<String>,
    file: FleetFile,
}

impl<'a> HostfileReader<'a> {
    /// The line in which this piece of the text begins.
    fn line(&self, piece: &RawValue) -> usize {
        let at = (piece.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        1 + self.text.as_bytes().iter().take(at).filter(|&&b| b == b'\n').count()
    }

    fn problem(&mut self, at: &RawValue, key: &str, why: &str) {
        self.wrong.push(format!("line {}: {key}: {why}", self.line(at)));
    }

    fn json(&mut self) {
        if let Err(e) = serde_json::from_str::<serde::de::IgnoredAny>(self.text) {
            self.wrong.push(format!("is no JSON: {e}"));
            return;
        }
        if let Ok(list) = serde_json::from_str::<Vec<&RawValue>>(self.text) {
            return self.hosts(&list);
        }
        let Ok(object) = serde_json::from_str::<Object<'a>>(self.text) else { return };
        for (key, value) in &object {
            match key.as_str() {
                "hosts" => match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
                    Ok(list) => self.hosts(&list),
                    Err(_) => self.problem(value, "hosts", "is no list"),
                },
                "backend" => self.backend(value),
                "envs" | "env" => self.file.env = self.settings(value, key),
                key if is_comment(key) => {}
                key => self.problem(value, key, "is not known; known are hosts, backend, envs"),
            }
        }
        if !object.contains_key("hosts") {
            self.wrong.push("has no key hosts".into());
        }
    }

    fn backend(&mut self, value: &RawValue) {
        match self.string(value, "backend") {
            None => {}
            Some(name) if name.is_empty() => {}
            Some(name) => {
                self.file.backend = AskedBackend::named(&name);
                if self.file.backend.is_none() {
                    let known = AskedBackend::all().collect::<Vec<_>>().join(", ");
                    let why = format!("{name:?} is not known; known are {known}");
                    self.problem(value, "backend", &why);
                }
            }
        }
    }

    fn hosts(&mut self, list: &[&RawValue]) {
        for (at, item) in list.iter().enumerate() {
            let host = match item.get().as_bytes().first() {
                Some(b'"') => self.string(item, "hosts").and_then(|name| self.named(item, &name)),
                Some(b'{') => self.host(item, (at, list.len())),
                Some(b'[') => {
                    let why = format!(
                        "entry {at} is a list: this is a file for MLX_HOSTFILE, of addresses; a hostfile names hosts, as in {{\"ssh\": \"a\"}}"
                    );
                    self.problem(item, "hosts", &why);
                    return;
                }
                _ => {
                    self.problem(item, "hosts", &format!("entry {at} is neither an object nor a name"));
                    None
                }
            };
            self.file.hosts.extend(host);
        }
    }

    fn named(&mut self, at: &RawValue, name: &str) -> Option<FleetHost> {
        FleetHost::named(name).map_err(|why| self.problem(at, "ssh", &why)).ok()
    }

    /// The host at this place of so many; also of one that has no good name the rest is looked at.
    fn host(&mut self, item: &RawValue, place: (usize, usize)) -> Option<FleetHost> {
        let object: Object<'_> = serde_json::from_str(item.get()).ok()?;
        let ssh = object.get("ssh").or_else(|| object.get("host"));
        if ssh.is_none() {
            self.problem(item, "ssh", "is missing: the host's name as ssh takes it");
        }
        let name = ssh.and_then(|ssh| self.string(ssh, "ssh"));
        let named = ssh.zip(name.as_deref()).and_then(|(ssh, name)| self.named(ssh, name));
        let is_named = named.is_some();
        let name = name.unwrap_or_default();
        let mut host = named.unwrap_or_default();
        for (key, value) in &object {
            match key.as_str() {
                "ssh" | "host" => {}
                "ips" => {
                    let given = self.addresses(value);
                    if !given.is_empty() {
                        host.ips = given;
                    }
                }
                "rdma" => self.rdma(value, place, &mut host),
                "slots" => match ranks(value.get()) {
                    Ok(n) => host.slots = Some(n),
                    Err(why) => self.problem(value, key, &why),
                },
                "port" => match value.get().parse() {
                    Ok(port) if port > 0 => host.port = Some(port),
                    _ => self.problem(value, key, "is no port; allowed is 1 to 65535"),
                },
                "user" => {
                    if let (Some(user), true) = (self.string(value, key), is_named) {
                        let whole = format!("{user}@{name}");
                        host.name = self.named(value, &whole).map_or(host.name, |h| h.name);
                    }
                }
                "identity" => host.identity = self.string(value, key),
                "cwd" => host.cwd = self.string(value, key),
                "python" => host.python = self.string(value, key),
                "env" | "envs" => host.env.extend(self.settings(value, key)),
                "devices" => match devices(value.get()) {
                    Some(list) => host.env.push(("CUDA_VISIBLE_DEVICES".into(), list)),
                    None => self.problem(value, key, "is no list of devices, such as \"0,1\" or [0, 1]"),
                },
                key if is_comment(key) => {}
                key => self.problem(
                    value,
                    key,
                    "is not known; known are ssh, ips, rdma, slots, user, port, identity, env, cwd, python, devices",
                ),
            }
        }
        is_named.then_some(host)
    }

    fn rdma(&mut self, value: &RawValue, (at, count): (usize, usize), host: &mut FleetHost) {
        let cells = serde_json::from_str::<Vec<serde_json::Value>>(value.get());
        let known = |v: &serde_json::Value| {
            v.is_null() || v.is_string() || v.as_array().is_some_and(|a| a.iter().all(|d| d.is_string()))
        };
        match cells {
            Ok(cells) if cells.is_empty() => {}
            Ok(cells) if cells.len() == count && cells.get(at).is_some_and(|own| !own.is_null()) => {
                let why = format!("entry {at} is of this host itself, and must be null");
                self.problem(value, "rdma", &why);
            }
            Ok(cells) if cells.len() == count && cells.iter().all(known) => {
                host.rdma = Some(value.get().into())
            }
            Ok(cells) if cells.len() != count => {
                let why = format!("has {} entries, but there are {count} hosts", cells.len());
                self.problem(value, "rdma", &why);
            }
            _ => self.problem(value, "rdma", "is no list of null, a device, or a list of devices"),
        }
    }

    fn string(&mut self, value: &RawValue, key: &str) -> Option<String> {
        serde_json::from_str(value.get()).map_err(|_| self.problem(value, key, "is no text")).ok()
    }

    fn addresses(&mut self, value: &RawValue) -> Vec<IpAddr> {
        let Ok(list) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
            self.problem(value, "ips", "is no list of addresses");
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in list {
            match serde_json::from_str::<IpAddr>(item.get()) {
                Ok(ip) => all.push(ip),
                Err(_) => self.problem(item, "ips", &format!("{} is no IP address", item.get())),
            }
        }
        all
    }

    /// `["K=V"]` or `{"K": "V"}`.
    fn settings(&mut self, value: &RawValue, key: &str) -> Vec<(String, String)> {
        if let Ok(map) = serde_json::from_str::<BTreeMap<String, String>>(value.get()) {
            return map.into_iter().collect();
        }
        let Ok(list) = serde_json::from_str::<Vec<&RawValue>>(value.get()) else {
            self.problem(value, key, "is no list of \"KEY=VALUE\", and no object of names and texts");
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in list {
            let text = serde_json::from_str::<String>(item.get()).unwrap_or_default();
            match text.split_once('=') {
                Some((name, value)) if !name.is_empty() => all.push((name.into(), value.into())),
                _ => self.problem(item, key, &format!("{} is not \"KEY=VALUE\"", item.get())),
            }
        }
        all
    }

    /// `a slots=4`, `b:2`, `c user=me port=2222`: a host a line.
    fn lines(&mut self) {
        for (at, line) in self.text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(first) = words.next() else { continue };
            // Of a line whose name is wrong the rest is looked at, too.
            let mut host = match list(first) {
                Ok(hosts) if hosts.len() == 1 => hosts.into_iter().next().unwrap_or_default(),
                Ok(_) => {
                    self.wrong.push(format!("line {}: one host a line", at + 1));
                    FleetHost::default()
                }
                Err(why) => {
                    let plain = why.iter().map(|w| w.trim_start_matches("--hosts: "));
                    self.wrong.extend(plain.map(|w| format!("line {}: {w}", at + 1)));
                    FleetHost::default()
                }
            };
            for word in words {
                if let Err(why) = word_of_line(&mut host, word) {
                    self.wrong.push(format!("line {}: {why}", at + 1));
                }
            }
            self.file.hosts.push(host);
        }
    }
}

/// Returns true if a text that begins with a bracket has an address of IPv6 in it, as in `[fd00::1] slots=2`: no JSON begins so.
fn begins_with_address(text: &str) -> bool {
    let inner = text.trim_start().strip_prefix('[').and_then(|t| t.split_once(']'));
    inner.is_some_and(|(at, _)| at.split('%').next().unwrap_or_default().parse::<Ipv6Addr>().is_ok())
}

fn is_comment(key: &str) -> bool {
    key.starts_with(['_', '#']) || key == "comment"
}

fn word_of_line(host: &mut FleetHost, word: &str) -> Result<(), String> {
    let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
    match key.replace('-', "_").as_str() {
        "slots" | "cpu" => host.slots = Some(ranks(value).map_err(|e| format!("slots: {e}"))?),
        // An upper limit for others' schedulers.
        "max_slots" => {}
        "port" => {
            let port = value.parse().ok().filter(|p| *p > 0);
            host.port = Some(port.ok_or_else(|| format!("port: {value:?} is no port"))?);
        }
        "user" if host.name.is_empty() => {}
        "user" => host.name = FleetHost::named(&format!("{value}@{}", host.name))?.name,
        "identity" => host.identity = Some(value.into()),
        "cwd" => host.cwd = Some(value.into()),
        "python" => host.python = Some(value.into()),
        "ip" => host.ips = vec![value.parse().map_err(|_| format!("ip: {value:?} is no IP address"))?],
        _ => {
            return Err(format!(
                "{key} is not known; known are slots, max_slots, user, port, identity, cwd, python, ip"
            ));
        }
    }
    Ok(())
}

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

/// `"0,1"`, `[0, 1]`, `["0", "1"]` or `0`, as `CUDA_VISIBLE_DEVICES` has it.
fn devices(text: &str) -> Option<String> {
    use serde_json::Value;
    let one = |v: &Value| v.as_u64().map(|n| n.to_string()).or_else(|| Some(v.as_str()?.to_owned()));
    match serde_json::from_str(text).ok()? {
        Value::Array(list) => Some(list.iter().map(one).collect::<Option<Vec<_>>>()?.join(",")),
        single => one(&single).map(|list| list.replace(' ', "")),
    }
}

#[cfg(test)]
mod tests;
