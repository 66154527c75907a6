//! Backends that carry out the calls of a group.

use crate::{LinkKind, named};

named! {
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
    pub enum BackendKind: "kind" {
        /// The best there is: Comity's own plans over its own links.
        #[default]
        Any => "any",
        /// An MPI library, in a job that its launcher started.
        Mpi => "mpi",
        /// Comity's own plans, as [`Any`](Self::Any), for buffers in host memory; NCCL for buffers in CUDA memory.
        Nccl => "nccl",
        /// Comity's own plans, as [`Any`](Self::Any), with RDMA before all other links, like MLX's backend of this name. Pairs without a
        /// device take shared memory or TCP.
        Jaccl => "jaccl",
    }
}

impl BackendKind {
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
