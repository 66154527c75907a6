//! A job as a user asks for it: each field is a flag of `comity launch`, with its help. [`launch`](crate::launch) runs it.
//!
//! A new flag is a field here, or in [`HostsRequest`] or [`NodeRequest`]. Launchers keep the request and read the field where it counts; it
//! travels to the launchers of other hosts, but for the fields that are for this one alone. One that every rank is started with, here or afar,
//! is a field of [`RankTerms`] and a line of its `variables`. The command says of each flag which placements refuse it: it takes a request apart
//! by name, so a flag without a place does not compile.
use crate::elastic::{Elastic, RESTARTS};
use crate::fleet::request::HostsRequest;
use crate::host::bind::BindWish;
use crate::machine::PATIENCE;
use crate::nodes::NodeRequest;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use comity::{BackendKind, Protection};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Headings of `comity launch --help`.
pub(crate) mod section {
    pub(crate) const RANKS: &str = "Ranks";
    pub(crate) const HOSTS: &str = "Hosts";
    pub(crate) const SSH: &str = "ssh";
    pub(crate) const ENDING: &str = "Ending";
    pub(crate) const OUTPUT: &str = "Output";
    pub(crate) const SECURITY: &str = "Security";
    pub(crate) const MLX: &str = "MLX's flags";
}

/// A job, and where its ranks run.
#[derive(Debug, clap::Args)]
pub struct LaunchRequest {
    /// The ranks.
    #[command(flatten)]
    pub job: JobRequest,
    /// Other hosts.
    #[command(flatten)]
    pub hosts: HostsRequest,
    /// This host among others.
    #[command(flatten)]
    pub node: NodeRequest,
}

/// Place of the ranks, by what starts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On this host, started by this launcher.
    Here,
    /// On several hosts, each with a launcher that this one starts; or on this one as if it were one of several.
    Hosts,
    /// On several hosts, each with a launcher that somebody else starts, such as this one.
    Nodes,
    /// Wherever MPI's own launcher starts them.
    Mpi,
}

impl LaunchRequest {
    /// The place of its ranks.
    pub fn placement(&self) -> Placement {
        match self {
            _ if self.node.is_given() => Placement::Nodes,
            _ if self.hosts.is_given() || self.job.restarts_of_job() > 0 => Placement::Hosts,
            _ if self.job.is_mpi() => Placement::Mpi,
            _ => Placement::Here,
        }
    }
}

/// Terms on which the host of a rank starts it, here or afar: they travel whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct RankTerms {
    /// Bind each rank to a core of its own (core), or to the cores that share a third-level cache (complex)
    #[arg(
        long,
        value_enum,
        value_name = "CORES",
        default_value = "off",
        hide_possible_values = true,
        hide_default_value = false,
        help_heading = section::RANKS
    )]
    pub bind_to: BindWish,

    /// Make no job key: whoever can connect to a rank and knows the job's name can join
    #[arg(hide_short_help = true, long, help_heading = section::SECURITY)]
    pub insecure: bool,

    /// Protect by the job key the handshake (who may connect, the default) or data (everything that goes over TCP, too)
    #[arg(hide_short_help = true, long, value_name = "PART", conflicts_with = "insecure", value_parser = secure_parser(), hide_possible_values = true, help_heading = section::SECURITY)]
    #[serde(with = "protection")]
    pub secure: Option<Protection>,
}

impl RankTerms {
    /// Variables of each rank, and none for those that the shell may not set for another job.
    pub(crate) fn variables(&self) -> Vec<(&'static str, Option<String>)> {
        // Named: a flag that is forgotten does not compile. The cores are the launcher's own to choose.
        let Self { bind_to: _, insecure, secure } = self;
        let mut all = vec![("COMITY_INSECURE", insecure.then(|| "1".into()))];
        all.extend(secure.map(|secure| ("COMITY_SECURE", Some(secure.name().into()))));
        all
    }
}

/// Protection on the way to another host, by its name.
mod protection {
    use comity::Protection;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(secure: &Option<Protection>, to: S) -> Result<S::Ok, S::Error> {
        secure.map(Protection::name).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Protection>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        Ok(name.map(|name| if name == "data" { Protection::Data } else { Protection::Handshake }))
    }
}

/// The ranks, and what each launcher does for them. A flag that one placement does not heed is refused before anything runs.
///
/// It travels to other hosts without the fields that serde skips. Of these the command, its variables and its directory are a host's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub struct JobRequest {
    /// Start this many ranks (default: 1); with --hosts or --hostfile, on each host that does not say how many
    #[serde(skip)]
    #[arg(short = 'n', long, alias = "repeat-hosts", value_name = "N", allow_negative_numbers = true, value_parser = number_of_ranks, help_heading = section::RANKS)]
    pub ranks: Option<u32>,

    /// Set a variable for every rank (repeatable)
    #[serde(skip)]
    #[arg(long, value_name = "K=V", value_parser = OsStringValueParser::new().try_map(Setting::parse), help_heading = section::RANKS)]
    pub env: Vec<Setting>,

    /// Start the ranks in this directory
    #[serde(skip)]
    #[arg(long, value_name = "DIR", help_heading = section::RANKS)]
    pub cwd: Option<PathBuf>,

    /// Carry the ranks' calls by `any` (the best there is, the default), `jaccl` (RDMA first), `nccl`, or `mpi` (MPI's own launcher
    /// starts the ranks); also MLX's `ring` and `jaccl-ring`
    #[arg(long, value_name = "NAME", value_parser = one_of(AskedBackend::all(), AskedBackend::named), hide_possible_values = true, help_heading = section::RANKS)]
    pub backend: Option<AskedBackend>,

    /// Terms of each rank.
    #[command(flatten)]
    pub terms: RankTerms,

    /// Go on without ranks that die as long as MIN are left, and start these again to join: for programs that form their group again
    /// (docs/elastic.md). MAX limits the ranks with those that `comity join` adds
    #[serde(skip)]
    #[arg(long, value_name = "MIN[:MAX]", value_parser = Elastic::parse, help_heading = section::ENDING)]
    pub elastic: Option<Elastic>,

    /// Start a job that failed again, this many times (default: 0), with a pause that doubles from 1 s to 30 s; with --elastic each rank
    /// that failed (default: 10)
    #[serde(skip)]
    #[arg(long, value_name = "N", help_heading = section::ENDING)]
    pub max_restarts: Option<u32>,

    /// End the job after this many seconds, with exit code 124 (the limit of each call is COMITY_TIMEOUT)
    #[serde(skip)]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    pub timeout: Option<Duration>,

    /// Let ranks take this long to end after SIGTERM before they are killed (default: 3), say to write a checkpoint
    #[serde(skip)]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    pub grace: Option<Duration>,

    /// Also write each rank's output, untagged, to DIR/rank-N.out and DIR/rank-N.err, and its last calls when a
    /// group fails, for `comity report DIR`
    #[serde(skip)]
    #[arg(long, value_name = "DIR", help_heading = section::OUTPUT)]
    pub log_dir: Option<PathBuf>,

    /// Start each line with its rank in brackets: always, never, or with two ranks or more (auto)
    #[serde(skip)]
    #[arg(
        hide_short_help = true,
        long,
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always",
        hide_possible_values = true,
        help_heading = section::OUTPUT
    )]
    pub tag_output: TagWish,

    /// Show what is started, with which variables, and how each rank ended
    #[serde(skip)]
    #[arg(long, short, help_heading = section::OUTPUT)]
    pub verbose: bool,

    /// Give standard input to this rank alone, and show its output as it comes: for a debugger in one rank
    #[arg(hide_short_help = true, long, value_name = "RANK", help_heading = section::OUTPUT)]
    pub stdin_rank: Option<usize>,

    /// Give this rank a terminal of its own: line editing, Ctrl-C and colours are the rank's; Ctrl-] ends the job
    #[arg(hide_short_help = true, long, value_name = "RANK", conflicts_with_all = ["stdin_rank", "print_python"], help_heading = section::OUTPUT)]
    pub tty: Option<usize>,

    /// Write each event of the job to FILE, or to the open descriptor of this number, as one JSON object a line
    #[serde(skip)]
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = section::OUTPUT)]
    pub json_events: Option<OsString>,

    /// Answer GET /metrics at this address, such as 127.0.0.1:9400, with each rank's counters for Prometheus
    #[serde(skip)]
    #[arg(hide_short_help = true, long, value_name = "ADDR", value_parser = crate::host::metrics::address, help_heading = section::OUTPUT)]
    pub metrics: Option<SocketAddr>,

    /// The command that every rank runs, with its arguments
    #[serde(skip)]
    #[arg(required_unless_present = "print_python", trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Rank that a user talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRank {
    /// It gets standard input.
    Pipe(usize),
    /// It gets a terminal of its own.
    Terminal(usize),
}

impl InputRank {
    /// The number of the rank.
    pub fn rank(self) -> usize {
        match self {
            Self::Pipe(rank) | Self::Terminal(rank) => rank,
        }
    }

    /// The flag that names it.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Pipe(_) => "--stdin-rank",
            Self::Terminal(_) => "--tty",
        }
    }
}

impl JobRequest {
    /// Request for a command alone.
    #[cfg(test)]
    pub fn of_command(ranks: usize, command: &[&str]) -> Self {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            request: LaunchRequest,
        }
        let ranks = ranks.to_string();
        let words = [&["launch", "-n", &ranks, "--"], command].concat();
        <Words as clap::Parser>::parse_from(words).request.job
    }

    /// Ranks; with several hosts, on each that does not say how many.
    pub fn size(&self) -> usize {
        self.ranks.unwrap_or(1) as usize
    }

    /// The rank that alone gets standard input.
    pub fn input(&self) -> Option<InputRank> {
        self.tty.map(InputRank::Terminal).or_else(|| self.stdin_rank.map(InputRank::Pipe))
    }

    /// Returns true if rank `rank` gets standard input.
    pub(crate) fn hears(&self, rank: usize) -> bool {
        self.input().is_none_or(|only| only.rank() == rank)
    }

    /// Returns true if this rank alone gets standard input: its output passes as it comes.
    pub(crate) fn is_talked_to(&self, rank: usize) -> bool {
        self.input().is_some_and(|only| only.rank() == rank)
    }

    /// Program as typed: a rank sees this as its name.
    pub(crate) fn name(&self) -> &OsStr {
        self.command.first().map(OsString::as_os_str).unwrap_or_default()
    }

    pub(crate) fn args(&self) -> &[OsString] {
        self.command.get(1..).unwrap_or_default()
    }

    /// Time that ranks have to end after SIGTERM.
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(PATIENCE)
    }

    /// The user's word for the backend.
    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.map_or("any", |b| b.name)
    }

    /// The backend that a rank is told; none: what the shell says, or the best there is.
    pub(crate) fn backend_of_ranks(&self) -> Option<BackendKind> {
        self.backend.map(|b| b.kind).filter(|kind| *kind != BackendKind::Any)
    }

    /// True if MPI carries the calls.
    pub fn is_mpi(&self) -> bool {
        self.backend.is_some_and(|b| b.kind == BackendKind::Mpi)
    }

    /// Number of times that the whole job is started again.
    pub fn restarts_of_job(&self) -> u32 {
        self.max_restarts.filter(|_| self.elastic.is_none()).unwrap_or(0)
    }

    /// Terms on which the job goes on without ranks, and the number of times that each rank is started again.
    pub(crate) fn elastic(&self) -> Option<(Elastic, u32)> {
        self.elastic.map(|elastic| (elastic, self.max_restarts.unwrap_or(RESTARTS)))
    }
}

/// Choice of the jobs in which each line of output starts with its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TagWish {
    /// With two ranks or more.
    #[default]
    Auto,
    /// Also where there is one.
    Always,
    /// No line.
    Never,
}

impl TagWish {
    /// Returns true if the lines of a job of so many ranks are tagged.
    pub fn applies(self, ranks: usize) -> bool {
        match self {
            Self::Auto => ranks > 1,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Variable of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name.
    pub name: OsString,
    /// Its value.
    pub value: OsString,
}

impl Setting {
    /// Reads `NAME=VALUE`.
    pub fn parse(text: OsString) -> Result<Self, String> {
        let bytes = text.as_bytes();
        match bytes.iter().position(|&b| b == b'=') {
            Some(0) => Err("there is no name before '='; write NAME=VALUE".into()),
            Some(at) => Ok(Self {
                name: OsStr::from_bytes(&bytes[..at]).into(),
                value: OsStr::from_bytes(&bytes[at + 1..]).into(),
            }),
            None => Err("there is no '='; write NAME=VALUE (variables of this shell reach the ranks \
                 of this host without --env)"
                .into()),
        }
    }
}

/// Reads the number of ranks. `-np 2`, as mpirun takes it, comes as `p`.
fn number_of_ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=4096).contains(n));
    number.ok_or_else(|| match text {
        "p" => "mpirun's -np is -n here, as in -n 2".to_owned(),
        _ => "it takes a number from 1 to 4096, as in -n 2".to_owned(),
    })
}

/// Parser of one of these names, as what has it.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    names: impl IntoIterator<Item = &'static str>,
    named: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| named(&name).ok_or("no such name"))
}

/// Reads a time above 0.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = "allowed is a number of seconds above 0, such as 90 or 0.5";
    let number: f64 = text.parse().map_err(|_| format!("not a number; {allowed}"))?;
    match Duration::try_from_secs_f64(number) {
        // A century: beyond it, adding to the clock could overflow.
        Ok(time) if !time.is_zero() && time.as_secs() < 3_200_000_000 => Ok(time),
        _ => Err(format!("out of range; {allowed}")),
    }
}

/// Parser of the values of `--secure`.
pub fn secure_parser() -> impl TypedValueParser<Value = Protection> {
    PossibleValuesParser::new(["handshake", "data"])
        .map(|s| if s == "data" { Protection::Data } else { Protection::Handshake })
}

/// The variable that says to a rank that rings go before other plans.
const RING: (&str, &str) = ("MLX_JACCL_RING", "1");

/// MLX's names beside ours, and what they are here.
const MLX: [(&str, BackendKind); 2] = [("ring", BackendKind::Any), ("jaccl-ring", BackendKind::Jaccl)];

/// Backend for the ranks' calls, by the user's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedBackend {
    /// The user's word for it.
    pub name: &'static str,
    /// The backend itself.
    pub kind: BackendKind,
}

impl AskedBackend {
    /// The kind of this name; none where there is no such name.
    pub fn named(name: &str) -> Option<Self> {
        let ours = BackendKind::ALL.map(|kind| (kind.name(), kind));
        let (name, kind) = ours.into_iter().chain(MLX).find(|(known, _)| *known == name)?;
        Some(Self { name, kind })
    }

    /// A variable of the ranks that goes with this name.
    pub fn variable(name: &str) -> Option<(&'static str, &'static str)> {
        (name == "jaccl-ring").then_some(RING)
    }

    /// Every name.
    pub fn all() -> impl Iterator<Item = &'static str> {
        BackendKind::ALL.into_iter().map(BackendKind::name).chain(MLX.map(|(name, _)| name))
    }
}

impl Serialize for AskedBackend {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(to)
    }
}

impl<'a> Deserialize<'a> for AskedBackend {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        Self::named(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("there is no such backend"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_need_a_name_and_an_equals_sign() {
        let set = Setting::parse("A=b=c".into()).unwrap();
        assert_eq!((set.name.to_str(), set.value.to_str()), (Some("A"), Some("b=c")));
        assert_eq!(Setting::parse("A=".into()).unwrap().value, "");
        assert!(Setting::parse("A".into()).unwrap_err().contains("NAME=VALUE"));
        assert!(Setting::parse("=b".into()).is_err());
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "ten", "", "1e-300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
