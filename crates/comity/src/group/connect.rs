//! From a place in a job to a group.

use super::{Group, measure};
use crate::{
    BackendKind, Config, Error, ErrorKind, Launcher, Protection, Result,
    backend::{MpiRuntime, NativeBackend, NcclAlone, NcclBackend},
    links::{Endpoint, join_running},
    recorder::{Recorder, culprit},
    stats::{Counters, Sheet},
    status::World,
    sys::inherited,
};
use std::{env, sync::Arc, time::Instant};

/// The group of this process's job, found in the environment; a group of one where no launcher's variables are set.
///
/// The variables of `comity launch`, MLX, torchrun, Open MPI, MPICH and Slurm are understood; see [`Config::from_env`]
/// for their order. Which were used, and why, is logged as a `tracing` event, and printed to standard error when
/// `COMITY_VERBOSE` is set.
///
/// ```
/// let g = comity::init()?;
/// println!("rank {} of {}", g.rank(), g.size());
/// # Ok::<(), comity::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Config`] for a variable that makes no sense, and the errors of [`Config::connect`] for a job that does not come together. Only where
/// no variable is set do you get a group of one.
pub fn init() -> Result<Group> {
    Config::from_env()?.connect()
}

/// Joins as [`init`] does, but fails where no launcher's variables are set.
///
/// ```
/// use comity::{Error, ErrorKind};
///
/// match comity::init_strict() {
///     Ok(group) => println!("rank {} of {}", group.rank(), group.size()),
///     Err(e) => match e.kind() {
///         ErrorKind::Config(why) => eprintln!("not started by a launcher: {why}"),
///         _ => return Err(e),
///     },
/// }
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The errors of [`init`], and [`ErrorKind::Config`] when this process is in no job.
pub fn init_strict() -> Result<Group> {
    let config = Config::from_env()?;
    if config.evidence().launcher == Launcher::Alone {
        let hint =
            "start it with `comity launch -n 2 -- ...`, or set COMITY_RANK, COMITY_SIZE and COMITY_STORE";
        return Err(Error::config(format!("this process is in no job: {}; {hint}", config.evidence().why)));
    }
    config.connect()
}

impl Config {
    /// Meet the other ranks and make the group of all of them.
    ///
    /// Every rank of the job calls this. It returns when all have come, or fails on all of them at the join limit,
    /// naming those that are missing. A process may connect more than once, and hold several groups. Where it fails, this process holds nothing of
    /// the attempt, and may try again.
    ///
    /// ```
    /// let group = comity::Config::new(0, 1).connect()?;
    /// assert_eq!(group.size(), 1);
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`] before anything is opened; [`ErrorKind::Join`] when the ranks do not come together;
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Os`] when the system refuses what a rank needs; [`ErrorKind::Forked`] in a child that was forked while its
    /// parent was in a job, whose place it cannot take.
    pub fn connect(&self) -> Result<Group> {
        let rank = self.rank();
        let size = self.size();
        let why = &self.evidence().why;
        tracing::info!(rank, size, why, meet = %self.meeting_point(), "joining");
        if env::var_os("COMITY_VERBOSE").is_some_and(|v| !v.is_empty() && v != "0") {
            eprintln!("comity: rank {rank} of {size}: {why}; meeting {}", self.meeting_point());
        }
        if self.settings.backend == BackendKind::Mpi && !self.settings.joins {
            return self.connect_mpi();
        }
        self.settings.check()?;
        if self.settings.joins {
            return self.join_running();
        }
        if size == 1 {
            return match self.settings.backend {
                BackendKind::Nccl => self.alone_with_device(),
                _ => Ok(Group::alone(self.counters()).with_timeout(self.settings.timeout)),
            };
        }
        let world = Endpoint::join(&self.settings).inspect_err(|e| self.tell_root_cause(e))?;
        if self.settings.costs.are_asked_for() {
            let any: Arc<dyn World> = world.clone();
            measure::learn(&any, &self.settings.costs, self.settings.join_timeout)?;
        }
        let group = match self.settings.backend {
            BackendKind::Nccl => self.open_nccl(world),
            _ => Group::open(0, world, self.counters(), self.settings.timeout, self.settings.join_timeout),
        };
        let group = group.inspect_err(|e| self.tell_root_cause(e))?;
        Ok(self.logged(group))
    }

    fn join_running(&self) -> Result<Group> {
        if matches!(self.settings.backend, BackendKind::Nccl | BackendKind::Mpi) {
            let reason = "a process that joins while the job runs has no communicator with the others".into();
            return Err(ErrorKind::Unavailable { backend: self.settings.backend.name(), reason }.into());
        }
        let group = join_running(&self.settings, &mut |world, (group_id, epoch)| {
            let counters = self.counters();
            counters.joins(epoch, world.rank());
            let group =
                Group::open(group_id, world, counters, self.settings.timeout, self.settings.join_timeout)?;
            group.meet_others(Instant::now() + self.settings.join_timeout)?;
            Ok(group)
        })?;
        Ok(self.logged(group))
    }

    /// Tells the launcher the rank that this error names.
    fn tell_root_cause(&self, e: &Error) {
        let missing = || match e.root().kind() {
            ErrorKind::Join(why) => why.ranks.first().copied(),
            _ => None,
        };
        if let (Some(root_cause), Some(rank)) = (&self.settings.root_cause, culprit(e).or_else(missing)) {
            root_cause.tell(rank);
        }
    }

    /// A group of one that takes buffers of a device too.
    fn alone_with_device(&self) -> Result<Group> {
        let backend = NcclAlone::open(self.settings.device.unwrap_or(0))?;
        Ok(Group::alone_by(Box::new(backend), self.counters()).with_timeout(self.settings.timeout))
    }

    /// The group of everyone in `world`, with NCCL for buffers of this rank's device.
    fn open_nccl(&self, world: Arc<Endpoint>) -> Result<Group> {
        let device = self.settings.device.map_or_else(|| NcclBackend::device_of(&*world), Ok);
        let peers = world.peers().to_vec();
        let counters = self.counters();
        let limit = self.settings.join_timeout;
        let native = NativeBackend::open_all(world, 0, Arc::clone(&counters), limit)?;
        let backend = Box::new(NcclBackend::open(native, device, limit)?);
        let own = (0, Recorder::new());
        Ok(Group::with(self.rank(), peers, backend, own, counters, self.settings.timeout))
    }

    /// The same, where MPI started the ranks and carries their data.
    fn connect_mpi(&self) -> Result<Group> {
        if self.settings.secure == Protection::Data {
            return Err(Error::config(
                "secure data (COMITY_SECURE=data) and the MPI backend do not go together: MPI carries the data, and not encrypted by Comity; drop one of them",
            ));
        }
        if self.settings.costs.are_asked_for() {
            return Err(Error::config(
                "costs of links (COMITY_COSTS) and the MPI backend do not go together: MPI chooses its own algorithms; drop one of them",
            ));
        }
        let mpi = MpiRuntime::find()?;
        let config = mpi.place(&self.settings)?;
        tracing::info!(rank = config.rank, size = config.size, version = mpi.version(), "MPI is up");
        config.check()?;
        if config.size == 1 {
            return Ok(Group::alone(self.counters()).with_timeout(self.settings.timeout));
        }
        let world = Endpoint::join(&config)?;
        let peers = world.peers().to_vec();
        let counters = self.counters();
        let backend = mpi.open(world, Arc::clone(&counters), self.settings.join_timeout)?;
        let own = (0, Recorder::new());
        Ok(self.logged(Group::with(config.rank, peers, backend, own, counters, self.settings.timeout)))
    }

    fn logged(&self, group: Group) -> Group {
        let group = match &self.settings.root_cause {
            Some(root_cause) => group.report_root_cause_to(root_cause.clone()),
            None => group,
        };
        match &self.settings.log_dir {
            Some(dir) => group.log_to(dir),
            None => group,
        }
    }

    /// Returns the counters, in the launcher's sheet if it gave one. A job runs without its sheet too: a failure is only logged.
    fn counters(&self) -> Arc<Counters> {
        let sheet = self.settings.stats_fd.and_then(|fd| match inherited(fd).and_then(|fd| Sheet::attach(&fd)) {
            Ok(sheet) => Some(Arc::new(sheet)),
            Err(e) => {
                tracing::warn!(error = %e, "COMITY_STATS_FD={fd}: the launcher will see no counters of this process");
                None
            }
        });
        Arc::new(Counters::new(sheet.as_ref()))
    }
}

#[cfg(test)]
mod tests;
