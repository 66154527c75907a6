//! The launcher that started this host's part of the job, behind the `ssh` that carries its orders.
use super::{Order, Tidings, Upstream};
use crate::host::master::Master;
use crate::host::own_output::Outputs;
use crate::machine::{Event, StopOrder, StopReason};
use crate::protocol::{BEAT, FleetOrder, FrameReader, HostEvent, SILENCE};
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

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
