//! `comity guard`: a host's part of a job that a launcher on another host started through `ssh`.
//!
//! The two processes of `comity launch` run here as well: the front end relays standard input, which carries the launcher's
//! orders, and the supervisor starts the ranks. When the input ends, or is silent for [`SILENCE`](crate::protocol::SILENCE), the launcher or the way to
//! it is gone: then the ranks end, and with them whatever they started. Standard output carries the host launcher's events.
use crate::address::loopback;
use crate::fleet::stage;
use crate::host::job::{self, Job};
use crate::host::master::Master;
use crate::host::meet::{Meeting, ReservedPort};
use crate::host::output::Outputs;
use crate::host::supervisor::{self, Supervisor};
use crate::machine::{ElasticTerms, Problem, REFUSED, Role};
use crate::protocol::{FleetOrder, GREETING, HostEvent, HostHello, HostPart, PROTOCOL, Ready};
use crate::request::Setting;
use crate::upstream::{FarLauncher, FrontLine};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Runs this host's part to its end.
pub fn run() -> u8 {
    let ended = crate::host::front_end::guarded(false, |front_end, input| {
        serve(front_end, input).unwrap_or_else(|e| {
            let _ = writeln!(io::stderr(), "comity guard: {e}");
            REFUSED
        })
    });
    ended.unwrap_or_else(|problem| problem.say())
}

fn serve(front_end: UnixStream, input: OwnedFd) -> io::Result<u8> {
    let open_files = supervisor::stand_alone()?;
    let mut orders = FarLauncher::new(input)?;
    io::stdout().write_all(GREETING)?;
    io::stdout().flush()?;
    let output = Outputs::framed()?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let version = crate::VERSION.to_owned();
    output.event(&HostEvent::Hello(Box::new(HostHello { protocol: PROTOCOL, version, host })));
    let Some(FleetOrder::Prepare(part)) = orders.wait(&output) else { return Ok(REFUSED) };
    let dir = directory(&part).unwrap_or_default().unwrap_or_default();
    let staged = stage::fetch(&part, &dir, &mut orders, &output);
    if matches!(staged, Ok(false)) {
        return Ok(REFUSED);
    }
    let made = staged.and_then(|_| prepare(&part)).and_then(|job| {
        let digests = digests(&part, &job);
        let kept = keep(&part, digests)?;
        Ok((Ready { threads: job.threads.map(|t| t.to_string()), ..kept.0 }, job, kept.1))
    });
    let (ready, mut job, kept) = match made {
        Ok(made) => made,
        Err(Problem { why, code }) => {
            output.event(&HostEvent::Refused { why, code });
            // The launcher closes the line when it has read that.
            while orders.wait(&output).is_some() {}
            return Ok(code);
        }
    };
    output.event(&HostEvent::Ready(Box::new(ready)));
    let Some(FleetOrder::Go(mut go)) = orders.wait(&output) else { return Ok(REFUSED) };
    if part.size < part.world {
        let port = (part.first == 0).then(|| go.master.port());
        let tell = output.teller();
        let (master, at) = Master::start(port, move |packet| tell(&HostEvent::Master(packet)))?;
        orders.master = Some(master);
        go.master = at;
    }
    go.restarted.iter().zip(&mut job.restarted).for_each(|(times, known)| *known = *times);
    let meeting = Meeting::of(*go, part.world, None, kept)?;
    let front_end = FrontLine::new(front_end)?;
    let mut supervisor = Supervisor::with(Role::Host, job, meeting, (front_end, output), open_files)?;
    supervisor.far_launcher = Some(orders);
    supervisor.show(None)?;
    Ok(supervisor.run())
}

/// Directory in which the ranks start; none is the home directory.
fn directory(part: &HostPart) -> Result<Option<PathBuf>, Problem> {
    let Some(dir) = part.cwd.as_ref().map(PathBuf::from) else { return Ok(None) };
    match job::directory(&dir) {
        Ok(()) => Ok(Some(dir)),
        Err(e) if part.cwd_asked => Err(Problem::usage(format!("--cwd '{}': {e}", dir.display()))),
        Err(_) => Ok(None),
    }
}

/// Digests of the files that ought to be the same on every host: the user's own program and script, not those of the system.
fn digests(part: &HostPart, job: &Job) -> Vec<(String, String)> {
    let dir = job.request.cwd.clone().unwrap_or_default();
    let Some((name, args)) = part.command.split_first() else { return Vec::new() };
    let own = name.contains('/') && is_own(&dir.join(&job.program)) || name == "comity";
    let program = own.then(|| (name.clone(), dir.join(&job.program)));
    let script = args.iter().find(|a| !a.starts_with('-')).filter(|a| a.ends_with(".py"));
    let script = script.map(|s| (s.clone(), dir.join(s)));
    let known = |(name, path): (String, PathBuf)| Some((name, stage::digest(&path).ok()?));
    program.into_iter().chain(script).filter_map(known).collect()
}

/// Not an interpreter, and not of the system: those differ between hosts, and may.
fn is_own(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let system = ["/bin", "/sbin", "/usr", "/opt"].iter().any(|dir| program.starts_with(dir));
    !system && !name.starts_with("python")
}

/// Checks this host's part against this host.
fn prepare(part: &HostPart) -> Result<Job, Problem> {
    let usage = Problem::usage;
    let mut request = part.request.clone();
    request.ranks = u32::try_from(part.size).ok();
    request.cwd = directory(part)?;
    request.command = part.command.iter().map(Into::into).collect();
    let set = |(n, v): &(String, String)| Setting { name: n.into(), value: v.into() };
    request.env = part.env.iter().map(set).collect();
    let (name, args) = part.command.split_first().ok_or_else(|| usage("there is no command".into()))?;
    job::find_of(&request).map_err(|why| {
        request.command = vec!["python3".into()];
        usage(why + &interpreter_hint(name, job::find_of(&request).is_ok()))
    })?;
    script(name, args, request.cwd.as_deref()).map_err(usage)?;
    let local_size = part.local_size.max(part.size);
    Ok(Job {
        first: part.first,
        world: part.world,
        tty: part.tty,
        straight: true,
        local: (part.local_first, local_size),
        restarts: part.restarts,
        elastic: part.elastic.then_some(ElasticTerms { fewest: 0, restarts: 0 }),
        ..Job::check(request, false, local_size)?
    })
}

/// The mend for an interpreter that the shell of ssh, which is no login's, does not find.
fn interpreter_hint(name: &str, has_python3: bool) -> String {
    let is_python = name.starts_with("python") && !name.contains('/');
    match is_python {
        true if has_python3 && name != "python3" => "; there is a python3 here: write that".into(),
        true if called(0).is_some() => "; ssh reads no ~/.bashrc, so this PATH may be shorter than that of a login: name the whole path, \
             by --python PATH before the script or by `python` in the hostfile"
            .into(),
        _ => String::new(),
    }
}

/// An interpreter is there, but is what it is to run? Only where its first word is plainly a file of Python's.
fn script(name: &str, args: &[String], cwd: Option<&Path>) -> Result<(), String> {
    let python = Path::new(name).file_name().is_some_and(|n| n.to_string_lossy().starts_with("python"));
    let Some(file) = args.first().filter(|f| python && f.ends_with(".py")) else { return Ok(()) };
    let path = cwd.unwrap_or_else(|| Path::new("")).join(file);
    match path.is_file() {
        true => Ok(()),
        false => Err(format!(
            "the script '{}' is not there; have it copied to the hosts with --stage {file}, or say with --cwd where it is",
            path.display()
        )),
    }
}

/// Keeps ports free for those who are told of them.
fn keep(part: &HostPart, digests: Vec<(String, String)>) -> Result<(Ready, Vec<ReservedPort>), Problem> {
    let at = part.at.or_else(|| called(2)).unwrap_or_else(loopback);
    let reserve = |_| ReservedPort::at(at).or_else(|_| ReservedPort::at(any(at)));
    let kept: Vec<ReservedPort> = (0..part.ports)
        .map(reserve)
        .collect::<io::Result<_>>()
        .map_err(|e| Problem::machine(format!("cannot take a port at {at}: {e}")))?;
    let system = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    let ports = kept.iter().map(|r| r.addr.port()).collect();
    Ok((Ready { at, ports, from: called(0), system, digests, threads: None }, kept))
}

/// Every address of this host, where the one by which others know it is not its own.
fn any(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Address with this number of the connection by which `ssh` came to this host: 0 is where it came from, 2 where to.
fn called(number: usize) -> Option<IpAddr> {
    let words = std::env::var("SSH_CONNECTION").ok()?;
    let at = words.split_whitespace().nth(number)?;
    at.parse().ok().or_else(|| at.parse::<SocketAddr>().ok().map(|a| a.ip()))
}
