//! Both sides of a ring under loom, which tries how their loads and stores may meet.

use super::*;
use loom::{
    cell::UnsafeCell,
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// Stand-in for a real link's socket: rings are kept until they are heard.
#[derive(Default)]
struct Waker {
    woken: Mutex<bool>,
    heard: Condvar,
}

impl Waker {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.heard.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// Three bytes through a ring of two, with sleep on both sides: no byte is lost, torn or seen early, and nobody sleeps for ever.
#[test]
fn bytes_arrive_in_order_and_sleepers_wake() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let bytes: Arc<[UnsafeCell<u8>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let wakers = Arc::new((Waker::default(), Waker::default()));
        let writer = {
            let s = shared.clone();
            let b = bytes.clone();
            let wakers = wakers.clone();
            thread::spawn(move || {
                let mut w = RingWriter::new(2);
                for i in 1..=3u8 {
                    let at = loop {
                        let (at, n) = w.room(&s, 1).unwrap();
                        if n > 0 {
                            break at;
                        }
                        w.arm(&s);
                        if w.room(&s, 1).unwrap().1 == 0 {
                            wakers.1.wait();
                        }
                        w.disarm(&s);
                    };
                    // SAFETY: the position is the writer's until it is published; loom checks it.
                    b[at].with_mut(|p| unsafe { *p = i });
                    if w.publish(&s, 1) {
                        wakers.0.wake();
                    }
                }
            })
        };
        let mut r = RingReader::new(2);
        for i in 1..=3u8 {
            let at = loop {
                let (at, n) = r.ready(&shared, 1).unwrap();
                if n > 0 {
                    break at;
                }
                r.arm(&shared);
                if r.ready(&shared, 1).unwrap().1 == 0 {
                    wakers.0.wait();
                }
                r.disarm(&shared);
            };
            // SAFETY: published and not yet released; loom checks it.
            assert_eq!(bytes[at].with(|p| unsafe { *p }), i);
            if r.release(&shared, 1) {
                wakers.1.wake();
            }
        }
        writer.join().unwrap();
    });
}

/// Three messages of one word, each before the one before it was read or not: what lies beside the position is the message at which
/// the reader stands, whole, or nothing.
#[test]
fn what_lies_beside_the_position_is_whole_and_the_next() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let writer = {
            let s = shared.clone();
            thread::spawn(move || {
                let mut w = RingWriter::new(64);
                for i in 1..=3u8 {
                    w.publish_short(&s, &[i; SHORT], 16);
                }
            })
        };
        let mut r = RingReader::new(64);
        let mut next = 1u8;
        for _ in 0..3 {
            let (_, n) = r.ready(&shared, 1).unwrap();
            let short = r.short();
            assert!(short.is_empty() || short == &[next; 16][..], "{short:?} at {next}");
            // All of it, from there or from the ring.
            next += (n / 16) as u8;
            r.release(&shared, n);
        }
        writer.join().unwrap();
        let (_, n) = r.ready(&shared, 1).unwrap();
        assert_eq!(usize::from(next - 1) + n / 16, 3);
        if n == 16 && r.head == 32 {
            assert_eq!(r.short(), &[3; 16][..], "nobody writes any more");
        }
    });
}
