//! `--bind-to`: which processors each rank may run on.
//!
//! The launcher of a host knows how its cores lie, and which of them it may use itself; ranks get some of those. A rank is bound between
//! fork and exec, so that its memory is its own core's from the first byte. Not on macOS, which lets nobody choose.
use comity_cluster::cores::{BindTo, CoreMap, cpu_list, run_words};
use serde::{Deserialize, Serialize};

/// Value of `--bind-to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum BindWish {
    /// Wherever the system puts them.
    #[default]
    Off,
    /// A core for each.
    Core,
    /// The cores that share a cache.
    Complex,
}

/// The processors of the ranks of this host.
#[derive(Clone, Debug)]
pub(crate) struct RankBinding {
    to: BindTo,
    map: CoreMap,
}

/// Set of processors that a rank is bound to, as the system takes it.
#[cfg(target_os = "linux")]
pub(crate) type ProcessorSet = rustix::thread::CpuSet;
#[cfg(not(target_os = "linux"))]
pub(crate) type ProcessorSet = ();

impl RankBinding {
    /// Binding as wished, for `ranks` ranks of this host; the error is for the user.
    pub(crate) fn check(wish: BindWish, ranks: usize) -> Result<Option<Self>, String> {
        let (to, name) = match wish {
            BindWish::Off => return Ok(None),
            BindWish::Core => (BindTo::Core, "core"),
            BindWish::Complex => (BindTo::Complex, "complex"),
        };
        if !cfg!(target_os = "linux") {
            return Err(format!(
                "--bind-to {name}: this system does not let a process choose its cores; say --bind-to off"
            ));
        }
        let map = allowed_cores().ok_or_else(|| {
            format!("--bind-to {name}: the system does not say how its cores lie (/sys/devices/system/cpu); say --bind-to off")
        })?;
        map.places(to, ranks)?;
        Ok(Some(Self { to, map }))
    }

    /// Processors of rank number `local` of the `ranks` of this host.
    pub(crate) fn of(&self, local: usize, ranks: usize) -> Result<(ProcessorSet, String), String> {
        let places = self.map.places(self.to, ranks)?;
        let cpus = places.get(local).ok_or("there is no such rank on this host")?;
        Ok((set(cpus)?, run_words(cpus, ",")))
    }

    /// Number of cores of the rank with the fewest, of `ranks` on this host.
    pub(crate) fn cores_of_each(&self, ranks: usize) -> usize {
        let places = self.map.places(self.to, ranks).unwrap_or_default();
        let cores = |cpus: &Vec<usize>| {
            // Several ranks may be bound to the same complex.
            let sharing = places.iter().filter(|other| *other == cpus).count();
            self.map.allowed(cpus).map(|map| map.counts().cores / sharing)
        };
        places.iter().filter_map(cores).min().unwrap_or(1).clamp(1, available())
    }

    /// Number of processors that all may use at a time: a control group may have a quota of fewer than it names.
    pub(crate) fn host_cores(&self) -> usize {
        self.map.processors().len().min(available())
    }
}

/// Number of processors that this process may use at a time, by its affinity and the quota of its control group.
fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of cores that this process may use at a time.
pub(crate) fn usable_cores() -> usize {
    allowed_cores().map_or(usize::MAX, |map| map.counts().cores).min(available())
}

#[cfg(target_os = "linux")]
fn set(cpus: &[usize]) -> Result<ProcessorSet, String> {
    let mut set = ProcessorSet::new();
    for &cpu in cpus {
        if cpu >= ProcessorSet::MAX_CPU {
            return Err(format!(
                "--bind-to: processor {cpu} is beyond those that can be named; say --bind-to off"
            ));
        }
        set.set(cpu);
    }
    Ok(set)
}

#[cfg(not(target_os = "linux"))]
fn set(_: &[usize]) -> Result<ProcessorSet, String> {
    Ok(())
}

/// Layout of this host's cores, where the system tells it.
pub fn host_cores() -> Option<CoreMap> {
    let read = |path: &str| std::fs::read_to_string(format!("/sys/devices/system/{path}")).ok();
    CoreMap::read(read)
}

/// The cores of this host that this process may use.
pub fn allowed_cores() -> Option<CoreMap> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    host_cores()?.allowed(&cpu_list(list)?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_this_host_get_what_it_may_use() {
        let map = allowed_cores().unwrap();
        let cores = map.counts().cores;
        assert!(RankBinding::check(BindWish::Off, 1 << 20).unwrap().is_none());
        let all = RankBinding::check(BindWish::Core, cores).unwrap().unwrap();
        let (set, words) = all.of(cores - 1, cores).unwrap();
        assert!(set.count() > 0 && cpu_list(&words).unwrap().iter().all(|c| map.processors().contains(c)));
        let quota = std::thread::available_parallelism().unwrap().get();
        assert_eq!(all.host_cores(), map.processors().len().min(quota));
        let why = RankBinding::check(BindWish::Core, cores + 1).unwrap_err();
        assert!(
            why.contains(&format!("{} ranks", cores + 1)) && why.contains(&format!("{cores} cores")),
            "{why}"
        );
        assert!(RankBinding::check(BindWish::Complex, 100 * cores).is_ok());
        assert!(super::set(&[1 << 15]).is_err());
    }
}
