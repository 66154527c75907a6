//! The public builder of what a process says about itself before it meets the others. Its values are [`Settings`].

mod setters;

use crate::{
    Result,
    settings::{Evidence, MeetingPoint, Settings},
};
use std::{ffi::OsString, fmt, time::Duration};

/// Everything a process says about itself before it meets the others.
///
/// ```
/// use comity::{Config, Key};
/// # fn main() -> comity::Result<()> {
/// let config = Config::new(0, 4).rendezvous("10.0.0.1:7000")?.key(Key::random()?);
/// # Ok(()) }
/// ```
///
/// Nothing is opened or sent before the configuration as a whole makes sense; what contradicts itself is
/// [`ErrorKind::Config`](crate::ErrorKind::Config), which names the variable, file or setter.
#[derive(Clone)]
pub struct Config {
    pub(crate) settings: Settings,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Programs know the settings as fields of this type.
        let text =
            if f.alternate() { format!("{:#?}", self.settings) } else { format!("{:?}", self.settings) };
        f.write_str("Config")?;
        f.write_str(text.strip_prefix("Settings").unwrap_or(&text))
    }
}

impl Config {
    /// Rank `rank` of `size`, with every other setting at its default. More than one rank needs a place to meet:
    /// [`store`](Self::store), [`rendezvous`](Self::rendezvous), [`hostfile`](Self::hostfile) or [`exchange`](Self::exchange).
    ///
    /// ```
    /// let config = comity::Config::new(0, 1);
    /// assert_eq!((config.rank(), config.size(), config.local()), (0, 1, None));
    /// assert_eq!(config.join_limit().as_secs(), 60);
    /// println!("{}; meeting {}", config.evidence().why, config.meeting_point());
    /// ```
    pub fn new(rank: usize, size: usize) -> Self {
        Self { settings: Settings::new(rank, size) }
    }

    /// A process that joins a job while it runs: [`connect`](Self::connect) waits until the job's ranks form their group again
    /// ([`Group::reform`](crate::Group::reform)), and returns the new group. There this process is one of the last ranks.
    ///
    /// Give the address of the [store](Self::store) at which the job met, its [name](Self::job) and its [key](Self::key). The wait has no
    /// limit; it ends with an error when the store ends. A job whose rank 0 runs the store takes in nobody. A launcher that sets `COMITY_JOIN=1`
    /// makes a joiner of a program that calls [`init`](crate::init) or [`from_env`](Self::from_env).
    ///
    /// ```no_run
    /// # fn main() -> comity::Result<()> {
    /// # let key = comity::Key::random()?;
    /// let group = comity::Config::joiner().store("10.0.0.1:7000")?.job("train").key(key).connect()?;
    /// # Ok(()) }
    /// ```
    pub fn joiner() -> Self {
        Self { settings: Settings { joins: true, ..Settings::new(0, 1) } }
    }

    /// Reads the environment. The first of these that is there decides, and a variable that is set but makes no sense is
    /// an error, never passed over:
    ///
    /// | Launcher | Variables |
    /// |---|---|
    /// | `comity launch` | `COMITY_RANK`, `COMITY_SIZE` |
    /// | `mlx.launch` | `MLX_RANK` and `MLX_HOSTFILE`; or `MLX_IBV_DEVICES`, `MLX_JACCL_COORDINATOR` (also as `JACCL_*`); or `MLX_WORLD_SIZE`, `NCCL_HOST_IP`, `NCCL_PORT` |
    /// | `torchrun` | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` |
    /// | MPICH | `PMI_RANK`, `PMI_SIZE`, `PMI_FD` |
    /// | Slurm | `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` (inside `srun` only) |
    /// | dstack | `DSTACK_NODE_RANK`, `DSTACK_NODES_NUM`, `DSTACK_MASTER_NODE_IP` (a process for each node) |
    /// | SkyPilot | `SKYPILOT_NODE_RANK`, `SKYPILOT_NUM_NODES`, `SKYPILOT_NODE_IPS` (the same) |
    /// | none | a group of one |
    ///
    /// All other variables hold under every launcher. [`tools::VARIABLES`](crate::tools::VARIABLES) has them, each with a sentence, its default and an
    /// example; `comity info --settings` prints them.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with the variable as its key, where a value makes no sense or two contradict each other.
    ///
    /// ```
    /// let config = comity::Config::from_env()?;
    /// println!("rank {} of {}: {}", config.rank(), config.size(), config.evidence().why);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    /// Reads as [`from_env`](Self::from_env), with the variables from a function: for tests, and for launchers that show what a rank would do.
    /// Reads the files and descriptors that the variables name and nothing else.
    ///
    /// # Errors
    /// The errors of [`from_env`](Self::from_env).
    ///
    /// ```
    /// let config = comity::Config::from_vars(|name| match name {
    ///     "COMITY_RANK" => Some("0".into()),
    ///     "COMITY_SIZE" => Some("1".into()),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.size(), 1);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Ok(Self { settings: Settings::from_vars(&var)? })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.settings.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.settings.size
    }

    /// Rank and size among the processes of this host; `None` where the launcher did not tell.
    pub fn local(&self) -> Option<(usize, usize)> {
        self.settings.local
    }

    /// Returns the time limit for all ranks to meet; see [`join_timeout`](Self::join_timeout).
    pub fn join_limit(&self) -> Duration {
        self.settings.join_timeout
    }

    /// Returns the meeting point of the ranks.
    pub fn meeting_point(&self) -> &MeetingPoint {
        &self.settings.meeting_point
    }

    /// Returns the launcher that the environment shows, and the evidence.
    pub fn evidence(&self) -> &Evidence {
        &self.settings.evidence
    }
}

#[cfg(test)]
mod tests;
