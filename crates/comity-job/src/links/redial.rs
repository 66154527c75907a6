//! Control connections that are made anew in a large job: to ranks that become neighbours when those between have ended.
//!
//! Each is made by a thread that lives for a second and a half at most: the control thread hears the others meanwhile. A try that fails is told
//! to the control thread, which tries again, or concludes that the other has ended.

use super::way::Ways;
use crate::{
    channel::{Channel, Denial, DialLimits, Miss, Refusal},
    control::{ControlDialer, ControlPlane},
    sync::lock,
    sys::Waker,
};
use comity_membership::NoConnection;
use std::{
    io::{self, ErrorKind},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const TRIES: Duration = Duration::from_secs(1);
/// And then through other ranks, which know their ways: it takes them milliseconds.
const THROUGH: Duration = Duration::from_millis(500);

/// Makes control connections that are missing.
#[derive(Debug)]
pub(super) struct Redial {
    inner: Arc<RedialState>,
    /// Each with what ends its try, which it holds: a descriptor only while there is one.
    threads: Mutex<Vec<(JoinHandle<()>, Weak<Waker>)>>,
}

#[derive(Debug)]
struct RedialState {
    ways: Ways,
    control: Weak<ControlPlane>,
    stop: AtomicBool,
}

impl Redial {
    pub(super) fn new(ways: Ways, control: Weak<ControlPlane>) -> Arc<Self> {
        let inner = RedialState { ways, control, stop: AtomicBool::new(false) };
        Arc::new(Self { inner: Arc::new(inner), threads: Mutex::default() })
    }

    pub(super) fn end(&self) {
        self.inner.stop.store(true, Ordering::Release);
        for (thread, waker) in std::mem::take(&mut *lock(&self.threads)) {
            waker.upgrade().iter().for_each(|waker| waker.wake());
            // WAIT(end): a thread of ours, which is told to stop
            let _ = thread.join();
        }
    }

    fn start(&self, rank: usize) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let waker = Arc::new(Waker::new()?);
        let ends = Arc::downgrade(&waker);
        let named = thread::Builder::new().name("comity-redial".into());
        let thread = named.spawn(move || inner.make(rank, &waker))?;
        let mut threads = lock(&self.threads);
        threads.retain(|(thread, _)| !thread.is_finished());
        threads.push((thread, ends));
        Ok(())
    }
}

impl ControlDialer for Redial {
    fn connect(&self, rank: usize) {
        if let Err(e) = self.start(rank) {
            tracing::warn!(rank, %e, "no thread to make a control connection with");
            self.inner.tell(rank, NoConnection::NoAnswer);
        }
    }
}

impl RedialState {
    fn make(&self, rank: usize, waker: &Waker) {
        let ways = &self.ways;
        let hello = ways.hello(rank, 0, Channel::Control);
        // Not drained: it ends all tries.
        let check =
            || if self.stop.load(Ordering::Acquire) { Err(crate::ErrorKind::Closed.into()) } else { Ok(()) };
        let limits =
            |time| DialLimits { until: Instant::now() + time, wakers: vec![waker.fd()], check: &check };
        let (targets, vain) = ways.control_targets(rank, &limits(TRIES));
        let made = ways.dial(rank, &targets, &vain, &hello, &limits(TRIES));
        // No time is left to find out that there is no way.
        let made = made.or_else(|miss| match &miss {
            Miss::Nobody(e) if e.kind() != ErrorKind::ConnectionRefused && ways.is_elsewhere(rank) => {
                ways.through(rank, &hello, &limits(THROUGH), &e.to_string()).map_err(|_| miss)
            }
            _ => Err(miss),
        });
        match made {
            Ok((stream, seals)) => {
                if let Some(control) = self.control.upgrade() {
                    control.attach(rank, stream, seals);
                }
            }
            Err(Miss::Stop(_)) => {}
            Err(miss) => {
                tracing::debug!(rank, %miss, "no control connection");
                self.tell(rank, why(&miss));
            }
        }
    }

    fn tell(&self, rank: usize, why: NoConnection) {
        if let Some(control) = self.control.upgrade() {
            control.missed(rank, why);
        }
    }
}

/// Returns the conclusion about the other rank from a failed try.
fn why(miss: &Miss) -> NoConnection {
    match miss {
        Miss::Nobody(e) | Miss::NoWay(e)
            if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
        {
            NoConnection::NobodyListens
        }
        Miss::Refused(Refusal::No(Denial::NotAMember)) => NoConnection::GivenUp,
        _ => NoConnection::NoAnswer,
    }
}
