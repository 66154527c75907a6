//! `comity launch --nnodes N --node-rank R --rendezvous HOST[:PORT]`: for hosts without ssh, each of which starts its own launcher.
//!
//! ```text
//! node 0: launcher, store, ranks 0 and 1  --+
//! node 1: launcher, ranks 2 and 3         --+-- the launchers are a group of Comity's own
//! node 2: launcher, rank 4                --+
//! ```
//!
//! The launchers [agree](agree) on the job as a group: whose ranks are which, where the ranks meet, a fresh key. Then they [watch](watch)
//! each other: one whose rank fails, or that is gone, ends the ranks of all. At the end each has the others' findings, so all
//! say the same last line and exit with the same code.
use crate::host::job::{self, Job};
use crate::host::meet::Meeting;
use crate::host::output::Outputs;
use crate::host::supervisor::{self, Supervisor};
use crate::machine::{Ending, Event, Problem, REFUSED, Role, StopReason};
use crate::request::{JobRequest, section};
use crate::upstream::{FrontLine, Order, Upstream};
use agree::{Agreement, NodeCall};
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::Nodes;

mod addresses;
mod agree;
pub(crate) mod watch;

/// Interval of the lines that other nodes are waited for.
const SAID: Duration = Duration::from_secs(5);

/// Runs this node's part to its end and returns the exit code.
pub(crate) fn launch(mut request: JobRequest, node: NodeRequest) -> Result<u8, Problem> {
    let log_dir = request.log_dir.take();
    let call = NodeCall::check(&request, node)?;
    let size = request.size();
    let job = Job::check(request, false, size)?;
    crate::host::front_end::guarded(false, |front_end, input| {
        match open(call, job, log_dir, front_end, input) {
            Ok(Some(supervisor)) => supervisor.run(),
            Ok(None) => Ending::Signal(libc::SIGINT).code(),
            Err(problem) => problem.say(),
        }
    })
}

/// The supervisor of this node's ranks, once all nodes agree; none if the user ended the wait.
fn open(
    call: NodeCall,
    mut job: Job,
    log_dir: Option<PathBuf>,
    front_end: UnixStream,
    input: OwnedFd,
) -> Result<Option<Supervisor>, Problem> {
    let fail = |e: io::Error| Problem::machine(format!("cannot prepare the job: {e}"));
    let open_files = supervisor::stand_alone().map_err(fail)?;
    rustix::stdio::dup2_stdin(&input).map_err(|e| fail(e.into()))?;
    let mut front_end = FrontLine::new(front_end).map_err(fail)?;
    let output = Outputs::open().map_err(fail)?;
    let verbose = job.request.verbose;
    let shown = call.at.clone();
    let Some(agreed) = wait(call, &job, &mut front_end, &output)? else { return Ok(None) };
    let Agreement { go, store, kept, group, words, first, world } = agreed;
    job.first = first;
    job.world = world;
    if let Some(dir) = log_dir {
        job.logs = Some(job::open_logs(&dir, first..first + job.size)?);
        job.flights = Some(job::clear_flights(&dir)?);
        job.request.log_dir = Some(dir);
    }
    if job.request.stdin_rank.is_some_and(|r| r >= world) {
        return Err(Problem::usage(format!("--stdin-rank: there are {world} ranks, from 0")));
    }
    let meeting = Meeting::of(go, world, store, kept).map_err(fail)?;
    meeting.on_waiting(output.voice());
    if verbose {
        let hosts: Vec<_> = words.iter().map(|w| format!("{} ({} ranks)", w.host, w.size)).collect();
        output.say(&format!(
            "{world} ranks on {} nodes that met at {shown}: {}",
            words.len(),
            hosts.join(", ")
        ));
    }
    let listener = job.metrics.take();
    let mut supervisor =
        Supervisor::with(Role::Node, job, meeting, (front_end, output), open_files).map_err(fail)?;
    supervisor.show(listener).map_err(fail)?;
    supervisor.feed = crate::host::stdin::StdinFeed::new(input);
    supervisor.nodes = Some(Nodes::watch(group, words).map_err(fail)?);
    Ok(Some(supervisor))
}

/// Agrees in a thread, so that the user can end the wait.
fn wait(
    call: NodeCall,
    job: &Job,
    front_end: &mut FrontLine,
    output: &Outputs,
) -> Result<Option<Agreement>, Problem> {
    let fail = |e: io::Error| Problem::machine(format!("cannot prepare the job: {e}"));
    let at = call.at.clone();
    let node = call.node;
    let nodes = call.nodes;
    let word = agree::word(job);
    let (done, ring) = UnixStream::pair().map_err(fail)?;
    let thread = std::thread::Builder::new()
        .name("nodes".into())
        .spawn(move || {
            let agreed = agree::agree(&call, word);
            drop(ring);
            agreed
        })
        .map_err(fail)?;
    let mut say = Instant::now() + SAID;
    loop {
        let mut fds = vec![PollFd::new(&done, PollFlags::IN)];
        fds.extend(front_end.want());
        let _ = poll_until(&mut fds, Some(say));
        if !fds[0].revents().is_empty() {
            // WAIT: the thread has closed its end, the last thing that it does
            let gone = || Problem::machine("cannot prepare the job: a thread ended early".into());
            return thread.join().map_err(|_| gone())?.map(Some);
        }
        for order in front_end.take() {
            match order {
                Order::News(Event::Stop(StopReason::Interrupted { signal })) => {
                    std::process::exit(Ending::Signal(signal).code().into())
                }
                Order::FrontEndLost => std::process::exit(REFUSED.into()),
                Order::Suspend => front_end.all_stopped(),
                _ => {}
            }
        }
        if Instant::now() >= say {
            output.say(&format!("node {node} of {nodes} waits for the others at {at}"));
            say = Instant::now() + SAID * 2;
        }
    }
}

/// Number of this host, and the meeting place.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NodeRequest {
    /// Do without ssh: each of N hosts starts its own launcher, with the same COMITY_KEY_FILE or --insecure
    #[arg(hide_short_help = true, long, value_name = "N", requires_all = ["node_rank", "rendezvous"], conflicts_with_all = ["hosts", "hostfile", "total", "max_restarts", "metrics"], value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = section::HOSTS)]
    pub nnodes: Option<u32>,

    /// Number this host among them, from 0: ranks are numbered in this order
    #[arg(hide_short_help = true, long, value_name = "R", requires_all = ["nnodes", "rendezvous"], value_parser = clap::value_parser!(u32).range(..4096), help_heading = section::HOSTS)]
    pub node_rank: Option<u32>,

    /// Meet the other launchers here: names or addresses of node 0's host by which this host knows it, with commas between; the default port is 29400
    #[arg(hide_short_help = true, long, value_name = "HOST[:PORT],...", requires_all = ["nnodes", "node_rank"], help_heading = section::HOSTS)]
    pub rendezvous: Option<String>,
}

impl NodeRequest {
    /// Returns whether this launcher is one of several.
    pub fn is_given(&self) -> bool {
        self.nnodes.is_some()
    }
}
