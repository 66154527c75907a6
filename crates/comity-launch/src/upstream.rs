//! Places from which orders for the ranks of this host come: the terminal, a launcher behind `ssh`, the launchers of other nodes.
//!
//! ```text
//! front end    --+
//! ssh          --+-- Upstream: orders and news --> supervisor --> Machine, ranks
//! other nodes  --+             <-- tidings --
//! ```
use crate::host::front_end::ALL_STOPPED;
use crate::host::master::Master;
use crate::host::output::Outputs;
use crate::host::signals::PassedSignal;
use crate::host::stdin::StdinFeed;
use crate::machine::{Event, Machine, StopOrder, StopReason};
use crate::protocol::{BEAT, FleetOrder, FrameReader, HostEvent, SILENCE};
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ctrl-Z; the front end waits for the answer [`FrontLine::all_stopped`].
    Suspend,
    Continue,
    Pass(PassedSignal),
    News(Event),
    /// The process that the user started is gone.
    FrontEndLost,
    /// Standard input of the ranks, or its end.
    Input(Option<Vec<u8>>),
    /// Tell what the ranks do.
    Look,
    /// Tell which of them are stopped.
    FindStopped,
}

impl Order {
    /// The order that a signal to the launcher stands for.
    pub(crate) fn of_signal(signal: i32) -> Self {
        match (signal, PassedSignal::of(signal)) {
            (libc::SIGTSTP, _) => Self::Suspend,
            (libc::SIGCONT, _) => Self::Continue,
            (_, Some(passed)) => Self::Pass(passed),
            (signal, None) => Self::News(Event::Stop(StopReason::Interrupted { signal })),
        }
    }
}

/// State of the ranks here, of which those who give orders are told.
#[derive(Clone, Copy)]
pub(crate) struct Tidings<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) output: &'a Outputs,
    pub(crate) feed: &'a StdinFeed,
}

/// Place from which orders come.
pub(crate) trait Upstream {
    /// Descriptor that is readable when something has come; none when nothing comes any more.
    fn want(&self) -> Option<PollFd<'_>>;

    fn take(&mut self) -> Vec<Order>;

    /// When [`keep_in_touch`](Self::keep_in_touch) has something to do next.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Tells what is new; returns what follows from silence.
    fn keep_in_touch(&mut self, _: Tidings<'_>) -> Vec<Order> {
        Vec::new()
    }
}

/// The line to the front end, until that is gone.
#[derive(Debug)]
pub(crate) struct FrontLine(Option<UnixStream>);

impl FrontLine {
    pub(crate) fn new(line: UnixStream) -> io::Result<Self> {
        line.set_nonblocking(true)?;
        Ok(Self(Some(line)))
    }

    /// Tells it a process to end if this one cannot.
    pub(crate) fn tell(&self, number: i32) {
        if let Some(mut line) = self.0.as_ref() {
            let _ = line.write(&number.to_ne_bytes());
        }
    }

    pub(crate) fn all_stopped(&self) {
        self.tell(ALL_STOPPED);
    }
}

impl Upstream for FrontLine {
    fn want(&self) -> Option<PollFd<'_>> {
        self.0.as_ref().map(|line| PollFd::new(line, PollFlags::IN))
    }

    /// Takes the signals that the front end passes on, or notices its end.
    fn take(&mut self) -> Vec<Order> {
        let Some(mut line) = self.0.as_ref() else { return Vec::new() };
        let mut bytes = [0; 64];
        match line.read(&mut bytes) {
            Ok(n) if n > 0 => bytes[..n].iter().map(|&signal| Order::of_signal(signal.into())).collect(),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Vec::new()
            }
            _ => {
                self.0 = None;
                vec![Order::FrontEndLost]
            }
        }
    }
}

/// The launcher that this host obeys, as it is heard over standard input.
#[derive(Debug)]
pub(crate) struct FarLauncher {
    input: OwnedFd,
    reader: FrameReader,
    ready: VecDeque<FleetOrder>,
    heard: Instant,
    beat_due: Instant,
    /// Input was given to the ranks, and the launcher waits for the word that they took it.
    feeding: bool,
    /// Reason for which no more will come.
    closed: bool,
    /// Carries connections to rank 0, in a job of several hosts.
    pub(crate) master: Option<Master>,
}

impl FarLauncher {
    pub(crate) fn new(input: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&input, true)?;
        let now = Instant::now();
        let reader = FrameReader::default();
        let ready = VecDeque::new();
        let heard = now;
        let beat_due = now;
        let master = None;
        Ok(Self { input, reader, ready, heard, beat_due, feeding: false, closed: false, master })
    }

    fn read(&mut self) {
        let mut buffer = [0; 16 << 10];
        match rustix::io::read(&self.input, &mut buffer) {
            Ok(n) if n > 0 => {
                self.heard = Instant::now();
                self.reader.push(&buffer[..n]);
            }
            Err(Errno::INTR | Errno::AGAIN) => return,
            _ => self.closed = true,
        }
        loop {
            match self.reader.next() {
                Ok(Some((kind, body))) => match FleetOrder::decode(kind, body) {
                    Ok(order) => self.ready.push_back(order),
                    Err(_) => self.closed = true,
                },
                Ok(None) => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Returns whether a beat to the launcher is due, and plans the next.
    fn beat(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.beat_due;
        if due {
            self.beat_due = now + BEAT;
        }
        due
    }

    fn is_lost(&self) -> bool {
        self.closed || self.heard.elapsed() > SILENCE
    }

    /// The next order but beats; None when the launcher is gone.
    pub(crate) fn wait(&mut self, output: &Outputs) -> Option<FleetOrder> {
        loop {
            if let Some(order) = self.ready.pop_front() {
                if order == FleetOrder::Beat {
                    continue;
                }
                return Some(order);
            }
            if self.is_lost() {
                return None;
            }
            if self.beat() {
                output.event(&HostEvent::Beat);
            }
            let until = Some(self.beat_due);
            let heard = self.want().is_some_and(|fd| poll_until(&mut [fd], until).is_ok_and(|n| n > 0));
            if heard {
                self.read();
            }
        }
    }
}

impl Upstream for FarLauncher {
    fn want(&self) -> Option<PollFd<'_>> {
        (!self.closed).then(|| PollFd::new(&self.input, PollFlags::IN))
    }

    fn take(&mut self) -> Vec<Order> {
        self.read();
        let mut orders = Vec::new();
        for order in std::mem::take(&mut self.ready) {
            orders.push(match order {
                FleetOrder::Term => Order::News(Event::Ordered(StopOrder::Term)),
                FleetOrder::Kill => Order::News(Event::Ordered(StopOrder::Kill)),
                FleetOrder::Stop => Order::Suspend,
                FleetOrder::Continue => Order::Continue,
                FleetOrder::Pass(signal) => Order::Pass(signal),
                FleetOrder::Input(bytes) => {
                    self.feeding = true;
                    Order::Input(Some(bytes))
                }
                FleetOrder::InputEnd => {
                    self.feeding = false;
                    Order::Input(None)
                }
                FleetOrder::Look => Order::Look,
                FleetOrder::FindStopped => Order::FindStopped,
                FleetOrder::StartAgain(rank) => Order::News(Event::StartAgain { rank }),
                FleetOrder::Master(packet) => {
                    self.master.iter().for_each(|master| master.take(packet.clone()));
                    continue;
                }
                FleetOrder::Beat | FleetOrder::Prepare(_) | FleetOrder::Go(_) | FleetOrder::Piece(_) => {
                    continue;
                }
            });
        }
        orders
    }

    fn next(&self) -> Option<Instant> {
        Some(self.beat_due)
    }

    /// Says that this host is there, and notices that the launcher is not.
    fn keep_in_touch(&mut self, tidings: Tidings<'_>) -> Vec<Order> {
        // Where the output waits, the launcher knows by it.
        if self.beat() && !tidings.output.is_pending() {
            tidings.output.event(&HostEvent::Beat);
        }
        if self.feeding && tidings.feed.is_taken() {
            self.feeding = false;
            tidings.output.event(&HostEvent::Taken);
        }
        match self.is_lost() {
            true => vec![Order::News(Event::Stop(StopReason::Orphaned))],
            false => Vec::new(),
        }
    }
}
