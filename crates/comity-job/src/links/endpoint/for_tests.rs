//! Access of tests to an endpoint, also of tests in `comity`.

use super::Endpoint;
use crate::{status::GroupStatus, transport::Card};
use std::{sync::Arc, time::Duration};

impl Endpoint {
    /// Be in a group, without links.
    pub fn enter_for_test(&self, group_id: u64, members: &[usize]) -> Arc<GroupStatus> {
        let status = Arc::new(GroupStatus::new(members.len(), Arc::default()).unwrap());
        let mine = members.iter().position(|m| *m == self.ways.me).unwrap();
        let control = self.running.as_ref().unwrap().control();
        assert!(control.enter(group_id, members, mine, &status));
        control.begin();
        status
    }

    /// Returns true if there is a control connection to a rank.
    pub fn is_connected_for_test(&self, rank: usize) -> bool {
        self.running.as_ref().is_some_and(|r| r.control().is_connected_for_test(rank))
    }

    /// Have every control connection show this round trip.
    pub fn set_round_trip_for_test(&self, trip: Duration) {
        if let Some(running) = &self.running {
            running.control().set_round_trip_for_test(trip);
        }
    }

    /// End as a killed process does: its connections close, and nothing is said.
    pub fn die(&self) {
        if let Some(running) = &self.running {
            running.control().die();
        }
    }

    /// Makes the socket of `rank` unreachable from here.
    pub fn spoil_unix_of(&mut self, rank: usize) {
        Arc::make_mut(&mut self.ways.cards)[rank].unix.push('x');
    }

    /// Replaces the address at which `rank` listens.
    pub fn readdress(&mut self, rank: usize, at: std::net::SocketAddr) {
        Arc::make_mut(&mut self.ways.cards)[rank].addrs = vec![crate::transport::OwnAddr::new(at, &[])];
    }

    /// Returns the number of links of a group that were made.
    pub fn links_made_for_test(&self, group_id: u64) -> usize {
        self.makers.made_for_test(group_id)
    }

    pub fn card_of(&self, rank: usize) -> &Card {
        &self.ways.cards[rank]
    }
}
