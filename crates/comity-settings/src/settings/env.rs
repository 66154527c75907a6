//! A process's place in its job, from the variables of the launcher that started it.

use super::{
    Evidence, HostPort, Launcher, MAX_SIZE, MeetingPoint, Settings, bad, bad_value,
    common::{self, Vars, refusal, unfit, wrong},
    fnv,
    mlx_hostfile::Hostfile,
    slurm,
};
use crate::{
    Result,
    address::shown,
    exchange::{PmiExchange, TorchExchange, UnixExchange},
    transport::{TransportSettings, Variables},
};
use std::{ffi::OsString, path::Path, sync::Arc};

/// Implements [`Settings::from_vars`](super::Settings::from_vars).
pub(super) fn read(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings> {
    let vars = Vars::new(var);
    let joins = vars.flag("COMITY_JOIN")?;
    let place = if joins { joiner(&vars)? } else { Place::find(&vars)? };
    let mut config = Settings::new(place.rank, place.size);
    config.local = place.local;
    config.meeting_point = if place.size == 1 && !joins { MeetingPoint::Alone } else { place.meeting_point };
    config.joins = joins;
    config.job = place.job;
    common::read(&vars, &mut config)?;
    if joins {
        // The launcher's file has a place for each rank of the job's start, and this is none of them.
        config.root_cause = None;
        config.place = vars.number("COMITY_RANK", MAX_SIZE - 1)?.map(|rank| rank as u32);
    }
    config.check()?;
    config.evidence = Evidence { launcher: place.launcher, why: place.why, seen: vars.into_seen() };
    Ok(config)
}

/// A process's place in its job.
struct Place {
    launcher: Launcher,
    why: String,
    rank: usize,
    size: usize,
    local: Option<(usize, usize)>,
    meeting_point: MeetingPoint,
    job: String,
}

impl Place {
    fn find(vars: &Vars<'_>) -> Result<Self> {
        for launcher in [comity, mlx_nccl, mlx, torch, open_mpi, mpich, slurm, dstack, sky_pilot] {
            if let Some(place) = launcher(vars)? {
                return Ok(place);
            }
        }
        for name in ["COMITY_STORE", "COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE"] {
            if let Some(value) = vars.text(name)? {
                let why = format!(
                    "{name}={value} is set, but no launcher's rank was found; set COMITY_RANK and COMITY_SIZE too, or unset it to run alone"
                );
                return bad_value(name, &value, why);
            }
        }
        let why = if vars.is_set("SLURM_JOB_ID") {
            "SLURM_JOB_ID is set, but this process is not a task of srun, so it is alone"
        } else {
            "no launcher's variables are set, so this process is alone"
        };
        Ok(Self {
            launcher: Launcher::Alone,
            why: why.into(),
            rank: 0,
            size: 1,
            local: Some((0, 1)),
            meeting_point: MeetingPoint::Alone,
            job: "-".into(),
        })
    }
}

/// Reads where a process finds the job that it joins. A rank's variables beside it are those of the process in whose place it comes.
fn joiner(vars: &Vars<'_>) -> Result<Place> {
    let Some(at) = vars.host_ports("COMITY_STORE")? else {
        let why = " is set, but COMITY_STORE is not; set it to the address of the store at which the job met";
        return unfit("COMITY_JOIN", 1, why);
    };
    Ok(Place {
        launcher: Launcher::Comity,
        why: "COMITY_JOIN=1 is set, so this process joins a job that runs".into(),
        rank: 0,
        size: 1,
        local: None,
        meeting_point: MeetingPoint::Store(at),
        job: torch_job(vars)?,
    })
}

/// Rank and size, as the variables of a launcher say them.
struct RankAndSize {
    launcher: Launcher,
    rank_is: &'static str,
    rank: usize,
    size_is: &'static str,
    size: usize,
}

impl RankAndSize {
    /// `None` when neither is set.
    fn read(
        vars: &Vars<'_>,
        launcher: Launcher,
        rank_is: &'static str,
        size_is: &'static str,
    ) -> Result<Option<Self>> {
        let found = vars.rank_and_size(rank_is, size_is)?;
        Ok(found.map(|(rank, size)| Self { launcher, rank_is, rank, size_is, size }))
    }

    /// The meeting point: the store that the user names, nowhere for one rank, else what `find` finds. Where that is nothing the error goes on
    /// with what the ranks `lack`.
    fn meeting_point(
        &self,
        vars: &Vars<'_>,
        find: impl FnOnce() -> Result<Option<MeetingPoint>>,
        lack: &str,
    ) -> Result<MeetingPoint> {
        if let Some(at) = vars.host_ports("COMITY_STORE")? {
            return Ok(MeetingPoint::Store(at));
        }
        if self.size == 1 {
            return Ok(MeetingPoint::Alone);
        }
        match find()? {
            Some(at) => Ok(at),
            None => self.lack(lack),
        }
    }

    fn lack<T>(&self, what: &str) -> Result<T> {
        let Self { rank_is, rank, size_is, size, .. } = self;
        unfit(rank_is, *rank, format!(" and {size_is}={size} are set, but {what}"))
    }

    fn place(self, local: Option<(usize, usize)>, meeting_point: MeetingPoint, job: String) -> Place {
        let Self { launcher, rank_is, rank, size_is, size } = self;
        let why = format!("{rank_is}={rank} and {size_is}={size} are set ({launcher})");
        Place { launcher, why, rank, size, local, meeting_point, job }
    }
}

fn comity(vars: &Vars<'_>) -> Result<Option<Place>> {
    let Some(found) = RankAndSize::read(vars, Launcher::Comity, "COMITY_RANK", "COMITY_SIZE")? else {
        return Ok(None);
    };
    for (one, other) in
        [("COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE"), ("COMITY_LOCAL_SIZE", "COMITY_LOCAL_RANK")]
    {
        if vars.is_set(one) && !vars.is_set(other) {
            return bad(format!("{one} is set, but {other} is not; set both or neither"));
        }
    }
    let local = vars.local("COMITY_LOCAL_RANK", "COMITY_LOCAL_SIZE", found.size)?;
    let mut job = torch_job(vars)?;
    let find = || {
        if let Some(at) = vars.master()? {
            return master_meeting_point(vars, at, &job).map(Some);
        }
        let Some(path) = vars.text("MLX_HOSTFILE")? else { return Ok(None) };
        let file = Hostfile::read(Path::new(&path))?;
        file.check("COMITY_RANK", found.rank, Some(found.size), true)?;
        job = file.job();
        Ok(Some(MeetingPoint::Hostfile(file.ranks)))
    };
    let lack = "not where the ranks meet; set COMITY_STORE=host:port to a running store, or MASTER_ADDR and MASTER_PORT, where rank 0 then runs one";
    let meeting_point = found.meeting_point(vars, find, lack)?;
    Ok(Some(found.place(local, meeting_point, job)))
}

/// Reads the place of a rank of MLX's NCCL backend, which has no hostfile.
fn mlx_nccl(vars: &Vars<'_>) -> Result<Option<Place>> {
    if vars.is_set("MLX_HOSTFILE") || !vars.is_set("MLX_WORLD_SIZE") {
        return Ok(None);
    }
    let Some(found) = RankAndSize::read(vars, Launcher::Mlx, "MLX_RANK", "MLX_WORLD_SIZE")? else {
        return Ok(None);
    };
    let find = || Ok(vars.address("NCCL_HOST_IP", "NCCL_PORT")?.map(MeetingPoint::Host));
    let lack = "NCCL_HOST_IP and NCCL_PORT are not; set them to rank 0's address and a free port of it";
    let meeting_point = found.meeting_point(vars, find, lack)?;
    Ok(Some(found.place(None, meeting_point, "-".into())))
}

fn mlx(vars: &Vars<'_>) -> Result<Option<Place>> {
    if let Some(place) = jaccl(vars)? {
        return Ok(Some(place));
    }
    let rank = vars.number("MLX_RANK", MAX_SIZE - 1)?;
    let path = vars.text("MLX_HOSTFILE")?;
    let (rank, path) = match (rank, path) {
        (None, None) => return Ok(None),
        (Some(rank), None) => {
            let why = " is set, but MLX_HOSTFILE is not; set it to a file such as [[\"10.0.0.1:5000\"], [\"10.0.0.2:5000\"]], or set COMITY_RANK and COMITY_SIZE";
            return unfit("MLX_RANK", rank, why);
        }
        (None, Some(path)) => {
            let why =
                format!("MLX_HOSTFILE={path} is set, but MLX_RANK is not; set it to this process's rank");
            return bad_value("MLX_HOSTFILE", &path, why);
        }
        (Some(rank), Some(path)) => (rank, path),
    };
    let store = vars.host_ports("COMITY_STORE")?;
    let file = Hostfile::read(Path::new(&path))?;
    file.check("MLX_RANK", rank, None, store.is_none())?;
    let size = file.ranks.len();
    let job = file.job();
    let meeting_point = store.map_or(MeetingPoint::Hostfile(file.ranks), MeetingPoint::Store);
    let launcher = Launcher::Mlx;
    let why = format!("MLX_RANK={rank} and MLX_HOSTFILE={path} are set ({launcher})");
    Ok(Some(Place { launcher, why, rank, size, local: None, meeting_point, job }))
}

/// A rank of MLX's other backend, which has a matrix of devices and a coordinator in place of a hostfile.
fn jaccl(vars: &Vars<'_>) -> Result<Option<Place>> {
    if vars.is_set("MLX_HOSTFILE") {
        return Ok(None);
    }
    let first = |names: [&'static str; 2]| names.into_iter().find(|name| vars.is_set(name));
    let coordinator = first(["JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"]);
    let devices = first(["JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"]);
    let rank_is = first(["JACCL_RANK", "MLX_RANK"]);
    let (Some(at_is), Some(devices_is), Some(rank_is)) = (coordinator, devices, rank_is) else {
        return Ok(None);
    };
    let (Some(rank), Some(text)) = (vars.number(rank_is, MAX_SIZE - 1)?, vars.text(devices_is)?) else {
        return Ok(None);
    };
    let size = TransportSettings::ranks_of_devices(&text).map_err(|why| {
        let e = refusal(devices_is, &text, &why.to_string());
        why.place(e)
    })?;
    if rank >= size {
        let why = format!(", but {devices_is} has {size} rows; allowed is 0 to {}", size - 1);
        return unfit(rank_is, rank, why);
    }
    let at = match vars.host_ports("COMITY_STORE")? {
        Some(store) => Some(MeetingPoint::Store(store)),
        None => vars.host_ports(at_is)?.map(MeetingPoint::Host),
    };
    let Some(meeting_point) = at else { return Ok(None) };
    let launcher = Launcher::Mlx;
    let why = format!("{rank_is}={rank}, {devices_is} and {at_is} are set ({launcher})");
    Ok(Some(Place { launcher, why, rank, size, local: None, meeting_point, job: "-".into() }))
}

fn torch(vars: &Vars<'_>) -> Result<Option<Place>> {
    let Some(found) = RankAndSize::read(vars, Launcher::Torch, "RANK", "WORLD_SIZE")? else {
        return Ok(None);
    };
    let local = vars.local("LOCAL_RANK", "LOCAL_WORLD_SIZE", found.size)?;
    let job = torch_job(vars)?;
    let find = || vars.master()?.map(|at| master_meeting_point(vars, at, &job)).transpose();
    let lack = "MASTER_ADDR and MASTER_PORT are not; set them to rank 0's host and a free port of it";
    let meeting_point = found.meeting_point(vars, find, lack)?;
    Ok(Some(found.place(local, meeting_point, job)))
}

/// Under torchrun a store of torch's own listens at the master's port already; an exchange tells the others
/// through it where rank 0's store is. Without torchrun rank 0 listens there.
fn master_meeting_point(vars: &Vars<'_>, at: Vec<HostPort>, job: &str) -> Result<MeetingPoint> {
    let agents = vars.flag("TORCHELASTIC_USE_AGENT_STORE")?;
    Ok(match at.first() {
        Some(first) if agents => MeetingPoint::Exchange(Arc::new(TorchExchange::new(first.clone(), job))),
        _ => MeetingPoint::Host(at),
    })
}

/// torchrun restarts the ranks of a job after a failure; those of different lives must not meet.
fn torch_job(vars: &Vars<'_>) -> Result<String> {
    let Some(id) = vars.text("TORCHELASTIC_RUN_ID")? else { return Ok("-".into()) };
    let life = vars.number("TORCHELASTIC_RESTART_COUNT", u32::MAX as usize)?;
    Ok(life.map_or_else(|| id.clone(), |life| format!("{id}.{life}")))
}

fn open_mpi(vars: &Vars<'_>) -> Result<Option<Place>> {
    let read = RankAndSize::read(vars, Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let Some(found) = read else { return Ok(None) };
    let local = vars.local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", found.size)?;
    let id = match vars.text("PMIX_NAMESPACE")? {
        Some(id) => Some(id),
        None => vars.text("OMPI_MCA_ess_base_jobid")?,
    };
    let named = if vars.is_set("COMITY_JOB") { vars.text("COMITY_JOB")? } else { id.clone() };
    let find = || {
        if let Some(at) = vars.master()? {
            return Ok(Some(MeetingPoint::Host(at)));
        }
        if local.is_none_or(|(_, l)| l != found.size) {
            return found.lack(
                "the ranks are on several hosts (OMPI_COMM_WORLD_LOCAL_SIZE) and not told where to meet; add -x MASTER_ADDR=<rank 0's host> -x MASTER_PORT=<a free port> to mpirun",
            );
        }
        Ok(named.map(|name| MeetingPoint::Exchange(Arc::new(UnixExchange::new(&name)))))
    };
    let lack = "no job id (PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid); add -x COMITY_JOB=<a name> to mpirun";
    let meeting_point = found.meeting_point(vars, find, lack)?;
    Ok(Some(found.place(local, meeting_point, id.unwrap_or_else(|| "-".into()))))
}

fn mpich(vars: &Vars<'_>) -> Result<Option<Place>> {
    let Some(found) = RankAndSize::read(vars, Launcher::Mpich, "PMI_RANK", "PMI_SIZE")? else {
        return Ok(None);
    };
    let local = vars.local("MPI_LOCALRANKID", "MPI_LOCALNRANKS", found.size)?;
    let fd = vars.number("PMI_FD", i32::MAX as usize)?.and_then(|fd| i32::try_from(fd).ok());
    let find = || {
        let managed = fd.map(|fd| MeetingPoint::Exchange(Arc::new(PmiExchange::new(fd))));
        Ok(vars.master()?.map(MeetingPoint::Host).or(managed))
    };
    let lack = "PMI_FD is not; set MASTER_ADDR and MASTER_PORT to rank 0's host and a free port of it";
    let meeting_point = found.meeting_point(vars, find, lack)?;
    Ok(Some(found.place(local, meeting_point, "-".into())))
}

/// Only inside a step that srun started: sbatch and salloc set `SLURM_PROCID` and `SLURM_NTASKS` too, for a shell that is
/// one process, but no step, or one of the reserved numbers at the upper end.
fn slurm(vars: &Vars<'_>) -> Result<Option<Place>> {
    const RESERVED: usize = 0xffff_fff0;
    let Some(step) = vars.number("SLURM_STEP_ID", u32::MAX as usize)? else { return Ok(None) };
    if step >= RESERVED {
        return Ok(None);
    }
    // The step's own number of tasks, not the allocation's.
    let size_is = if vars.is_set("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let Some(found) = RankAndSize::read(vars, Launcher::Slurm, "SLURM_PROCID", size_is)? else {
        let why = " is set, but SLURM_PROCID and SLURM_NTASKS are not; srun sets all three";
        return unfit("SLURM_STEP_ID", step, why);
    };
    let Some(job) = vars.number("SLURM_JOB_ID", u32::MAX as usize)? else {
        return unfit("SLURM_STEP_ID", step, " is set, but SLURM_JOB_ID is not; srun sets both");
    };
    let job = format!("{job}.{step}");
    let local = slurm_local(vars, size_is, found.size)?;
    let find = || {
        if let Some(at) = vars.master()? {
            return Ok(Some(MeetingPoint::Host(at)));
        }
        let list =
            if vars.is_set("SLURM_STEP_NODELIST") { "SLURM_STEP_NODELIST" } else { "SLURM_JOB_NODELIST" };
        let Some(nodes) = vars.text(list)? else {
            let why = format!(" is set, but {list} is not; set MASTER_ADDR and MASTER_PORT");
            return unfit("SLURM_STEP_ID", step, why);
        };
        let port = 20_000 + fnv(job.as_bytes()) % 20_000;
        let first = slurm::first_host(&nodes).and_then(|host| {
            let port = u16::try_from(port).map_err(|e| e.to_string())?;
            HostPort::new(&host, port)
                .map_err(|_| format!("begins with {}, which is not a host name", shown(&host)))
        });
        match first {
            Ok(at) => Ok(Some(MeetingPoint::Host(vec![at]))),
            Err(why) => wrong(list, &nodes, &why),
        }
    };
    let meeting_point = found.meeting_point(vars, find, "")?;
    let place = found.place(local, meeting_point, job);
    Ok(Some(Place { why: format!("SLURM_STEP_ID={step}, {}", place.why), ..place }))
}

/// This rank's place among those of its host, where Slurm says it.
fn slurm_local(vars: &Vars<'_>, size_is: &str, size: usize) -> Result<Option<(usize, usize)>> {
    let local = vars.number("SLURM_LOCALID", MAX_SIZE - 1)?;
    let tasks = vars.text("SLURM_STEP_TASKS_PER_NODE")?;
    let node = vars.number("SLURM_NODEID", MAX_SIZE - 1)?;
    Ok(match (local, tasks, node) {
        (Some(r), Some(tasks), Some(node)) => match slurm::tasks_on(&tasks, node) {
            Ok(l) if r < l && l <= size => Some((r, l)),
            Ok(l) => {
                let why = format!(
                    " does not fit SLURM_STEP_TASKS_PER_NODE={tasks}, which has {l} tasks on node {node}, and {size_is}={size}"
                );
                return unfit("SLURM_LOCALID", r, why);
            }
            Err(why) => return wrong("SLURM_STEP_TASKS_PER_NODE", &tasks, &why),
        },
        _ => None,
    })
}

/// Port of rank 0's store without `MASTER_PORT`: torch's usual port.
const PORT: u16 = 29_500;

/// Engines that start one process for each node of a cluster say only which node it is: dstack and SkyPilot.
fn dstack(vars: &Vars<'_>) -> Result<Option<Place>> {
    let first = vars.text("DSTACK_MASTER_NODE_IP")?.map(|ip| ("DSTACK_MASTER_NODE_IP", ip));
    let read = RankAndSize::read(vars, Launcher::Dstack, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM")?;
    let Some(found) = read else { return Ok(None) };
    let first = match first {
        Some(first) => Some(first),
        None => first_line(vars, "DSTACK_NODES_IPS")?,
    };
    place_of_node(vars, found, first).map(Some)
}

fn sky_pilot(vars: &Vars<'_>) -> Result<Option<Place>> {
    let read = RankAndSize::read(vars, Launcher::SkyPilot, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")?;
    let Some(found) = read else { return Ok(None) };
    let first = first_line(vars, "SKYPILOT_NODE_IPS")?;
    place_of_node(vars, found, first).map(Some)
}

/// The first address of a list with one a line.
fn first_line(vars: &Vars<'_>, name: &'static str) -> Result<Option<(&'static str, String)>> {
    let text = vars.text(name)?;
    Ok(text.and_then(|all| Some((name, all.split_whitespace().next()?.to_owned()))))
}

fn place_of_node(
    vars: &Vars<'_>,
    found: RankAndSize,
    first: Option<(&'static str, String)>,
) -> Result<Place> {
    let find = || {
        if vars.is_set("MASTER_ADDR") {
            return Ok(Some(MeetingPoint::Host(vars.master()?.unwrap_or_default())));
        }
        let Some((name, ip)) = first else {
            let RankAndSize { launcher, rank_is, rank, .. } = &found;
            let why = format!(
                "is set ({launcher}), but not the address of node 0; set MASTER_ADDR and MASTER_PORT"
            );
            return wrong(rank_is, &rank.to_string(), &why);
        };
        let port = vars.number("MASTER_PORT", usize::from(u16::MAX))?.and_then(|p| u16::try_from(p).ok());
        match HostPort::new(&ip, port.filter(|p| *p > 0).unwrap_or(PORT)) {
            Ok(at) => Ok(Some(MeetingPoint::Host(vec![at]))),
            Err(_) => wrong(name, &ip, "is neither a host name nor an address"),
        }
    };
    let meeting_point = found.meeting_point(vars, find, "")?;
    // Ranks of one node that the engine knows nothing of have launchers of their own, whose variables come first.
    Ok(found.place(Some((0, 1)), meeting_point, "-".into()))
}

#[cfg(test)]
mod cloud_tests {
    use super::*;
    use crate::settings::Settings;

    fn of(vars: &[(&str, &str)]) -> Result<Settings> {
        read(&|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    const DSTACK: [(&str, &str); 4] = [
        ("DSTACK_NODE_RANK", "1"),
        ("DSTACK_NODES_NUM", "2"),
        ("DSTACK_MASTER_NODE_IP", "10.128.0.47"),
        ("DSTACK_NODES_IPS", "10.128.0.47\n10.128.0.48"),
    ];
    const SKY: [(&str, &str); 3] = [
        ("SKYPILOT_NODE_RANK", "2"),
        ("SKYPILOT_NUM_NODES", "3"),
        ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3"),
    ];

    #[test]
    fn nodes_meet_at_the_first_one() {
        let c = of(&DSTACK).unwrap();
        assert_eq!((c.evidence.launcher, c.rank, c.size, c.local), (Launcher::Dstack, 1, 2, Some((0, 1))));
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.128.0.47:29500");
        let c = of(&[&DSTACK[..2], &DSTACK[3..], &[("MASTER_PORT", "7000")]].concat()).unwrap();
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.128.0.47:7000");
        let c = of(&SKY).unwrap();
        assert_eq!((c.evidence.launcher, c.rank, c.size), (Launcher::SkyPilot, 2, 3));
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.0.0.1:29500");
        assert!(c.evidence.why.contains("SKYPILOT_NODE_RANK=2") && c.evidence.why.contains("SkyPilot"));
        // One node is alone, and launchers inside come first.
        let alone = of(&[("DSTACK_NODE_RANK", "0"), ("DSTACK_NODES_NUM", "1")]).unwrap();
        assert!(matches!(alone.meeting_point, MeetingPoint::Alone));
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        assert_eq!(of(&[&SKY[..], &torch].concat()).unwrap().evidence.launcher, Launcher::Torch);
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        for (vars, words) in [
            (&DSTACK[..1], &["DSTACK_NODE_RANK=1", "DSTACK_NODES_NUM"]),
            (&DSTACK[..2], &["DSTACK_NODE_RANK=\"1\"", "MASTER_ADDR"]),
            (&SKY[..2], &["SKYPILOT_NODE_RANK=\"2\"", "MASTER_ADDR"]),
            (&[SKY[0], SKY[1], ("SKYPILOT_NODE_IPS", "a;b")], &["SKYPILOT_NODE_IPS", "neither a host name"]),
            (&[("SKYPILOT_NODE_RANK", "3"), SKY[1], SKY[2]], &["SKYPILOT_NODE_RANK=3", "0 to 2"]),
        ] {
            let e = of(vars).unwrap_err().to_string();
            assert!(words.iter().all(|w| e.contains(w)), "{vars:?}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Settings> {
        read(&|name| vars.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    #[test]
    fn mlx_starts_ranks_for_nccl_without_a_hostfile() {
        const RANK: (&str, &str) = ("MLX_RANK", "1");
        const SIZE: (&str, &str) = ("MLX_WORLD_SIZE", "4");
        const HOST: (&str, &str) = ("NCCL_HOST_IP", "10.0.0.7");
        const PORT: (&str, &str) = ("NCCL_PORT", "12345");
        let c = of(&[RANK, SIZE, HOST, PORT]).unwrap();
        assert_eq!((c.evidence.launcher, c.rank, c.size), (Launcher::Mlx, 1, 4));
        assert_eq!(c.meeting_point.to_string(), "at rank 0's store at 10.0.0.7:12345");
        let c = of(&[RANK, SIZE, ("COMITY_STORE", "10.0.0.1:4000")]).unwrap();
        assert_eq!(c.meeting_point.to_string(), "at the store at 10.0.0.1:4000");
        // NCCL's own variables make no job.
        assert_eq!(of(&[HOST, PORT]).unwrap().evidence.launcher, Launcher::Alone);
        for (vars, words) in [
            (&[SIZE, HOST, PORT][..], &["MLX_WORLD_SIZE=4", "MLX_RANK"]),
            (&[RANK, ("MLX_WORLD_SIZE", "1"), HOST, PORT], &["MLX_RANK=1", "MLX_WORLD_SIZE=1"]),
            (&[RANK, SIZE], &["NCCL_HOST_IP", "NCCL_PORT"]),
            (&[RANK, SIZE, HOST], &["NCCL_HOST_IP=10.0.0.7", "NCCL_PORT"]),
            (&[RANK, SIZE, HOST, ("NCCL_PORT", "0")], &["NCCL_PORT", "1 to 65535"]),
            (&[RANK, SIZE, ("NCCL_HOST_IP", "a b"), PORT], &["NCCL_HOST_IP", "a b"]),
        ] {
            let e = of(vars).unwrap_err().to_string();
            assert!(words.iter().all(|w| e.contains(w)), "{vars:?}: {e}");
        }
    }
}
