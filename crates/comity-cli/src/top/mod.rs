//! `comity top` and `comity stacks`: a live job, seen through its launcher.
mod page;
mod picture;
mod screen;
mod text;

use crate::{
    cluster::SshArgs,
    live::{self, JobView},
    say::{CommandError, Exit, has_colour, say},
};
use comity_launch::fleet::{JobHosts, job_hosts};
use picture::{Picture, picture};
use std::{
    io::{ErrorKind, IsTerminal},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

/// Between the two looks of `--once`: longer than a rank sleeps at a time.
const ONCE: Duration = Duration::from_millis(600);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shown are jobs that `comity launch` started by this user on this host. Keys: q ends, p pauses, arrows scroll.
Rates of links are in bits a second, payloads in bytes. Exit code: 0; 1 when there is no such job.")]
pub(crate) struct TopArgs {
    /// The launcher's process id, the begin of the job's id, or hosts to ask over ssh: a hostfile, or a,b
    #[arg(value_name = "JOB|HOSTFILE")]
    job: Option<String>,

    /// Print one picture as text, and end; so it is without a terminal
    #[arg(long)]
    once: bool,

    /// Print what the launcher answers, as JSON, and end
    #[arg(long, conflicts_with = "once")]
    json: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", conflicts_with_all = ["once", "json"], value_parser = seconds)]
    every: Duration,

    /// Show it in a browser: listen at this address of this host, such as 127.0.0.1:0 for a free port
    #[arg(long, value_name = "ADDR", value_parser = page::address, conflicts_with_all = ["once", "json"])]
    http: Option<SocketAddr>,

    #[command(flatten)]
    ssh: SshArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StacksArgs {
    /// The job, as for `comity top`
    #[arg(value_name = "JOB|HOSTFILE")]
    job: Option<String>,

    #[command(flatten)]
    ssh: SshArgs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = "allowed are 0.1 to 3600 seconds";
    let n: f64 = text.parse().map_err(|_| format!("not a number; {allowed}"))?;
    if (0.1..=3600.0).contains(&n) {
        Ok(Duration::from_secs_f64(n))
    } else {
        Err(format!("out of range; {allowed}"))
    }
}

/// A job that is looked at again and again.
struct WatchedJob {
    from: Source,
    last: JobView,
    /// The one before, for rates.
    before: Option<JobView>,
    /// It has ended, or does not answer any more.
    gone: Option<String>,
}

/// Source of the answers.
enum Source {
    /// Sockets of launchers of this host; several where launchers of several nodes run here.
    Sockets(Vec<PathBuf>),
    Hosts(JobHosts),
}

impl Source {
    fn ask(&mut self) -> Result<JobView, String> {
        match self {
            Self::Sockets(paths) => {
                let mut all: Option<Result<JobView, String>> = None;
                for path in paths {
                    let answer = live::ask(path).map_err(|e| match e.kind() {
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused => "the job has ended".into(),
                        _ => format!("the launcher does not answer: {e}"),
                    });
                    match (&mut all, answer) {
                        (Some(Ok(all)), Ok(more)) => all.join(more),
                        (Some(Ok(_)), Err(_)) => {}
                        (all, answer) => *all = Some(answer),
                    }
                }
                all.unwrap_or_else(|| Err("no job".into()))
            }
            Self::Hosts(hosts) => hosts.ask(),
        }
    }
}

impl WatchedJob {
    fn open(job: Option<&str>, ssh: &SshArgs) -> Result<Self, String> {
        let mut from = match job.and_then(|word| job_hosts(word, ssh.options())) {
            Some(hosts) => Source::Hosts(hosts?),
            None => Source::Sockets(live::find(job)?),
        };
        let last = from.ask()?;
        Ok(Self { from, last, before: None, gone: None })
    }

    fn look(&mut self) {
        match self.from.ask() {
            Ok(view) => {
                self.before = Some(std::mem::replace(&mut self.last, view));
                self.gone = None;
            }
            Err(why) => self.gone = Some(why),
        }
    }

    fn picture(&self) -> Picture {
        let mut picture = picture(self.before.as_ref(), &self.last);
        if let Some(gone) = &self.gone {
            let text = format!("{gone}; this is what was seen last");
            picture.findings.insert(0, picture::Finding { mark: picture::RankMark::Failed, text });
        }
        picture
    }
}

pub(crate) fn top(args: TopArgs) -> Exit {
    let mut job = WatchedJob::open(args.job.as_deref(), &args.ssh).map_err(CommandError::faulty)?;
    if let Some(at) = args.http {
        return page::serve(at, job);
    }
    let text = if args.json {
        serde_json::to_string_pretty(&job.last).unwrap_or_default() + "\n"
    } else if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        std::thread::sleep(ONCE);
        job.look();
        text::text(&job.picture(), has_colour(false))
    } else {
        let fail = |e| CommandError::faulty(format!("the terminal cannot be used: {e}; --once prints text"));
        return screen::watch(job, args.every).map(|()| 0).map_err(fail);
    };
    say(text, 0)
}

pub(crate) fn stacks(args: StacksArgs) -> Exit {
    let job = WatchedJob::open(args.job.as_deref(), &args.ssh).map_err(CommandError::faulty)?;
    say(text::stacks(&job.last), 0)
}
