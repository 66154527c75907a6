//! Launcher whose variables were believed.

use std::fmt;

/// The launcher whose variables gave rank and size.
///
/// ```
/// use comity::{Config, Launcher};
///
/// let config = Config::from_vars(|name| match name {
///     "OMPI_COMM_WORLD_RANK" => Some("0".into()),
///     "OMPI_COMM_WORLD_SIZE" => Some("1".into()),
///     _ => None,
/// })?;
/// assert_eq!(config.evidence().launcher, Launcher::OpenMpi);
/// assert_eq!(Launcher::OpenMpi.to_string(), "Open MPI");
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// None: [`Config::new`](../comity/struct.Config.html#method.new).
    Explicit,
    /// `comity launch`, or `COMITY_*` set by hand.
    Comity,
    /// `mlx.launch`, or `MLX_RANK` and `MLX_HOSTFILE`.
    Mlx,
    /// `torchrun`, or what torch's `env://` reads.
    Torch,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec` and its kin that speak PMI-1.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// dstack, a process for each node.
    Dstack,
    /// SkyPilot, a process for each node.
    SkyPilot,
    /// None was found: a group of one.
    Alone,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "the program",
            Self::Comity => "comity launch",
            Self::Mlx => "mlx.launch",
            Self::Torch => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Slurm => "Slurm",
            Self::Dstack => "dstack",
            Self::SkyPilot => "SkyPilot",
            Self::Alone => "no launcher",
        })
    }
}

/// Launcher that the environment shows, and the evidence. [`Config::evidence`](../comity/struct.Config.html#method.evidence) returns it.
///
/// ```
/// let config = comity::Config::from_env()?;
/// let found = config.evidence();
/// println!("{}: {}", found.launcher, found.why);
/// for (name, value) in &found.seen {
///     println!("  {name}={value}");
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Evidence {
    /// Launcher whose variables gave rank and size.
    pub launcher: Launcher,
    /// The reason, in one sentence.
    pub why: String,
    /// Every variable that was read and set, in the order of reading. None of them holds a secret.
    pub seen: Vec<(&'static str, String)>,
}
