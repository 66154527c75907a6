//! The cores of a host: which share a third-level cache (a core complex), a socket, a NUMA node; and which of them ranks are bound to.
//!
//! From the files that Linux has below `/sys/devices/system`, which the caller reads:
//!
//! ```text
//!   cpu/online                                  which processors there are (a processor is a thread of a core)
//!   cpu/cpuN/topology/physical_package_id       its socket
//!   cpu/cpuN/topology/thread_siblings_list      the threads of its core
//!   cpu/cpuN/cache/index3/shared_cpu_list       its core complex; where there is none, the socket
//!   node/online, node/nodeN/cpulist             NUMA
//! ```
//!
//! Ranks of a host talk to each other, and fastest through a shared cache. So ranks with neighbouring numbers get neighbouring cores, and no
//! more complexes are used than are needed.

use std::collections::{BTreeMap, BTreeSet};

/// A processor: a thread of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Processor {
    id: usize,
    /// The first thread of its core, and so on.
    core: usize,
    complex: usize,
    socket: usize,
    node: usize,
}

/// Share of the cores that a rank is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindTo {
    /// A core of its own, with all threads that it has.
    Core,
    /// The cores that share a cache, together with other ranks.
    Complex,
}

/// The processors that a process may use, and how they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreMap {
    /// By complex, then core, then number.
    processors: Vec<Processor>,
}

/// Numbers of processors, cores and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounts {
    pub processors: usize,
    pub cores: usize,
    /// Groups of cores that share a third-level cache.
    pub complexes: usize,
    pub sockets: usize,
    pub nodes: usize,
}

/// The largest number of a processor that is believed.
const MOST: usize = 1 << 16;

/// Numbers as in `0-3,8,10-11`; `None` where it is no such list.
pub fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        if first > last || last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Runs of successive numbers: the first and the last of each.
pub fn runs(numbers: impl IntoIterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match all.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => all.push((number, number)),
        }
    }
    all
}

/// Numbers as runs, with this between two of them; with a comma it is the reverse of [`cpu_list`].
pub fn run_words(numbers: &[usize], between: &str) -> String {
    let word = |(a, b)| if a == b { format!("{a}") } else { format!("{a}-{b}") };
    runs(numbers.iter().copied()).into_iter().map(word).collect::<Vec<_>>().join(between)
}

impl CoreMap {
    /// From the files below `/sys/devices/system`; `None` where they do not say which processors there are.
    pub fn read(file: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let list = |path: &str| file(path).and_then(|text| cpu_list(&text));
        let mut nodes = BTreeMap::new();
        for node in list("node/online").unwrap_or_default() {
            let cpus = list(&format!("node/node{node}/cpulist")).unwrap_or_default();
            nodes.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        let processor = |id: usize| {
            let of = |name: &str| format!("cpu/cpu{id}/{name}");
            let first = |name: &str| list(&of(name)).and_then(|l| l.first().copied());
            let socket = file(&of("topology/physical_package_id")).and_then(|t| t.trim().parse().ok());
            let socket: usize = socket.unwrap_or(0);
            // A complex is known by its first processor; a socket without such a cache is one, and no processor's number.
            let complex = first("cache/index3/shared_cpu_list").unwrap_or(MOST + socket);
            let core = first("topology/thread_siblings_list").unwrap_or(id);
            Processor { id, core, complex, socket, node: nodes.get(&id).copied().unwrap_or(0) }
        };
        let online = list("cpu/online").filter(|l| !l.is_empty())?;
        let mut processors: Vec<Processor> = online.into_iter().map(processor).collect();
        processors.sort_by_key(|p| (p.socket, p.complex, p.core, p.id));
        Some(Self { processors })
    }

    /// Keeps the processors that a process may use; `None` if there are none.
    pub fn allowed(&self, allowed: &[usize]) -> Option<Self> {
        let some = self.processors.iter().filter(|p| allowed.contains(&p.id)).copied();
        let processors: Vec<Processor> = some.collect();
        (!processors.is_empty()).then_some(Self { processors })
    }

    /// Counts processors, cores, complexes, sockets and NUMA nodes.
    pub fn counts(&self) -> CoreCounts {
        let of =
            |what: fn(&Processor) -> usize| self.processors.iter().map(what).collect::<BTreeSet<_>>().len();
        CoreCounts {
            processors: self.processors.len(),
            cores: of(|p| p.core),
            complexes: of(|p| p.complex),
            sockets: of(|p| p.socket),
            nodes: of(|p| p.node),
        }
    }

    /// "2 sockets, 4 core complexes, 2 NUMA nodes, 16 cores, 32 threads".
    pub fn words(&self) -> String {
        let c = self.counts();
        let many = |n: usize, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        let threads =
            if c.processors > c.cores { format!(", {} threads", c.processors) } else { String::new() };
        format!(
            "{}, {}, {}, {}{threads}",
            many(c.sockets, "socket", "sockets"),
            many(c.complexes, "core complex", "core complexes"),
            many(c.nodes, "NUMA node", "NUMA nodes"),
            many(c.cores, "core", "cores"),
        )
    }

    /// Their numbers, in order.
    pub fn processors(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.processors.iter().map(|p| p.id).collect();
        all.sort_unstable();
        all
    }

    /// The processors of each of `ranks` ranks of this host.
    ///
    /// # Errors
    /// A core for each, and there are too few: a sentence with both numbers.
    pub fn places(&self, to: BindTo, ranks: usize) -> Result<Vec<Vec<usize>>, String> {
        let cores = self.groups(|p| p.core);
        if to == BindTo::Core {
            if ranks > cores.len() {
                let threads = match self.processors.len() {
                    n if n > cores.len() => format!(" ({n} threads)"),
                    _ => String::new(),
                };
                let n = cores.len();
                let s = if cores.len() == 1 { "" } else { "s" };
                return Err(format!(
                    "--bind-to core gives each rank a core of its own: there are {ranks} ranks for this host, and the launcher may use {n} core{s}{threads}; start fewer ranks, allow it more cores, or say --bind-to complex or --bind-to off"
                ));
            }
            return Ok(cores.into_iter().take(ranks).collect());
        }
        // The complex of each core, cores in order.
        let complexes = self.groups(|p| p.complex);
        let of_core: Vec<usize> = cores
            .iter()
            .map(|core| complexes.iter().position(|c| core.iter().all(|p| c.contains(p))).unwrap_or(0))
            .collect();
        let most = cores.len().max(1);
        // Ranks beyond the cores share them evenly.
        let core = |rank: usize| if ranks > most { rank * most / ranks } else { rank };
        Ok((0..ranks).map(|rank| complexes[of_core[core(rank)]].clone()).collect())
    }

    /// Processors that have something in common, in order.
    fn groups(&self, what: fn(&Processor) -> usize) -> Vec<Vec<usize>> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for p in &self.processors {
            match groups.iter_mut().find(|(key, _)| *key == what(p)) {
                Some((_, all)) => all.push(p.id),
                None => groups.push((what(p), vec![p.id])),
            }
        }
        let sorted = |(_, mut all): (usize, Vec<usize>)| {
            all.sort_unstable();
            all
        };
        groups.into_iter().map(sorted).collect()
    }
}

#[cfg(test)]
mod tests;
