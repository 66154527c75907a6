//! Launcher whose variables were believed.

use crate::named;

named! {
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
    pub enum Launcher: "launcher" {
        /// None: [`Config::new`](../comity/struct.Config.html#method.new).
        Explicit => "the program",
        /// `comity launch`, or `COMITY_*` set by hand.
        Comity => "comity launch",
        /// `mlx.launch`, or `MLX_RANK` and `MLX_HOSTFILE`.
        Mlx => "mlx.launch",
        /// `torchrun`, or what torch's `env://` reads.
        Torch => "torchrun",
        /// Open MPI's `mpirun`.
        OpenMpi => "Open MPI",
        /// MPICH's `mpiexec` and its kin that speak PMI-1.
        Mpich => "MPICH",
        /// Slurm's `srun`.
        Slurm => "Slurm",
        /// dstack, a process for each node.
        Dstack => "dstack",
        /// SkyPilot, a process for each node.
        SkyPilot => "SkyPilot",
        /// None was found: a group of one.
        Alone => "no launcher",
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
