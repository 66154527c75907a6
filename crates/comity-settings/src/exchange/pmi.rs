//! MPICH's process manager as an exchange: PMI-1, lines of text over the descriptor in `PMI_FD`.
//!
//! All meet in a barrier, rank 0 puts, all meet in another one, the others get. The key's number is that of the two barriers, which all ranks
//! count alike. A rank that gives up in a barrier has said that it is there and cannot take that back: it waits on in the same one when it tries
//! again. Rank 0 puts only when all are there, so a rank that comes late, when the others have tried once already, gets the text of the try that
//! runs.
//!
//! The manager takes one conversation per process, so all exchanges of a descriptor share it. It also takes a process that leaves without "finalize" for a crash and ends the others,
//! so that is said when the process exits, and not before: an MPI library in the same process may still need the manager.

use super::{Exchange, checked, is_late, own_text, read_all, write_all};
use crate::{Error, ErrorKind, Result, sync::lock, sys};
use std::{
    fmt, io,
    os::{fd::RawFd, unix::net::UnixStream},
    sync::{Mutex, Once},
    time::{Duration, Instant},
};
use zeroize::{Zeroize, Zeroizing};

/// The longest line of the protocol, which is that of the longest value, with room.
const MOST_LINE: usize = 4096;

/// An exchange over the process manager of MPICH and its kin.
pub struct PmiExchange {
    fd: RawFd,
}

impl PmiExchange {
    /// The manager behind descriptor `fd`; nothing is said to it yet.
    pub fn new(fd: RawFd) -> Self {
        Self { fd }
    }
}

impl fmt::Debug for PmiExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PmiExchange({})", self.fd)
    }
}

impl fmt::Display for PmiExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MPICH's process manager (PMI_FD={})", self.fd)
    }
}

/// The conversations of this process, by descriptor: one, outside of odd cases.
static TALKS: Mutex<Vec<(RawFd, Talk)>> = Mutex::new(Vec::new());

impl Exchange for PmiExchange {
    fn share(&self, rank: usize, _size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let mine = own_text(rank, mine)?;
        let mut talks = lock(&TALKS);
        let at = match talks.iter().position(|(fd, _)| *fd == self.fd) {
            Some(at) => at,
            None => {
                let stream = sys::inherited(self.fd).map_err(|e| {
                    Error::setting(
                        "PMI_FD",
                        self.fd,
                        format!(
                            "PMI_FD={} cannot be used: {e}; is the rank started by mpiexec itself?",
                            self.fd
                        ),
                    )
                })?;
                talks.push((self.fd, Talk::new(UnixStream::from(stream))));
                finalize_at_exit();
                talks.len() - 1
            }
        };
        let Some((_, talk)) = talks.get_mut(at) else { return Err(gone()) };
        talk.share(mine, until)
    }
}

/// Say goodbye to the manager when the process exits by itself.
fn finalize_at_exit() {
    static REGISTER: Once = Once::new();
    static OWNER: Mutex<Option<u32>> = Mutex::new(None);

    extern "C" fn finalize() {
        // A forked child inherits the handler, but is not the rank; a thread that talks right now keeps the lock.
        if OWNER.try_lock().is_ok_and(|o| *o == Some(std::process::id()))
            && let Ok(mut talks) = TALKS.try_lock()
        {
            let until = Instant::now() + Duration::from_millis(500);
            for (_, talk) in talks.iter_mut() {
                // The manager may be gone, or an MPI library may have said it already.
                let _ = talk.finalize(until);
            }
        }
    }

    REGISTER.call_once(|| {
        *lock(&OWNER) = Some(std::process::id());
        // When there is no room for one more handler the manager ends the job a little early.
        let _ = sys::at_exit(finalize);
    });
}

/// A conversation with the manager.
struct Talk {
    stream: UnixStream,
    /// The name of the job's key-value space, once known.
    space: Option<String>,
    /// Rounds of two barriers that all ranks have come through.
    rounds: u32,
    /// All are there in this round.
    is_met: bool,
    /// Rank 0 has put its text in this round, or this rank asks for it.
    is_told: bool,
    /// This rank has come to a barrier, and not all others have.
    waits: bool,
    /// The answer as far as it has come.
    line: Zeroizing<Vec<u8>>,
    /// Error after which nothing more can be said: after an answer that did not come, the next one would be taken for it.
    broken: Option<Error>,
}

impl Talk {
    fn new(stream: UnixStream) -> Self {
        let line = Zeroizing::new(Vec::with_capacity(MOST_LINE));
        Self {
            stream,
            space: None,
            rounds: 0,
            is_met: false,
            is_told: false,
            waits: false,
            line,
            broken: None,
        }
    }

    fn share(&mut self, mine: Option<&str>, until: Instant) -> Result<String> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        let shared = self.try_share(mine, until);
        // It can go on where it waits.
        if let Err(e) = &shared
            && !self.waits
        {
            self.broken = Some(e.clone());
        }
        shared
    }

    fn try_share(&mut self, mine: Option<&str>, until: Instant) -> Result<String> {
        let space = match &self.space {
            Some(space) => space.clone(),
            None => {
                self.ask("init pmi_version=1 pmi_subversion=1", "response_to_init", until)?;
                let space = self.ask("get_my_kvsname", "my_kvsname", until)?;
                let space = space.field("kvsname").ok_or_else(gone)?.to_owned();
                self.space.insert(space).clone()
            }
        };
        if self.is_told {
            // By the try before this one, which nobody waits for any more.
            self.end_round(until)?;
        }
        if !self.is_met {
            self.barrier(until)?;
            self.is_met = true;
        }
        let key = format!("comity-{}", self.rounds);
        self.is_told = true;
        if let Some(text) = mine {
            let line = Zeroizing::new(format!("put kvsname={space} key={key} value={text}"));
            self.ask(&line, "put_result", until)?;
        }
        self.end_round(until)?;
        if let Some(text) = mine {
            return Ok(text.to_owned());
        }
        let answer = self.ask(&format!("get kvsname={space} key={key}"), "get_result", until)?;
        checked(answer.field("value").ok_or_else(gone)?.to_owned(), &"MPICH's process manager")
    }

    fn end_round(&mut self, until: Instant) -> Result<()> {
        self.barrier(until)?;
        self.rounds += 1;
        self.is_met = false;
        self.is_told = false;
        Ok(())
    }

    /// Wait until all ranks are in this barrier; go on with it where a try before this one gave up.
    fn barrier(&mut self, until: Instant) -> Result<()> {
        let came = match self.waits {
            true => self.answer("barrier_in", "barrier_out", until),
            false => {
                self.waits = true;
                self.ask("barrier_in", "barrier_out", until)
            }
        };
        let is_late = Instant::now() >= until;
        self.waits = came.is_err() && (is_late || sys::give_up().is_err());
        match came {
            Err(e) if is_late && matches!(e.kind(), ErrorKind::Join(_)) => Err(Error::join(
                "not all ranks came to MPICH's process manager in time; did one of them end, or not call comity?",
            )),
            came => came.map(drop),
        }
    }

    fn finalize(&mut self, until: Instant) -> Result<()> {
        if self.space.is_some() && self.broken.is_none() {
            self.broken = Some(gone());
            self.ask("finalize", "finalize_ack", until)?;
        }
        Ok(())
    }

    /// Say `line` and take the answer, which must be of kind `expect` and no failure.
    fn ask(&mut self, line: &str, expect: &str, until: Instant) -> Result<Answer> {
        let doing = line.split(' ').next().unwrap_or_default().to_owned();
        let line = Zeroizing::new(format!("cmd={line}\n"));
        write_all(&self.stream, line.as_bytes(), until).map_err(|e| failed(&doing, &e))?;
        self.answer(&doing, expect, until)
    }

    /// Take the answer to `doing`, or the rest of it.
    fn answer(&mut self, doing: &str, expect: &str, until: Instant) -> Result<Answer> {
        // By single bytes, since what follows the line may be for the MPI library that shares the descriptor.
        loop {
            let mut byte = [0];
            read_all(&mut self.stream, &mut byte, until).map_err(|e| failed(doing, &e))?;
            match byte {
                [b'\n'] => break,
                [b] if self.line.len() < MOST_LINE => self.line.push(b),
                _ => {
                    return Err(Error::join(format!(
                        "MPICH's process manager answered {doing} with an endless line"
                    )));
                }
            }
        }
        let answer = Answer(String::from_utf8_lossy(&self.line).into_owned().into());
        self.line.zeroize();
        if answer.field("cmd") != Some(expect) || answer.field("rc").is_some_and(|rc| rc != "0") {
            // The value that was asked for, or put, may be the job's key.
            let shown: String = if doing == "get" {
                "a failure".into()
            } else {
                format!("{:?}", answer.0.chars().take(200).collect::<String>())
            };
            return Err(Error::join(format!(
                "MPICH's process manager answered {doing} with {shown}, not with {expect}"
            )));
        }
        Ok(answer)
    }
}

fn failed(doing: &str, e: &io::Error) -> Error {
    Error::join(if is_late(e) {
        format!("MPICH's process manager did not answer {doing} in time")
    } else {
        format!("talking to MPICH's process manager ({doing}) failed: {e}")
    })
}

fn gone() -> Error {
    Error::join("MPICH's process manager gave an incomplete answer")
}

/// `cmd=get_result rc=0 value=...`
struct Answer(Zeroizing<String>);

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.split(' ').filter_map(|f| f.split_once('=')).find(|(n, _)| *n == name).map(|(_, v)| v)
    }
}

#[cfg(test)]
mod tests;
