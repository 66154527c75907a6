//! Backends that carry out the calls of a group.

use crate::LinkKind;
use std::fmt;

/// Backend that carries out the calls of a group (`COMITY_BACKEND`).
///
/// ```
/// use comity::BackendKind;
///
/// assert_eq!(BackendKind::from_name("mpi"), Some(BackendKind::Mpi));
/// for kind in BackendKind::ALL {
///     println!("{}: {}", kind.name(), if kind.is_available() { "can be loaded here" } else { "its library is missing" });
/// }
/// assert!(BackendKind::Any.is_available());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// The best there is: Comity's own plans over its own links.
    #[default]
    Any,
    /// An MPI library, in a job that its launcher started.
    Mpi,
    /// Comity's own plans, as [`Any`](Self::Any), for buffers in host memory; NCCL for buffers in CUDA memory.
    Nccl,
    /// Comity's own plans, as [`Any`](Self::Any), with RDMA before all other links, like MLX's backend of this name. Pairs without a device take shared
    /// memory or TCP.
    Jaccl,
}

impl BackendKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Any, Self::Mpi, Self::Nccl, Self::Jaccl];

    /// The name in flags and variables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Mpi => "mpi",
            Self::Nccl => "nccl",
            Self::Jaccl => "jaccl",
        }
    }

    /// The kind of this [`name`](Self::name); `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// The kind of link that it takes before all others.
    pub fn link(self) -> Option<LinkKind> {
        let takes = |k: &LinkKind| k.about().is_some_and(|a| a.first_for == Some(self.name()));
        LinkKind::LISTED.iter().copied().find(takes)
    }

    /// Returns true if the library that it needs can be loaded here. Making a group may still fail.
    pub fn is_available(self) -> bool {
        match self {
            Self::Any => true,
            Self::Mpi => crate::sys::mpi::find().is_ok(),
            Self::Jaccl => crate::sys::verbs::Verbs::find().is_ok(),
            Self::Nccl => {
                crate::sys::cuda::CudaDriver::find().is_ok() && crate::sys::nccl::Nccl::find().is_ok()
            }
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
