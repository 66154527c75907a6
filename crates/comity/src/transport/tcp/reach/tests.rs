//! Connections of a first link, whose path is cut while they are made.

use super::*;
use crate::{
    LinkKind,
    transport::{
        AddressBook, Announced, Candidates, Card, OwnAddr, conformance::eventually, tcp::tests::streams,
    },
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::TcpStream,
    os::fd::BorrowedFd,
};

/// Connects to itself. Before making number `holds` the path is cut behind the first connection.
struct CutBehind {
    holds: u16,
    making: Cell<u16>,
    within: Cell<Option<Duration>>,
    /// By making: its connections, at the other end.
    theirs: RefCell<BTreeMap<u16, Vec<Connection>>>,
    /// How long those that failed might have taken.
    gave_up: RefCell<Vec<Option<Duration>>>,
}

impl CutBehind {
    fn new(holds: u16) -> Self {
        let (making, within) = (Cell::new(9), Cell::new(None));
        Self { holds, making, within, theirs: RefCell::default(), gave_up: RefCell::default() }
    }

    fn connect(&self) -> Connection {
        let one = |mut all: Vec<TcpStream>| {
            let stream = all.remove(0);
            stream.set_nonblocking(true).unwrap();
            (Stream::Tcp(stream), None)
        };
        let (ours, theirs) = streams(1);
        self.theirs.borrow_mut().entry(self.making.get()).or_default().push(one(theirs));
        one(ours)
    }
}

impl Connector for CutBehind {
    fn dial(&self, _: Target, _: u16, _: u16) -> Result<Connection, Miss> {
        if self.making.get() >= self.holds {
            return Ok(self.connect());
        }
        self.gave_up.borrow_mut().push(self.within.get());
        Err(Miss::Nobody(io::ErrorKind::TimedOut.into()))
    }

    fn candidates(&self) -> Candidates {
        let here = OwnAddr { at: ([127, 0, 0, 1], 7).into(), prefix: 8, speed: 0, is_inner: false };
        AddressBook::default().candidates(&Card { addrs: vec![here], ..card(1, true) })
    }

    fn answering(&self, targets: &[Target]) -> Result<Vec<usize>, Miss> {
        Ok((0..targets.len()).collect())
    }

    fn reach(&self, _: &[Target], _: &[String], _: u16, _: u16) -> Result<Connection, Miss> {
        Ok(self.connect())
    }

    fn name(&self, making: u16) {
        self.making.set(making);
    }

    fn hurry(&self, within: Option<Duration>) {
        self.within.set(within);
    }

    fn reach_soon(&self, _: &[Target], _: u16, _: u16) -> Result<Connection, Miss> {
        Ok(self.connect())
    }

    fn silence(&self) -> Option<Duration> {
        None
    }

    fn wait(&self, _: BorrowedFd<'_>, _: Instant) -> Result<bool> {
        Ok(false)
    }

    fn until(&self) -> Instant {
        Instant::now() + Duration::from_secs(60)
    }
}

/// A host in two networks, whose pairs have a connection for each direction.
fn card(host: u8, second_path: bool) -> Card {
    let at = |network| ([10, 0, network, host], 7000).into();
    let own = |network| OwnAddr { at: at(network), prefix: 24, speed: 0, is_inner: false };
    let wish = Wish { senders: Some(0), connections: 2 };
    let links: Announced = [(LinkKind::Tcp, wish.encode())].into_iter().collect();
    let (addrs, unix) = (vec![own(1), own(2)], String::new());
    Card { host_id: host.into(), cores: 1, links, unix, addrs, are_named: false, relays: false, second_path }
}

fn tcp() -> Tcp {
    let job = JobInfo { rank: 0, size: 2, sealed: false, wanted: None };
    Tcp::find(&TcpSettings::default(), &job).unwrap().unwrap()
}

#[test]
fn a_path_that_is_cut_while_a_first_link_is_made_is_no_end() {
    let cards = [card(1, true), card(2, true)];
    let [ours, theirs] = [1, 0].map(|me| Pair::new(&cards, me, 1 - me, 5).unwrap());
    for holds in [1, 2, 4] {
        let (connector, a, b) = (CutBehind::new(holds), tcp(), tcp());
        let Ok(Connected::Link(Ok(mut link))) = a.connect(&ours, &connector) else {
            panic!("{holds}: no link")
        };
        let seconds: Vec<_> = connector.gave_up.borrow().iter().map(|d| d.unwrap().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4][..usize::from(holds) - 1]);
        let mut made = connector.theirs.take();
        let connections = made.remove(&holds).unwrap();
        assert_eq!(connections.len(), 3);
        assert!(made.values().all(|first| first.len() == 1) && made.len() == usize::from(holds) - 1);
        let pair = Pair { making: holds, ..theirs };
        let Ok(Connected::Link(Ok(mut other))) = b.accept(&pair, connections, &connector) else {
            panic!("{holds}: no link at the other end")
        };
        for _ in 0..2 {
            eventually("a byte", || {
                let _ = link.put(b"x", b"").unwrap();
                (other.take(&mut [0; 8]).unwrap() > 0).then_some(())
            });
            std::mem::swap(&mut link, &mut other);
        }
    }
}

#[test]
fn a_pair_with_one_path_waits_for_it_and_pays_nothing() {
    let cards = [card(1, true), card(2, false)];
    let pair = Pair::new(&cards, 1, 0, 5).unwrap();
    let (all, whole, cut) = (tcp(), CutBehind::new(0), CutBehind::new(1));
    let made = all.connect(&pair, &whole);
    assert!(matches!(made, Ok(Connected::Link(Ok(_)))) && !all.is_tended());
    let count: Vec<_> = whole.theirs.borrow().iter().map(|(making, all)| (*making, all.len())).collect();
    assert_eq!(count, [(0, 2)]);
    assert!(all.connect(&pair, &cut).is_err());
    assert_eq!(*cut.gave_up.borrow(), [None]);
}
