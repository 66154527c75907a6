//! A job as a user asks for it, parsed: the front end of the command line makes it, and [`launch`](crate::launch::launch) runs it.
use crate::backend::AskedBackend;
use crate::elastic::Elastic;
use crate::fleet::request::HostsRequest;
use crate::host::bind::BindWish;
use crate::nodes::request::NodeRequest;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// A job, and where its ranks run.
#[derive(Debug)]
pub struct LaunchRequest {
    /// The ranks.
    pub job: JobRequest,
    /// Where they run.
    pub placement: Placement,
}

/// Where the ranks run, and who starts them.
#[derive(Debug)]
pub enum Placement {
    /// On this host, started by this launcher.
    Here,
    /// On several hosts, each with a launcher that this one starts; or on this one as if it were one of several.
    Hosts(HostsRequest),
    /// On several hosts, each with a launcher that somebody else starts, such as this one.
    Nodes(NodeRequest),
    /// Where MPI's own launcher starts them, with these arguments more.
    Mpi {
        /// For MPI's launcher.
        more: Vec<String>,
    },
}

/// The ranks, and what each launcher does for them. A flag that one placement does not heed is refused before there is a request.
#[derive(Debug)]
pub struct JobRequest {
    /// Ranks; with several hosts, on each that does not say how many.
    pub ranks: usize,
    /// Nobody said how many ranks.
    pub is_default_size: bool,
    /// The program, and its arguments.
    pub command: Vec<OsString>,
    /// Variables of every rank.
    pub env: Vec<Setting>,
    /// The directory in which ranks start.
    pub cwd: Option<PathBuf>,
    /// Backend of the ranks' calls, where the user chose.
    pub backend: Option<AskedBackend>,
    /// Cores that each rank is bound to.
    pub bind_to: BindWish,
    /// Terms on which the job goes on without ranks, and the number of times that each rank is started again.
    pub elastic: Option<(Elastic, u32)>,
    /// The job ends after so long.
    pub timeout: Option<Duration>,
    /// Time that ranks have to end after SIGTERM.
    pub grace: Option<Duration>,
    /// Directory for each rank's output and records.
    pub log_dir: Option<PathBuf>,
    /// Whether lines start with their rank.
    pub tag_output: TagWish,
    /// Says what is started, and how each rank ended.
    pub verbose: bool,
    /// The rank that alone gets standard input.
    pub input: Option<InputRank>,
    /// A file, or the number of a descriptor, for events as JSON.
    pub json_events: Option<OsString>,
    /// Address at which requests for the ranks' counters are answered.
    pub metrics: Option<SocketAddr>,
    /// Without a job key.
    pub insecure: bool,
    /// Use of the job key, where the user chose.
    pub secure: Option<comity::Protection>,
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

    /// The rank that gets a terminal.
    pub fn terminal(self) -> Option<usize> {
        match self {
            Self::Pipe(_) => None,
            Self::Terminal(rank) => Some(rank),
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
        Self {
            ranks,
            is_default_size: false,
            command: command.iter().map(OsString::from).collect(),
            env: Vec::new(),
            cwd: None,
            backend: None,
            bind_to: BindWish::Off,
            elastic: None,
            timeout: None,
            grace: None,
            log_dir: None,
            tag_output: TagWish::Auto,
            verbose: false,
            input: None,
            json_events: None,
            metrics: None,
            insecure: false,
            secure: None,
        }
    }

    /// The rank that gets a terminal.
    pub fn tty(&self) -> Option<usize> {
        self.input.and_then(InputRank::terminal)
    }
}

/// Whether each line of output starts with its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Whether the lines of a job of so many ranks are tagged.
    pub fn applies(self, ranks: usize) -> bool {
        match self {
            Self::Auto => ranks > 1,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Variable of the ranks.
#[derive(Clone, Debug)]
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
}
