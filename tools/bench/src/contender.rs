//! Contenders of the measurement: Comity, the peers, and the limits of the machine.

use super::cell::{Element, Operation};
use comity_kernel::named;

named! {
    /// Another library.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Peer: "library" {
        Gloo => "gloo",
        Mlx => "mlx",
        OpenMpi => "openmpi",
        Mpich => "mpich",
    }
}

/// Carrier of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Wire {
    Memory,
    Tcp,
    /// TCP between two namespaces of the network.
    Namespaces,
}

impl Wire {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Tcp, Self::Namespaces];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Memory => "Shared memory",
            Self::Tcp => "TCP over loopback",
            Self::Namespaces => "TCP between two network namespaces",
        }
    }
}

/// Program that is started for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// This program itself, with the name of a limit.
    Limit(&'static str),
    /// `comity bench`.
    Comity,
    /// The program in Python, with the name of a library.
    Python(&'static str),
    /// The program in C, compiled by this MPI's compiler.
    Mpi(&'static str),
}

/// A column of the tables.
#[derive(Debug)]
pub(crate) struct Contender {
    /// In files and messages.
    pub(crate) name: &'static str,
    /// In tables and pictures.
    pub(crate) label: &'static str,
    pub(crate) wire: Wire,
    pub(crate) program: Program,
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// For its launcher; of Comity for `comity bench`.
    pub(crate) flags: &'static [&'static str],
    /// Okabe and Ito's, told apart by colour-blind readers.
    pub(crate) colour: &'static str,
}

/// Variable that lets Open MPI keep the temporary buffer of a call rather than ask the system for it each time.
const KEEP_BUFFERS: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=268435456",
);

/// Comity, as released and over shared memory.
const PLAIN: Contender = Contender {
    name: "comity",
    label: "Comity",
    wire: Wire::Memory,
    program: Program::Comity,
    env: &[],
    flags: &[],
    colour: "#0072b2",
};

const LIMIT: Contender = Contender {
    name: "limit",
    label: "limit of the machine",
    program: Program::Limit("memory"),
    colour: "#888888",
    ..PLAIN
};

const OPEN_MPI: Contender = Contender {
    name: "openmpi",
    label: "Open MPI",
    program: Program::Mpi("openmpi"),
    colour: "#d55e00",
    ..PLAIN
};

const GLOO: Contender = Contender {
    name: "gloo",
    label: "gloo (torch)",
    wire: Wire::Tcp,
    program: Program::Python("gloo"),
    colour: "#cc79a7",
    ..PLAIN
};

const MLX: Contender =
    Contender { name: "mlx", label: "MLX ring", program: Program::Python("mlx"), colour: "#000000", ..GLOO };

const OVER_TCP: Contender =
    Contender { name: "comity-tcp", wire: Wire::Tcp, env: &[("COMITY_LINKS", "tcp")], ..PLAIN };

/// All that there are, in the order of the columns.
pub(crate) static CONTENDERS: &[Contender] = &[
    LIMIT,
    Contender {
        name: "limit-tcp",
        label: "bare sockets",
        wire: Wire::Tcp,
        program: Program::Limit("sockets"),
        ..LIMIT
    },
    PLAIN,
    Contender {
        name: "comity-shared",
        label: "Comity, shared buffers",
        flags: &["--shared-buffers"],
        colour: "#00429d",
        ..PLAIN
    },
    Contender {
        name: "comity-numpy",
        label: "Comity, NumPy",
        program: Program::Python("numpy"),
        colour: "#56b4e9",
        ..PLAIN
    },
    Contender {
        name: "comity-torch",
        label: "Comity, torch",
        program: Program::Python("torch"),
        colour: "#2c5f8a",
        ..PLAIN
    },
    OVER_TCP,
    OPEN_MPI,
    Contender {
        name: "openmpi-tuned",
        label: "Open MPI, tuned",
        env: &[KEEP_BUFFERS],
        flags: &["--mca", "btl_vader_single_copy_mechanism", "none"],
        colour: "#e69f00",
        ..OPEN_MPI
    },
    Contender { name: "mpich", label: "MPICH", program: Program::Mpi("mpich"), colour: "#009e73", ..PLAIN },
    Contender {
        name: "openmpi-tcp",
        wire: Wire::Tcp,
        flags: &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
        ..OPEN_MPI
    },
    GLOO,
    MLX,
    Contender { name: "comity-namespaces", wire: Wire::Namespaces, ..OVER_TCP },
    Contender { name: "gloo-namespaces", wire: Wire::Namespaces, ..GLOO },
    Contender { name: "mlx-namespaces", wire: Wire::Namespaces, ..MLX },
];

impl Contender {
    pub(crate) fn from_name(name: &str) -> Option<&'static Self> {
        CONTENDERS.iter().find(|c| c.name == name)
    }

    /// Library that it runs; none for Comity and the limits.
    pub(crate) fn peer(&self) -> Option<Peer> {
        match self.program {
            Program::Python(name) | Program::Mpi(name) => Peer::from_name(name),
            Program::Comity | Program::Limit(_) => None,
        }
    }

    pub(crate) fn is_limit(&self) -> bool {
        matches!(self.program, Program::Limit(_))
    }

    /// Return whether it is Comity, by whatever name.
    pub(crate) fn is_ours(&self) -> bool {
        self.peer().is_none() && !self.is_limit()
    }

    /// Return whether it is a library that users drive from Python.
    pub(crate) fn is_python(&self) -> bool {
        matches!(self.program, Program::Python(_))
    }

    /// Return whether its program in Python needs this module.
    pub(crate) fn imports(&self, module: &str) -> bool {
        match self.program {
            Program::Python("gloo") => module == "torch",
            Program::Python("torch") => matches!(module, "torch" | "comity"),
            Program::Python("numpy") => module == "comity",
            Program::Python(library) => library == module,
            _ => false,
        }
    }

    /// Return whether the library has this at all.
    pub(crate) fn can(&self, op: Operation, element: Element) -> bool {
        match self.program {
            // A barrier has no buffer to share.
            Program::Comity if !self.flags.is_empty() => !matches!(op, Operation::Barrier),
            Program::Limit(_) | Program::Comity => true,
            // Open MPI 4.1 and MPICH 4.0 know no bfloat16.
            Program::Mpi(_) => element == Element::F32,
            Program::Python("numpy") => element == Element::F32,
            // MLX's ring has no reduce_scatter, MLX no broadcast, all_to_all and barrier.
            Program::Python("mlx") => {
                matches!(op, Operation::AllReduce | Operation::AllGather | Operation::PingPong)
            }
            Program::Python(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_peer_takes_part() {
        let names: BTreeSet<_> = CONTENDERS.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), CONTENDERS.len());
        for peer in Peer::ALL {
            assert!(CONTENDERS.iter().any(|c| c.peer() == Some(peer)));
        }
        for wire in [Wire::Memory, Wire::Tcp] {
            let on = |f: fn(&Contender) -> bool| CONTENDERS.iter().filter(|c| c.wire == wire && f(c)).count();
            assert_eq!(on(Contender::is_limit), 1);
            assert!(on(Contender::is_ours) >= 1);
        }
    }

    #[test]
    fn what_a_library_lacks_is_not_asked_of_it() {
        let can = |name, op, e| Contender::from_name(name).unwrap().can(op, e);
        assert!(
            !can("mlx", Operation::Broadcast, Element::F32)
                && can("mlx", Operation::AllGather, Element::Bf16)
        );
        assert!(
            !can("mpich", Operation::AllReduce, Element::Bf16)
                && can("gloo", Operation::AllReduce, Element::Bf16)
        );
    }
}
