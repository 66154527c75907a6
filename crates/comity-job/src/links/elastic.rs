//! Worlds that follow others: the ranks that are left meet the joiners, at a store of their own, as at a job's start.
//!
//! Unless somebody joins no new world is made: the group that follows is one of some ranks of the same world.

use super::Endpoint;
use crate::{
    Error, ErrorKind, HostPort, MeetingPoint, Result,
    control::ControlPlane,
    rendezvous::{Field, Store, StoreBind, StoreClient, Summons},
    settings::{Settings, Trust},
    status::{World, new_group_id},
    sync::lock,
    sys::here::host_name,
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

/// The longest and the shortest wait of ranks for a joiner that was called and is silent: between them, the limit on a rank's silence. One
/// that ends is not waited for.
const MEETING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(5));

/// Wait for a joiner that is silent.
fn meeting_limit(config: &Settings) -> Duration {
    config.detection.limit().map_or(MEETING.0, |limit| limit.clamp(MEETING.1, MEETING.0))
}

/// State of a process for the worlds that follow its own.
#[derive(Debug, Default)]
pub(super) struct Elastic {
    /// Settings with which this process met the others, if that was at a store that outlives them.
    config: OnceLock<Settings>,
    /// Stores of the meetings that this rank proposes.
    meetings: Mutex<Vec<Store>>,
    /// The connections of the world before this one, until this one follows.
    before: Mutex<Option<Arc<ControlPlane>>>,
}

impl Elastic {
    /// Note how this process met the others.
    pub(super) fn remember(&self, config: &Settings) {
        if let MeetingPoint::Store(_) = config.meeting_point {
            let _ = self.config.set(config.clone());
        }
    }

    pub(super) fn end_meetings(&self, control: &ControlPlane) {
        control.end_meetings();
        drop(std::mem::take(&mut *lock(&self.meetings)));
    }
}

impl Endpoint {
    /// Invite the processes that wait to be taken in to a meeting with so many ranks: what the plan says of it.
    pub(super) fn invite(&self, members: usize, epoch: u32) -> Result<Vec<u8>> {
        let group_id = new_group_id()?;
        let alone = || Ok(group_id.to_be_bytes().into());
        let Some((running, config)) = self.running.as_ref().zip(self.elastic.config.get()) else {
            return alone();
        };
        let control = running.control();
        let joiners = control.invited();
        let Some(local) = control.toward_store().filter(|_| !joiners.is_empty()) else { return alone() };
        let size = members + joiners.len();
        let key = match config.trust()? {
            Trust::Held(key) => key.clone(),
            Trust::Nobody | Trust::Exchange => crate::Key::zeros(),
        };
        let bind = StoreBind { named: vec![SocketAddr::new(local, 0)], also: Vec::new() };
        let store =
            Store::start_with(bind, size, &key, &config.job, meeting_limit(config), config.insecure, None)
                .map_err(|no| no.into_error())?;
        let addrs = store.addrs().to_vec();
        let to = Summons { group_id, rank: members as u32, size: size as u32, epoch, addrs };
        control.summon(joiners, to.clone(), store.teller());
        lock(&self.elastic.meetings).push(store);
        Ok(to.encode())
    }

    /// Meet the joiners of a plan.
    pub(super) fn meet_anew(
        &self,
        rank: usize,
        extra: &[u8],
        until: Instant,
    ) -> Result<Option<Arc<dyn World>>> {
        let Some(to) = Summons::of_plan(extra)? else { return Ok(None) };
        let Some((running, config)) = self.running.as_ref().zip(self.elastic.config.get()) else {
            return Err(Error::config("this rank knows of no store that outlives it; start all ranks alike"));
        };
        let left = until.saturating_duration_since(Instant::now());
        let new = meet(config, rank, &to, left)?;
        *lock(&new.elastic.before) = Some(Arc::clone(running.control()));
        Ok(Some(new))
    }

    /// This world follows the one before: what the launcher's store says is said to it from now on.
    pub(super) fn take_over(&self) {
        let before = lock(&self.elastic.before).take();
        if let Some((before, running)) = before.zip(self.running.as_ref()) {
            running.control().have_store(before.take_store());
        }
    }
}

/// Meet at the store of a group that forms again.
fn meet(config: &Settings, rank: usize, to: &Summons, limit: Duration) -> Result<Arc<Endpoint>> {
    let here = Settings {
        rank,
        size: to.size as usize,
        local: None,
        meeting_point: MeetingPoint::Store(to.addrs.iter().copied().map(HostPort::from).collect()),
        join_timeout: config.join_timeout.min(limit).min(meeting_limit(config)),
        ..config.clone()
    };
    let new = Endpoint::join_from(&here, config)?;
    // That store ends when all have met.
    if let Some(store) = new.running.as_ref().and_then(|running| running.control().take_store()) {
        store.leave();
    }
    Ok(new)
}

/// Wait until the ranks of a job that runs take this process in. `open` opens the group of that number and epoch; it returns when the others have agreed on it.
///
/// # Errors
/// The store's, where it ends or sends this process away; what this process itself lacks.
pub fn join_running<T>(
    config: &Settings,
    open: &mut dyn FnMut(Arc<Endpoint>, (u64, u32)) -> Result<T>,
) -> Result<T> {
    let (mut lobby, _) = StoreClient::find(config)?;
    let host = || config.host.clone().unwrap_or_else(host_name);
    lobby.enlist(host(), config.place)?;
    loop {
        let to = lobby.summoned()?;
        let met = meet(config, to.rank as usize, &to, config.join_timeout);
        let group = met
            .and_then(|world| open(Arc::clone(&world), (to.group_id, to.epoch)).map(|group| (group, world)));
        match group {
            Ok((group, world)) => {
                lobby.is_in();
                if let Some(running) = &world.running {
                    running.control().have_store(Some(lobby));
                }
                return Ok(group);
            }
            // Next time it would lack the same.
            Err(e) if matches!(e.root().kind(), ErrorKind::Config(_) | ErrorKind::Unavailable { .. }) => {
                return Err(e);
            }
            Err(e) => {
                // It may have been sent away meanwhile.
                lobby.hear()?;
                tracing::info!(%e, "the group that was to take this process in did not come about; it waits again");
                lobby.enlist(host(), config.place)?;
            }
        }
    }
}
