//! Worlds of threads: each has its own `Config` and `Endpoint`, as processes have.

mod claims;
mod damage;
mod far;
mod groups;
mod jobs;
mod lazy;
mod leaving;
mod meeting;
#[cfg(target_os = "linux")]
mod processes;
mod slow;
mod sparse;

use crate::{
    CallInfo, Config, ConnectTiming, Error, ErrorKind, Group, Key, LinkKind, Op, Result,
    channel::Secret,
    engine::tests::each,
    links::Endpoint,
    rendezvous::{Store, StoreClient},
    status::{Failure, GroupStatus, Header, Links, World},
};
use scope::await_that;
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

const KEY: [u8; 32] = [7; 32];
const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Enough for anything that is to succeed, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(20);

fn store(size: usize, join: Duration) -> Store {
    Store::start((LOOPBACK, 0).into(), size, &Key::from(KEY), "job", join).unwrap()
}

fn config(rank: usize, size: usize, at: SocketAddr) -> Config {
    Config::new(rank, size)
        .store(&at.to_string())
        .unwrap()
        .job("job")
        .key(Key::from(KEY))
        .join_timeout(LONG)
        .connect_when(ConnectTiming::All)
}

fn join_job(config: &Config) -> Result<Arc<Endpoint>> {
    Endpoint::join(&config.settings)
}

fn find_store(config: &Config) -> Result<(StoreClient, Secret)> {
    StoreClient::find(&config.settings)
}

/// Kinds of link that need no device: each kind that is added, too.
fn kinds_without_device() -> impl Iterator<Item = LinkKind> {
    LinkKind::choices().filter(|kind| *kind != LinkKind::Rdma)
}

/// A port that stays ours, and that others may listen on who allow its reuse; elsewhere than on Linux they may not, so there it is only free.
fn reserved() -> (Option<Socket>, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((LOOPBACK, 0)).into()).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    (cfg!(target_os = "linux").then_some(socket), at)
}

fn world(n: usize, adapt: impl Fn(Config) -> Config + Sync) -> Vec<Arc<Endpoint>> {
    let store = store(n, LONG);
    each(0..n, |r| join_job(&adapt(config(r, n, store.addr()))).unwrap())
}

fn until() -> Instant {
    Instant::now() + LONG
}

fn status(n: usize) -> Arc<GroupStatus> {
    Arc::new(GroupStatus::new(n, Arc::default()).unwrap())
}

fn open(e: &Endpoint, group_id: u64, members: &[usize]) -> (Arc<GroupStatus>, Links) {
    let status = status(members.len());
    let links = e.open(group_id, members, &status, until()).unwrap();
    (status, links)
}

/// The group of all that a program has.
fn group(endpoint: &Arc<Endpoint>) -> Group {
    Group::open(0, Arc::clone(endpoint) as Arc<dyn World>, Arc::default(), LONG, LONG).unwrap()
}

fn await_failure(status: &GroupStatus) -> Failure {
    await_that("a failure", || status.failure().is_some());
    status.failure().unwrap().clone()
}

/// Every rank says who it is to every other over its link.
fn talk(me: usize, links: &mut Links) {
    let mut sent = vec![0; links.len()];
    let mut got: Vec<Vec<u8>> = vec![Vec::new(); links.len()];
    let end = until();
    let text = |r: usize| format!("this is rank {r}").into_bytes();
    loop {
        let mut done = true;
        for (r, link) in links.iter_mut().enumerate() {
            let Some(link) = link else {
                assert_eq!(r, me);
                continue;
            };
            // One that has all it wants may have left.
            let rest = &text(me)[sent[r]..];
            if !rest.is_empty() {
                sent[r] += link.put(rest, &[]).unwrap();
            }
            let mut buf = [0; 64];
            let want = text(r).len() - got[r].len();
            if want > 0 {
                let n = link.take(&mut buf[..want]).unwrap();
                got[r].extend(&buf[..n]);
            }
            done &= got[r].len() == text(r).len() && sent[r] == text(me).len();
        }
        if done {
            break;
        }
        assert!(Instant::now() < end, "rank {me} heard only {got:?}");
    }
    for (r, got) in got.into_iter().enumerate().filter(|(r, _)| *r != me) {
        assert_eq!(got, text(r));
    }
}

fn kinds(links: &Links) -> Vec<Option<LinkKind>> {
    links.iter().map(|l| l.as_ref().map(|l| l.properties().kind)).collect()
}

/// Idle, slow and talkative strangers, connected to `at`.
fn strangers(at: SocketAddr, n: usize) -> Vec<TcpStream> {
    (0..n)
        .filter_map(|i| {
            let mut c = TcpStream::connect(at).ok()?;
            let words: &[u8] = match i % 5 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\n\r\n",
                2 => b"cm\x11\x00\x40half a hello",
                3 => b"cm\x11\xff\xffmuch too long",
                _ => &[0xff; 2000],
            };
            // It may have been cut off already.
            let _ = c.write_all(words);
            Some(c)
        })
        .collect()
}
