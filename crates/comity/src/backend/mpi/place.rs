//! Membership of a process that MPI started: its place comes from MPI, and so does the exchange on which rank 0 tells the
//! others where to meet.

use super::{CommunicatorMaker, LIBRARY, MpiBackend};
use crate::{
    Error, Exchange, JoinCause, JoinError, Launcher, MeetingPoint, Result,
    backend::Backend,
    exchange::MAX_EXCHANGE_TEXT,
    settings::Settings,
    stats::Counters,
    status::World,
    sys::mpi::{Family, Move, Mpi, MpiHandle, Pending, find},
};
use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const MPI_POLL: Duration = Duration::from_micros(200);

/// MPI as this process has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runtime(Family);

impl Runtime {
    /// Load MPI and start it, unless that is done.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when there is none, or none that can be used.
    pub(crate) fn find() -> Result<Self> {
        find().map(Self)
    }

    pub(crate) fn version(self) -> &'static str {
        match self.0 {
            Family::Pointers(m) => m.version(),
            Family::Ints(m) => m.version(),
        }
    }

    /// The configuration with MPI's ranks, and its own way to meet unless another is given.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when the environment says another place than MPI does; [`ErrorKind::Join`](crate::ErrorKind::Join) when not all ranks come to make
    /// that in time.
    pub(crate) fn place(self, config: &Settings) -> Result<Settings> {
        let (rank, size) = match self.0 {
            Family::Pointers(m) => m.place()?,
            Family::Ints(m) => m.place()?,
        };
        let ours = (rank, size);
        let said = (config.rank, config.size);
        if config.evidence.launcher != Launcher::Alone && ours != said {
            return Err(Error::config(format!(
                "{} says rank {} of {}, but {} says rank {rank} of {size}: the MPI library is not the launcher's; COMITY_MPI names another",
                config.evidence.launcher,
                said.0,
                said.1,
                self.version()
            )));
        }
        let mut placed = Settings { rank, size, ..config.clone() };
        if !matches!(
            config.meeting_point,
            MeetingPoint::Store(_) | MeetingPoint::Host(_) | MeetingPoint::Hostfile(_)
        ) {
            let limit = config.join_timeout;
            placed.meeting_point = MeetingPoint::Exchange(match self.0 {
                Family::Pointers(m) => Arc::new(MpiExchange::new(m, rank, limit)?),
                Family::Ints(m) => Arc::new(MpiExchange::new(m, rank, limit)?),
            });
        }
        Ok(placed)
    }

    /// The backend of everyone in `world`, who have `limit` to come together.
    pub(crate) fn open(
        self,
        world: Arc<dyn World>,
        counters: Arc<Counters>,
        limit: Duration,
    ) -> Result<Box<dyn Backend>> {
        Ok(match self.0 {
            Family::Pointers(m) => Box::new(MpiBackend::open(m, world, counters, limit)?),
            Family::Ints(m) => Box::new(MpiBackend::open(m, world, counters, limit)?),
        })
    }
}

/// An exchange over MPI_Ibcast.
#[derive(Debug)]
struct MpiExchange<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    comm: H,
}

impl<H: MpiHandle> MpiExchange<H> {
    fn new(mpi: &'static Mpi<H>, rank: usize, limit: Duration) -> Result<Self> {
        let until = Instant::now() + limit;
        let making = CommunicatorMaker::start(mpi, || mpi.world())?;
        while !making.is_done() {
            if Instant::now() >= until {
                return Err(Error::join(format!(
                    "rank {rank} was not joined by all other ranks in {LIBRARY} within {limit:?}; look for a rank that MPI has started and that is stopped, or does not come to Comity, or raise the limit of joining (COMITY_JOIN_TIMEOUT) if it is only slow"
                )));
            }
            // WAIT(until): telling the meeting place, to the join deadline
            thread::sleep(MPI_POLL);
        }
        Ok(Self { mpi, comm: making.finish()? })
    }
}

impl<H: MpiHandle> fmt::Display for MpiExchange<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MPI_Ibcast")
    }
}

impl<H: MpiHandle> Drop for MpiExchange<H> {
    fn drop(&mut self) {
        self.mpi.free(self.comm);
    }
}

impl<H: MpiHandle> Exchange for MpiExchange<H> {
    fn share(&self, rank: usize, size: usize, mine: Option<&str>, until: Instant) -> Result<String> {
        let mut text = mine.unwrap_or_default().as_bytes().to_vec();
        if text.len() > MAX_EXCHANGE_TEXT || (rank == 0) != mine.is_some() {
            return Err(Error::config(format!(
                "rank 0, and no other, gives a text of at most {MAX_EXCHANGE_TEXT} bytes"
            )));
        }
        // Blanks stand for the end: no text has one.
        text.resize(MAX_EXCHANGE_TEXT, b' ');
        let mut pending =
            Pending::start(self.mpi, self.comm, size, &Move::Broadcast { root: 0 }, Vec::new(), text)?;
        while !pending.test()? {
            if Instant::now() >= until {
                let why = JoinError::new(
                    "rank 0 told no place to meet over MPI_Ibcast in time; look at its own output, or raise the limit of joining (COMITY_JOIN_TIMEOUT)",
                );
                return Err(why.of([0]).because(JoinCause::Missing).into());
            }
            // WAIT(until): the meeting place, to the join deadline
            thread::sleep(MPI_POLL);
        }
        let (_, out) = pending.finish();
        let told =
            String::from_utf8(out).map_err(|_| Error::join("MPI_Ibcast brought bytes that are no text"))?;
        Ok(told.trim_end().to_owned())
    }
}
