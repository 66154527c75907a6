//! Lessons of earlier connections, on a host with a network and interfaces of which only the system knows where they lead.

use super::*;
use crate::candidates::{Here, sorted};
use crate::sys::Interface;
use std::net::SocketAddrV6;

const LAN: &str = "10.0.0.5";

fn interface(name: &str, index: u32, ip: &str, speed: u32) -> Interface {
    let prefix = if ip.contains(':') { 64 } else { 8 };
    Interface { name: name.into(), index, ip: ip.parse().unwrap(), prefix, speed, is_loopback: false }
}

/// A slow network with the default route, and `dead` faster interfaces with a link-local address only. Theirs are alike.
fn found(dead: u32) -> Candidates {
    let mut own = vec![interface("lan", 2, LAN, 1000), interface("lan", 2, "fe80::2", 1000)];
    own.extend((3..3 + dead).map(|i| interface("dead", i, &format!("fe80::{i:x}"), 10_000)));
    let told = |i: &Interface| {
        let far = i.ip.to_string().replace("fe80::", "fe80::f:").replace("10.0.0.5", "10.0.0.6");
        let at = SocketAddr::new(far.parse().unwrap(), 7000);
        OwnAddr { at, prefix: i.prefix, speed: i.speed, is_inner: false }
    };
    let theirs: Vec<_> = own.iter().map(told).collect();
    let source = |_| Ok(LAN.parse().unwrap());
    sorted(&Here { own, left_out: Vec::new(), default: vec![2], source: &source }, &theirs)
}

fn guess(last: u16, interface: u32) -> SocketAddr {
    SocketAddrV6::new(format!("fe80::f:{last:x}").parse().unwrap(), 7000, 0, interface).into()
}

fn first(found: &Candidates) -> SocketAddr {
    found.all.first().unwrap().at
}

#[test]
fn interfaces_that_lead_nowhere_are_tried_last() {
    let lan: SocketAddr = "10.0.0.6:7000".parse().unwrap();
    for dead in [0, 2, 16] {
        let found = found(dead);
        assert_eq!((found.all.len(), first(&found)), ((1 + dead as usize).pow(2) + 1, lan));
        assert!(!found.is_guesswork());
        // Faster than the network if they lead anywhere, or as fast and not the default route.
        assert_eq!(found.good_guesses().len(), (dead * (dead + 1)) as usize);
        assert_eq!(found.side_by_side(false), 1);
    }
}

#[test]
fn a_guess_that_answers_is_none_and_one_that_does_not_is_not_asked_again() {
    let mut all = found(3);
    let mut host = KnownHost::default();
    let good = guess(4, 5);
    assert!(all.good_guesses().contains(&good));
    host.answered.push(spot(good));
    host.silent.extend(all.guesses().iter().filter(|g| **g != good).map(|g| (spot(*g), Instant::now())));
    // A control connection needs no fast way.
    host.last = Some(spot("10.0.0.6:7000".parse().unwrap()));
    host.sort(&mut all);
    assert_eq!((first(&all), all.good_guesses()), (good, Vec::new()));
    // A cable that has come back.
    host.silent.values_mut().for_each(|since| *since = since.checked_sub(FORGET).unwrap());
    host.sort(&mut all);
    assert_eq!((first(&all), all.guesses().len()), (good, 4 * 4 - 1));
}

#[test]
fn the_address_that_was_used_goes_first_unless_another_is_better() {
    let at = |last: &str| SocketAddr::new(last.parse().unwrap(), 7000);
    let theirs = |slow: u32| {
        [("10.0.0.6", 1000), ("10.0.0.7", 1000), ("10.0.0.8", slow)].map(|(ip, speed)| OwnAddr {
            at: at(ip),
            prefix: 8,
            speed,
            is_inner: false,
        })
    };
    let source = |_| Ok(LAN.parse().unwrap());
    let here = || {
        let own = vec![interface("lan", 2, LAN, 1000)];
        Here { own, left_out: Vec::new(), default: Vec::new(), source: &source }
    };
    for (used, slow, expected) in [("10.0.0.7", 1000, "10.0.0.7"), ("10.0.0.8", 100, "10.0.0.6")] {
        let mut host = KnownHost { last: Some(spot(at(used))), ..KnownHost::default() };
        let mut all = sorted(&here(), &theirs(slow));
        host.sort(&mut all);
        assert_eq!(first(&all), at(expected), "{used}");
        // The others of that host learn from the one that waited in vain.
        host.silent = [(spot(at("10.0.0.6")), Instant::now()), (spot(at("10.0.0.7")), Instant::now())].into();
        host.sort(&mut all);
        assert_eq!(first(&all), at("10.0.0.8"));
    }
}

#[test]
fn hosts_and_ports_are_kept_apart() {
    let book = AddressBook::default();
    let card = |host_id| Card {
        host_id,
        cores: 1,
        links: [].into_iter().collect(),
        unix: String::new(),
        addrs: [2, 3]
            .map(|last| OwnAddr {
                at: ([127, 0, 0, last], 7000 + u16::from(last)).into(),
                prefix: 8,
                speed: 0,
                is_inner: false,
            })
            .into(),
        are_named: false,
        relays: false,
    };
    // Of another rank of that host, so at another port.
    book.learn(&card(1), ([127, 0, 0, 3], 9).into(), &[([127, 0, 0, 2], 9).into()]);
    assert_eq!(first(&book.candidates(&card(1))), ([127, 0, 0, 3], 7003).into());
    assert_eq!(first(&book.candidates(&card(2))), ([127, 0, 0, 2], 7002).into());
    book.learn_relay(4, 2);
    assert_eq!((book.relay_of(4), book.relay_of(2)), (Some(2), None));
}
