//! Engine over a link that lends a frame at a time, and over a link that has not seen that this rank sleeps.

pub(crate) mod hooked;

use self::hooked::{HookedWorld, Opening};
use crate::{
    Group, ReduceOp, Result,
    status::World,
    sync::lock,
    transport::{Interest, Lending, Link, LinkError, LinkProperties},
};
use comity_plan::Algorithm;
pub(crate) use scope::each;
use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Bytes that such a link lends at a time.
const FRAME: usize = 4 << 10;
/// Enough for anything that is to succeed, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(60);

type Pipe = Arc<Mutex<Vec<u8>>>;

/// State that all links of a test share: the bytes under way, by sender and receiver, the body bytes that each put took, and the number of
/// puts of a head alone.
#[derive(Debug, Default)]
struct Shared {
    pipes: Mutex<HashMap<(usize, usize), Pipe>>,
    puts: Mutex<Vec<usize>>,
    heads: Mutex<usize>,
}

/// A link that takes all that it is given at once, and lends it in frames. Another link wakes the other end.
#[derive(Debug)]
struct Frames {
    waker: Box<dyn Link>,
    out: Pipe,
    coming: Pipe,
    inbox: Vec<u8>,
    shared: Arc<Shared>,
}

impl Lending for Frames {}

impl Link for Frames {
    fn properties(&self) -> LinkProperties {
        LinkProperties { is_memory: false, ..self.waker.properties() }
    }

    fn chunk(&self) -> usize {
        1 << 20
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if !head.is_empty() || !body.is_empty() {
            lock(&self.out).extend([head, body].concat());
            self.waker.put(&[0], &[])?;
        }
        if !body.is_empty() {
            lock(&self.shared.puts).push(body.len());
        } else if !head.is_empty() {
            *lock(&self.shared.heads) += 1;
        }
        Ok(head.len() + body.len())
    }

    fn peek(&mut self, _: usize) -> Result<&[u8], LinkError> {
        let woken = self.waker.peek(1)?.len();
        self.waker.consume(woken);
        if self.inbox.is_empty() {
            self.inbox = std::mem::take(&mut *lock(&self.coming));
        }
        Ok(&self.inbox[..FRAME.min(self.inbox.len())])
    }

    fn consume(&mut self, n: usize) {
        self.inbox.drain(..n);
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        take_by_peek(self, dst)
    }

    fn has_more(&self) -> bool {
        !self.inbox.is_empty()
    }

    fn arm(&mut self, interest: Interest) {
        self.waker.arm(interest);
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        self.waker.disarm()
    }

    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        self.waker.fds(interest, out);
    }
}

fn take_by_peek(link: &mut dyn Link, dst: &mut [u8]) -> Result<usize, LinkError> {
    let ready = link.peek(dst.len())?;
    let n = ready.len().min(dst.len());
    dst[..n].copy_from_slice(&ready[..n]);
    link.consume(n);
    Ok(n)
}

/// The groups of `n` threads with such links.
fn framed(n: usize, shared: &Arc<Shared>) -> Vec<Group> {
    let shared = shared.clone();
    let opening: Arc<Opening> = Arc::new(move |world, _, members, open| {
        let me = world.rank();
        let pipe = |from, to| lock(&shared.pipes).entry((from, to)).or_default().clone();
        let link = |(&peer, waker): (&usize, Option<Box<dyn Link>>)| {
            let out = pipe(me, peer);
            let coming = pipe(peer, me);
            let link = |waker| Frames { waker, out, coming, inbox: Vec::new(), shared: shared.clone() };
            waker.map(|waker| Box::new(link(waker)) as Box<dyn Link>)
        };
        Ok(members.iter().zip(open()?).map(link).collect())
    });
    let worlds = HookedWorld::all(n, &opening).into_iter();
    worlds.map(|w| Group::open(0, Arc::new(w), Arc::default(), LONG, LONG).unwrap()).collect()
}

/// Else a sealed link, which lends a frame at a time, would also send so: a call into the system for each.
#[test]
fn all_that_lies_ready_is_combined_before_it_is_passed_on() {
    for n in 2..=4 {
        let shared = Arc::<Shared>::default();
        let groups = framed(n, &shared);
        each(&groups, |group| {
            let mut data = vec![group.rank() as f32 + 1.0; 16 << 10];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            let sum = (1..=n).sum::<usize>() as f32;
            assert!(data.iter().all(|&x| x == sum), "{n} ranks");
        });
        let puts = lock(&shared.puts).clone();
        assert!(!puts.is_empty() && puts.iter().all(|&len| len > FRAME), "{n} ranks: {puts:?}");
    }
}

/// Each write to a socket takes as long as the message itself.
#[test]
fn a_short_message_goes_with_its_header() {
    for n in 2..=8 {
        let shared = Arc::<Shared>::default();
        let groups = framed(n, &shared);
        each(&groups, |group| {
            assert!(group.prefer_algorithm(Some(Algorithm::Doubling)));
            for _ in 0..3 {
                let mut data = [group.rank() as f32; 2];
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, [(0..n).sum::<usize>() as f32; 2], "{n} ranks");
            }
        });
        assert_eq!(*lock(&shared.heads), 0, "{n} ranks");
        assert!(!lock(&shared.puts).is_empty(), "{n} ranks");
    }
}

/// A link whose peer puts a message at the very moment at which this end arms: it wakes nobody, and the look that follows misses it.
#[derive(Debug)]
struct Missed {
    inner: Box<dyn Link>,
    /// Looks since this end is armed.
    looks: Option<u32>,
    is_seen: bool,
}

impl Lending for Missed {}

impl Link for Missed {
    fn properties(&self) -> LinkProperties {
        LinkProperties { is_memory: true, ..self.inner.properties() }
    }

    fn chunk(&self) -> usize {
        self.inner.chunk()
    }

    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        self.inner.put(head, body)
    }

    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        self.is_seen |= self.looks > Some(0);
        self.looks = self.looks.map(|n| n + 1);
        if self.is_seen { self.inner.peek(want) } else { Ok(&[]) }
    }

    fn consume(&mut self, n: usize) {
        self.inner.consume(n);
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        take_by_peek(self, dst)
    }

    fn arm(&mut self, _: Interest) {
        self.looks = Some(0);
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        self.looks = None;
        Ok(())
    }

    fn fds<'a>(&'a self, _: Interest, _: &mut Vec<(BorrowedFd<'a>, Interest)>) {}
}

#[test]
fn a_message_that_woke_nobody_is_found_before_a_long_sleep() {
    let opening: Arc<Opening> = Arc::new(|_, _, _, open| {
        let link = |inner| Box::new(Missed { inner, looks: None, is_seen: false }) as Box<dyn Link>;
        Ok(open()?.into_iter().map(|l| l.map(link)).collect())
    });
    let limit = Duration::from_secs(5);
    let worlds = HookedWorld::all(2, &opening).into_iter();
    let groups: Vec<_> =
        worlds.map(|w| Group::open(0, Arc::new(w), Arc::default(), limit, LONG).unwrap()).collect();
    thread::scope(|s| {
        s.spawn(|| groups[0].send(&[7_u8], 1, 0).unwrap());
        let mut got = [0_u8];
        groups[1].recv(&mut got, 0, 0).unwrap();
        assert_eq!(got, [7]);
    });
}
