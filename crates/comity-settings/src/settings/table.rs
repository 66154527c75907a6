//! The table of every variable of this project: `comity info --settings` prints it, and `docs/make/settings.py` writes it into
//! `docs/settings.md`.
//!
//! That script reads this file as text: keep one field a line, in this order. A variable that the code reads and the table lacks fails the step `book`.

use super::{Topic, Variable};

/// Makes the table of the variables of each topic.
macro_rules! variables {
    ($(#[$about_all:meta])* $($topic:ident {$(
        $name:literal { about: $about:literal, default: $default:literal, example: $example:literal, }
    )*})*) => {
        $(#[$about_all])*
        pub const VARIABLES: &[Variable] = &[$($(Variable {
            name: $name,
            topic: Topic::$topic,
            about: $about,
            default: $default,
            example: $example,
        },)*)*];
    };
}

variables! {
    /// Every variable, by topic. Variables of other launchers are in [`Config::from_env`](../struct.Config.html#method.from_env).
    ///
    /// ```
    /// use comity::tools::VARIABLES;
    ///
    /// let limit = VARIABLES.iter().find(|v| v.name == "COMITY_TIMEOUT").unwrap();
    /// println!("{}: {}", limit.name, limit.about);
    /// ```
    Place {
        "COMITY_RANK" {
            about: "Says which rank this process is, from 0.",
            default: "from another launcher's variables, else a group of one",
            example: "2",
        }
        "COMITY_SIZE" {
            about: "Says how many ranks the job has, at most 65,536.",
            default: "from another launcher's variables, else a group of one",
            example: "4",
        }
        "COMITY_HOST" {
            about: "Names this host; ranks whose hosts have equal names may share memory.",
            default: "found",
            example: "node-a",
        }
    }
    Meeting {
        "MASTER_ADDR" {
            about: "Names the host of rank 0, which runs the store where ranks meet: a name or an address, or several \
                with a comma between. Each rank may name another address of that host.",
            default: "none",
            example: "10.0.0.1",
        }
        "MASTER_PORT" {
            about: "Names a free port of rank 0's host for the store.",
            default: "none",
            example: "29500",
        }
        "COMITY_JOB" {
            about: "Names the job, so that jobs never mix.",
            default: "from the launcher",
            example: "resnet-7",
        }
        "COMITY_ADDRS" {
            about: "Lists the addresses, with or without a port, on which this rank listens; a pair uses all of them \
                that work.",
            default: "those of all interfaces",
            example: "10.0.0.2:7100,10.1.0.2:7100",
        }
        "COMITY_INTERFACES" {
            about: "Says which network interfaces may be used: begins of names, whole names (`=en0`), networks; `!` leaves \
                one out.",
            default: "all but loopback",
            example: "en,!en0",
        }
        "COMITY_PORTS" {
            about: "Says on which ports this rank listens where no address names one.",
            default: "any",
            example: "7000-7031",
        }
        "COMITY_RELAY" {
            about: "`0` stops this rank from passing on bytes between ranks that have no way to each other, and others from passing on its own.",
            default: "`1`",
            example: "0",
        }
        "COMITY_MPTCP" {
            about: "`1` has TCP connections go on over another path when one is cut, by the kernel's MPTCP (Linux); set it for all ranks. [What it needs and costs](hosts.md#two-paths).",
            default: "`0`",
            example: "1",
        }
    }
    Trust {
        "COMITY_KEY_FILE" {
            about: "Names the file with the job's key, which only its owner may read.",
            default: "none; some launchers bring a key",
            example: "job.key",
        }
        "COMITY_INSECURE" {
            about: "`1` joins without a key; `public` listens on public addresses as well.",
            default: "off",
            example: "1",
        }
        "COMITY_SECURE" {
            about: "`handshake` lets the key decide who joins; `data` encrypts TCP too, on all ranks.",
            default: "`handshake`",
            example: "data",
        }
    }
    Limits {
        "COMITY_TIMEOUT" {
            about: "Says how many seconds a call may take; `none`: as long as all ranks live.",
            default: "`300`",
            example: "30",
        }
        "COMITY_JOIN_TIMEOUT" {
            about: "Says how many seconds ranks wait for the next one to come.",
            default: "`60`",
            example: "600",
        }
        "COMITY_DETECTION" {
            about: "Says how long a silent rank is waited for: `fast` (1 s), `normal` (5 s), `patient` (30 \
                s), seconds, or `off`; the most patient rank decides.",
            default: "`normal`",
            example: "patient",
        }
    }
    Links {
        "COMITY_LINKS" {
            about: "Lists the kinds of link that may be used: `shm`, `unix`, `rdma`, `tcp`.",
            default: "all but `unix`",
            example: "unix,tcp",
        }
        "COMITY_CONNECTIONS" {
            about: "Says how many TCP connections a pair of ranks opens for each address; the larger wish of \
                the pair holds.",
            default: "1, or 2 where send threads are used; up to 15 where a round trip takes more than 10 ms",
            example: "4",
        }
        "COMITY_SHARED_BUFFERS" {
            about: "Says how many MiB of buffers (`Group::alloc`, `comity.empty`) the other ranks of its host may read in \
                this process's memory; 0: none. Further buffers are ordinary memory.",
            default: "as many as the system gives",
            example: "4096",
        }
        "COMITY_DEVICES" {
            about: "Gives the RDMA devices from each rank to each other, as JSON or as a file of it.",
            default: "the device with the address of the pair's connection",
            example: "devices.json",
        }
    }
    Calls {
        "COMITY_BACKEND" {
            about: "`any` takes the best there is, `jaccl` prefers RDMA to shared memory, `mpi` and `nccl` \
                give the data to those libraries.",
            default: "`any`",
            example: "nccl",
        }
        "COMITY_DEVICE" {
            about: "Names this rank's CUDA device, by its number among those that it sees; used with `nccl`.",
            default: "the rank's number on its host",
            example: "1",
        }
        "COMITY_ALGORITHM" {
            about: "Carries out operations by this algorithm where it can, on all ranks.",
            default: "the cheapest",
            example: "ring",
        }
        "COMITY_LANES" {
            about: "Says with how many threads, its own among them, a rank moves and adds up a large message within its host; on all ranks alike. `1` makes none, and calls in the background use none.",
            default: "its own, and threads on half of the rank's share of its host's cores, of which one stays with the program; at most 16, and fewer for a shorter message",
            example: "4",
        }
        "COMITY_COSTS" {
            about: "`measure` measures the links before plans are chosen; a file holds what `comity check \
                --links --json` wrote; all ranks or none set it.",
            default: "what links of each kind usually cost",
            example: "measure",
        }
        "COMITY_TORCH_COMPRESSION" {
            about: "Compresses what `all_reduce` of the torch backend sends of float32: `fp16`, `bf16`, \
                `int8` or `topk`, on every rank.",
            default: "off",
            example: "bf16",
        }
    }
    Libraries {
        "COMITY_NCCL" {
            about: "Names the NCCL library.",
            default: "`libnccl.so.2`, also of PyPI's wheels",
            example: "/opt/nccl/lib/libnccl.so.2",
        }
        "COMITY_CUDA" {
            about: "Names the CUDA driver's library.",
            default: "`libcuda.so.1`",
            example: "/usr/lib/libcuda.so.1",
        }
        "COMITY_MPI" {
            about: "Names the MPI library.",
            default: "found: the launcher's, else `libmpi_abi.so`",
            example: "/opt/mpi/lib/libmpi.so.40",
        }
        "COMITY_MPIRUN" {
            about: "Names the launcher of MPI for `comity launch --backend mpi`.",
            default: "found",
            example: "/opt/mpi/bin/mpirun",
        }
        "COMITY_VERBS" {
            about: "Names the library with RDMA verbs.",
            default: "`libibverbs.so.1`, on macOS `librdma.dylib`",
            example: "/opt/rdma/libibverbs.so.1",
        }
    }
    Reports {
        "COMITY_LOG_DIR" {
            about: "Names the folder for flight records of groups that fail.",
            default: "none; `comity launch --log-dir` sets it",
            example: "/var/log/job",
        }
        "COMITY_VERBOSE" {
            about: "`1` prints how this rank found its place.",
            default: "off",
            example: "1",
        }
    }
    Launcher {
        "COMITY_LOCAL_RANK" {
            about: "Says which rank of its host this process is.",
            default: "unknown",
            example: "0",
        }
        "COMITY_LOCAL_SIZE" {
            about: "Says how many ranks this host has.",
            default: "unknown",
            example: "2",
        }
        "COMITY_STORE" {
            about: "Names a store that runs already, in place of `MASTER_ADDR` and `MASTER_PORT`; several addresses with \
                a comma between.",
            default: "set by `comity launch`",
            example: "10.0.0.1:4000",
        }
        "COMITY_JOIN" {
            about: "`1` joins a job that runs, at its `COMITY_STORE`: the process waits until the ranks form their group again. \
                `COMITY_SIZE` is passed over; `COMITY_RANK` only says whose place it takes.",
            default: "set by `comity launch --elastic` and `comity join`",
            example: "1",
        }
        "COMITY_KEY_FD" {
            about: "Names an inherited descriptor with the job's key.",
            default: "set by `comity launch`",
            example: "5",
        }
        "COMITY_ROOT_CAUSE_FD" {
            about: "Names the memory in which ranks tell `comity launch` the root cause of a failure; for \
                the launcher alone.",
            default: "set by `comity launch`",
            example: "7",
        }
        "COMITY_RESTART" {
            about: "Says how often `comity launch --max-restarts` has started this job again, or with `--elastic` this rank, for your \
                program to read: 0 the first time.",
            default: "set by `comity launch`",
            example: "1",
        }
        "COMITY_HOST_CORES" {
            about: "Says how many cores the ranks of this host share, where each was given some of its own.",
            default: "set by `comity launch --bind-to`",
            example: "16",
        }
        "COMITY_STATS_FD" {
            about: "Names the memory in which ranks count and say what they do, for `comity top`, `comity \
                stacks` and `--metrics`; for the launcher alone.",
            default: "set by `comity launch`",
            example: "8",
        }
    }
    Internal {
        "COMITY_CONNECT" {
            about: "`needed` makes the link of a pair of ranks with the first call that needs it; `all` makes all links \
                when a group opens.",
            default: "`needed`; `all` in `comity check` and `comity bench` of up to 16 ranks",
            example: "all",
        }
        "COMITY_SEND_THREADS" {
            about: "Says how many threads may send long messages over TCP beside the rank's own, from 0 to \
                64.",
            default: "one for every four cores of the rank's share of its host",
            example: "0",
        }
        "COMITY_PULL" {
            about: "Says from how many bytes on a message between ranks of a host is read where it lies in the sender's memory (Linux); \
                0: never.",
            default: "where it is [quicker](transports-reference.md#links)",
            example: "131072",
        }
        "COMITY_PTRACER" {
            about: "Says whom a rank lets read its memory where Yama's `ptrace_scope` is 1 and its messages are to be read there (`COMITY_PULL`): `ancestor` (the nearest \
                process that started all ranks of the host, with its descendants), `any` (every process of this user) or `keep` (whom the \
                program named itself).",
            default: "`keep`; with a `COMITY_PULL` above 0 `ancestor`",
            example: "keep",
        }
        "COMITY_RDMA" {
            about: "`rc` or `uc` allows this service of RDMA devices only; for tests.",
            default: "RC where both have it, else UC",
            example: "uc",
        }
    }
}
