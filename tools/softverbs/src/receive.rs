//! The receiving half of a queue pair: connections of the peer, and where their messages land.

use crate::{
    abi::*,
    memory::scatter,
    pair::{Pair, units},
    wire::{Closed, Frame, Inbox},
    world::Host,
};
use std::{
    io::{ErrorKind, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// Interval of notes to the sender that there is no receive yet.
const REMIND: Duration = Duration::from_millis(5);
/// Messages taken from one connection before others have their turn.
const TURN: usize = 64;

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) stream: TcpStream,
    inbox: Inbox,
    /// It said who it is, and is the peer.
    known: bool,
    answers: Vec<u8>,
    reminded: Option<Instant>,
}

impl Incoming {
    /// Tell the peer of a receive.
    pub(crate) fn credit(&mut self, frames: u32) {
        if self.known {
            self.answers.extend_from_slice(&Frame::Credit { frames }.encode());
        }
    }

    /// Write the answers that wait.
    pub(crate) fn answer(&mut self) -> Result<(), Closed> {
        while !self.answers.is_empty() {
            match self.stream.write(&self.answers) {
                Ok(n) => drop(self.answers.drain(..n)),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(_) => return Err(Closed),
            }
        }
        Ok(())
    }

    /// Return whether it has a message for which there is no receive, or is not known to be the peer, so that reading on has to wait.
    pub(crate) fn blocked(&self) -> bool {
        self.reminded.is_some() || !self.known
    }
}

/// Fate of the frame in front of a connection.
enum Landing {
    Done,
    /// There is no receive for it yet.
    Waits,
    /// It ended the pair.
    Fatal,
}

impl Pair {
    pub(crate) fn progress_receive(&mut self, host: &mut Host) -> bool {
        let mut moved = false;
        if let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_ok() {
                self.incoming.push(Incoming {
                    stream,
                    inbox: Inbox::default(),
                    known: false,
                    answers: Vec::new(),
                    reminded: None,
                });
            }
            moved = true;
        }
        if self.state < IBV_QPS_RTR {
            return moved;
        }
        for mut incoming in std::mem::take(&mut self.incoming) {
            if self.state == IBV_QPS_ERR {
                self.incoming.push(incoming);
                continue;
            }
            match self.take_messages(host, &mut incoming) {
                Ok(some) => {
                    moved |= some;
                    self.incoming.push(incoming);
                }
                // Closed by the peer, or by something that is no peer.
                Err(Closed) => moved = true,
            }
        }
        if self.state == IBV_QPS_ERR {
            // It failed while they were out of its hands.
            self.close_incoming();
        }
        moved
    }

    /// Answers on their way are sent before the end of a connection.
    pub(crate) fn close_incoming(&mut self) {
        for incoming in &mut self.incoming {
            let _ = incoming.answer();
            let _ = incoming.stream.shutdown(Shutdown::Write);
        }
    }

    fn take_messages(&mut self, host: &mut Host, incoming: &mut Incoming) -> Result<bool, Closed> {
        incoming.answer()?;
        let mut moved = false;
        for _ in 0..TURN {
            let Some(frame) = incoming.inbox.front()?.map(|(frame, _)| frame) else {
                // What came before the end of the connection is used before the end is seen.
                if !incoming.inbox.fill(&incoming.stream)? {
                    break;
                }
                moved = true;
                continue;
            };
            match frame {
                Frame::Hello { from, pair } => {
                    if self.peer.is_none_or(|p| (p.address, p.number) != (from, pair)) {
                        return Err(Closed);
                    }
                    incoming.known = true;
                    if host.config.apple {
                        let posted = self.receives.iter().map(|r| units(&host.config, r.length));
                        posted.for_each(|frames| incoming.credit(frames));
                    }
                }
                Frame::Message { immediate, solicited, .. } if incoming.known => {
                    match self.land(host, incoming, immediate, solicited) {
                        Landing::Done => {}
                        Landing::Waits => break,
                        Landing::Fatal => {
                            let _ = incoming.answer();
                            self.fail(host);
                            return Ok(true);
                        }
                    }
                }
                _ => return Err(Closed),
            }
            incoming.inbox.take();
            moved = true;
        }
        incoming.answer()?;
        Ok(moved)
    }

    /// Put the message in front of `incoming` where the oldest receive says.
    fn land(
        &mut self,
        host: &mut Host,
        incoming: &mut Incoming,
        immediate: Option<u32>,
        solicited: bool,
    ) -> Landing {
        let Ok(Some((_, message))) = incoming.inbox.front() else { return Landing::Waits };
        let reliable = self.reliable();
        let apple = host.config.apple;
        let length = message.len();
        let Some(receive) = self.receives.pop_front() else {
            if !reliable && !apple {
                // The specification's UC: nobody is told.
                return Landing::Done;
            }
            if reliable && incoming.reminded.is_none_or(|t| t.elapsed() >= REMIND) {
                incoming.answers.extend_from_slice(&Frame::NotReady.encode());
            }
            if incoming.reminded.is_none_or(|t| t.elapsed() >= REMIND) {
                incoming.reminded = Some(Instant::now());
            }
            return Landing::Waits;
        };
        incoming.reminded = None;
        let mut nak = |status| {
            if reliable {
                incoming.answers.extend_from_slice(&Frame::Nak { status }.encode());
            }
        };
        // TN3205: a SEND and its RECV are the same number of frames.
        let frames_differ = apple && units(&host.config, receive.length) != units(&host.config, length);
        if frames_differ || length > receive.length {
            nak(IBV_WC_REM_INV_REQ_ERR);
            self.complete_receive(host, &receive, IBV_WC_LOC_LEN_ERR, length, None, false);
            return Landing::Fatal;
        }
        let Some(segments) = host.regions.segments(&receive.list, self.shape.domain, true) else {
            nak(IBV_WC_REM_OP_ERR);
            self.complete_receive(host, &receive, IBV_WC_LOC_PROT_ERR, length, None, false);
            return Landing::Fatal;
        };
        scatter(&segments, message);
        if reliable {
            incoming.answers.extend_from_slice(&Frame::Ack.encode());
        }
        host.receives += 1;
        let spoiled = host.config.quirks.wc_err.is_some_and(|n| host.receives.is_multiple_of(n));
        let status = if spoiled { IBV_WC_GENERAL_ERR } else { IBV_WC_SUCCESS };
        self.complete_receive(host, &receive, status, length, immediate, solicited);
        Landing::Done
    }
}
