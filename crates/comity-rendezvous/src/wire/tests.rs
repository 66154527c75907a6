//! Messages read back, and bytes that are no messages.

use super::*;
use crate::{
    channel::{Conn, Stream},
    transport::MAX_ADDRS,
};
use proptest::prelude::*;
use std::{io::Write, net::SocketAddrV6, os::unix::net::UnixStream};

prop_compose! {
    fn facts()(
        host_id: u64, host in "\\PC{0,40}", pid: u32, process: u64, cores: u16, sealed: bool, ring: bool, silence: u32,
        links in prop::collection::hash_map(0..LinkKind::LISTED.len(), prop::collection::vec(any::<u8>(), 0..=64), 0..=LinkKind::LISTED.len()),
        unix in "[a-z]{0,20}", addrs in prop::collection::vec((any::<SocketAddr>(), any::<u8>(), any::<u32>(), any::<bool>()), 0..=MAX_ADDRS),
        are_named: bool, relays: bool,
    ) -> Facts {
        // Flow labels do not travel.
        let plain = |a| match a {
            SocketAddr::V6(a) => SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id()).into(),
            a => a,
        };
        let own = |(at, prefix, speed, is_inner)| OwnAddr { at: plain(at), prefix, speed, is_inner };
        let addrs = addrs.into_iter().map(own).collect();
        let links = links.into_iter().map(|(i, bytes)| (LinkKind::LISTED[i], bytes)).collect();
        Facts { card: Card { host_id, cores, links, unix, addrs, are_named, relays }, host, pid, process, ring, sealed, silence }
    }
}

prop_compose! {
    fn why()(words in "\\PC{0,99}", ranks in prop::collection::vec(0usize..65536, 0..20), cause in 0..JoinCause::ALL.len()) -> JoinError {
        JoinError::new(words).of(ranks).because(JoinCause::ALL[cause])
    }
}

proptest! {
    #[test]
    fn store_messages_round_trip(
        rank in 0u32..9, size in 9u32..65536, patience: u64, facts in facts(), why in why(), at: std::net::SocketAddrV4,
    ) {
        let to = Summons { group_id: patience, rank, size, epoch: rank, addrs: vec![at.into()] };
        let message = Message::Accepted { ballot: Ballot { round: rank, by: size } };
        for m in [
            ToStore::Join { rank, size, patience, facts: facts.clone() }, ToStore::Ready,
            ToStore::Failed { why: why.clone() }, ToStore::Wait { host: facts.host.clone(), pid: rank, place: Some(rank).filter(|r| r % 2 == 0) },
            ToStore::Vote { world: patience, group_id: 7, message: message.clone() },
            ToStore::Summon { joiners: vec![patience, 1], to: to.clone() },
            ToStore::Decline { joiners: vec![patience], why: why.clone() },
        ] {
            prop_assert_eq!(ToStore::decode(&m.encode()), Ok(m));
        }
        for m in [
            FromStore::Welcome { world: patience, size }, FromStore::Entry { rank, facts },
            FromStore::Refused { why }, FromStore::Joiners { all: vec![patience], called: vec![patience, 1] }, FromStore::Summoned { to },
            FromStore::Vote { group_id: patience, message },
        ] {
            prop_assert_eq!(FromStore::decode(&m.encode()), Ok(m));
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..10) {
        let bytes = [&[kind], &bytes[..]].concat();
        if let Ok(m) = ToStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes.clone()); }
        if let Ok(m) = FromStore::decode(&bytes) { prop_assert_eq!(m.encode(), bytes); }
    }
}

/// A seed that is no message any more leads the fuzzer nowhere.
#[test]
fn the_fuzzers_seeds_are_messages() {
    macro_rules! seed {
        ($name:literal) => {
            include_bytes!(concat!("../../../../fuzz/seeds/messages/", $name)).as_slice()
        };
    }
    for seed in [seed!("join"), seed!("ready"), seed!("failed")] {
        assert!(ToStore::decode(seed).is_ok(), "{seed:x?}");
    }
    for seed in [seed!("welcome"), seed!("entry")] {
        assert!(FromStore::decode(seed).is_ok(), "{seed:x?}");
    }
    let (mut peer, us) = UnixStream::pair().unwrap();
    us.set_nonblocking(true).unwrap();
    peer.write_all(seed!("framed")).unwrap();
    let mut conn = Conn::new(Stream::Unix(us), None);
    assert!(conn.fill());
    let count = std::iter::from_fn(|| conn.next_message().unwrap()).count();
    assert!(count > 1 && !conn.has_part(), "{count}");
}
