//! A call's words, which its rank writes over those of an earlier call while the launcher may read them.
//!
//! The number of the call comes first, and whoever reads asks for it again at the end, as with a sequence lock. It is written nowhere else:
//! a call that is not the wanted one has another number from its first word on.

use super::live::CALL;
use crate::sync::{Ordering, fence};
use std::sync::atomic::AtomicU64;

/// Place of the call number plus one, among words that the recorder does not use.
const NUMBER: usize = 6;

/// A number that both processes see.
pub(super) trait SharedWord {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
}

impl SharedWord for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}

/// Writes call number `number`. Readers find it once they have seen that it was made.
#[inline]
pub(super) fn write<W: SharedWord>(words: &[W], number: u64, call: [u64; CALL]) {
    words[NUMBER].set(number + 1);
    // Who reads a word of this call finds its number, too.
    fence(Ordering::Release);
    for (i, (word, value)) in words.iter().zip(call).enumerate() {
        if i != NUMBER {
            word.set(value);
        }
    }
}

/// Reads call number `number`, which was made; `None` where a later one is being written in its place.
pub(super) fn read<W: SharedWord>(words: &[W], number: u64) -> Option<[u64; CALL]> {
    let call = std::array::from_fn(|i| if i == NUMBER { 0 } else { words[i].get() });
    fence(Ordering::Acquire);
    (words[NUMBER].get() == number + 1).then_some(call)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{
        sync::{Arc, atomic::AtomicU64},
        thread,
    };

    impl SharedWord for AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn set(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }
    }

    /// Two calls follow each other in a place: whoever reads the first reads all of it, or nothing.
    #[test]
    fn a_call_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let words: Arc<[AtomicU64; CALL]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            let made = Arc::new(AtomicU64::new(0));
            let theirs = words.clone();
            let seen = made.clone();
            let rank = thread::spawn(move || {
                for number in 0..2 {
                    write(&theirs[..], number, [number + 10; CALL]);
                    seen.store(number + 1, Ordering::Release);
                }
            });
            if let Some(number) = made.load(Ordering::Acquire).checked_sub(1)
                && let Some(mut call) = read(&words[..], number)
            {
                call[NUMBER] = number + 10;
                assert_eq!(call, [number + 10; CALL]);
            }
            rank.join().unwrap();
        });
    }
}
