//! Before the ranks have met: those whose addresses others know pass on what these say to the store.
//!
//! ```text
//!   rank 2 has no way to rank 0's store, but knows from the hostfile where rank 1 listens:
//!   rank 2  -->  rank 1, which waits for the others itself  -->  rank 0's store
//! ```
//! An address in `MASTER_ADDR` or `COMITY_STORE` that belongs to a rank's own host does the same.

use super::store_client::StoreClient;
use crate::{
    Error, HostPort, MeetingPoint, Result,
    channel::{Acceptor, Channel, Hello, HelloVerdict, Listener, Relay, STORE, Secret},
    settings::Settings,
    sys::{Waker, here::host_name, interfaces, poll_until},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Listens for those who look for the store, on a thread of its own, until it is ended.
#[derive(Debug)]
pub struct PassingOn {
    ended: Arc<(AtomicBool, Waker)>,
    thread: Option<JoinHandle<Acceptor>>,
    relay: Arc<Relay>,
    /// Number of its listeners that are the rank's.
    own: usize,
}

impl StoreClient {
    /// Pass on what comes to `listeners` for the store, or say that this rank may not, where another rank may know their addresses; else they
    /// are given back.
    pub fn pass_on(
        &self,
        config: &Settings,
        secret: &Secret,
        mut listeners: Vec<Listener>,
    ) -> Result<Result<PassingOn, Vec<Listener>>> {
        let known = matches!(&config.meeting_point, MeetingPoint::Hostfile(ranks) if ranks.len() > 2);
        let own = listeners.len();
        listeners.extend(self.doors(config));
        if self.store.is_some() || (!known && own == listeners.len()) {
            listeners.truncate(own);
            return Ok(Err(listeners));
        }
        let os_error = |e| Error::os("listening for those who look for the store", e);
        let store = self.addrs.clone();
        let passes = config.relay;
        let relay = Relay::new(move |hello| (passes && looks_for_store(hello)).then(|| store.clone()));
        let host = config.host.clone().unwrap_or_else(host_name);
        let rank = format!("rank {} on host {host}", config.rank);
        let relay = Arc::new(relay);
        for listener in &listeners {
            listener.listen().map_err(os_error)?;
        }
        let ended = Arc::new((AtomicBool::new(false), Waker::new().map_err(os_error)?));
        let acceptor = Acceptor::new(listeners, secret.clone()).with_relay(Some(Arc::clone(&relay)));
        let told = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("comity-pass-on".into())
            .spawn(move || listen(acceptor, &told, &rank))
            .map_err(os_error)?;
        Ok(Ok(PassingOn { ended, thread: Some(thread), relay, own }))
    }

    /// Listeners at the addresses of the store that are this host's, of several that are named.
    fn doors(&self, config: &Settings) -> Vec<Listener> {
        let addrs: Vec<SocketAddr> = match &config.meeting_point {
            MeetingPoint::Store(named) | MeetingPoint::Host(named)
                if named.len() > 1 && !named.iter().all(HostPort::is_loopback) =>
            {
                named.iter().flat_map(|at| at.resolve(self.until).unwrap_or_default()).collect()
            }
            MeetingPoint::Exchange(_) => self.addrs.clone(),
            _ => Vec::new(),
        };
        if addrs.len() < 2 {
            return Vec::new();
        }
        let own = interfaces();
        // Where somebody listens it is the store, or another rank of this host.
        let ours = addrs.into_iter().filter(|at| own.iter().any(|i| i.ip == at.ip()));
        ours.filter_map(|at| Listener::tcp(at).and_then(|l| l.listen().map(|()| l)).ok()).collect()
    }
}

impl PassingOn {
    /// All have met, or it is over: the rank's listeners, and what goes on passing on.
    pub fn end(mut self) -> (Vec<Listener>, Arc<Relay>) {
        let mut listeners = self.stop().map(Acceptor::into_listeners).unwrap_or_default();
        listeners.truncate(self.own);
        (listeners, Arc::clone(&self.relay))
    }

    fn stop(&mut self) -> Option<Acceptor> {
        self.ended.0.store(true, Ordering::Release);
        self.ended.1.wake();
        // WAIT(stop): the thread that listens, which is told to stop
        self.thread.take()?.join().ok()
    }
}

impl Drop for PassingOn {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn looks_for_store(hello: &Hello) -> bool {
    hello.to == STORE && hello.channel == Channel::Join
}

// WAIT(stop): the thread that passes on: woken for each event, and when it is to stop
fn listen(mut acceptor: Acceptor, (stop, waker): &(AtomicBool, Waker), rank: &str) -> Acceptor {
    while !stop.load(Ordering::Acquire) {
        let mut fds = vec![PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        let until = acceptor.interest(&mut fds);
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        waker.drain();
        drop(acceptor.step(&mut |hello: &Hello, _| match looks_for_store(hello) {
            // What is passed on does not come here.
            true => HelloVerdict::RelayOff(rank.into()),
            // Whoever looks for this rank comes again: it has not met the others yet.
            false => HelloVerdict::Busy,
        }));
    }
    acceptor
}
