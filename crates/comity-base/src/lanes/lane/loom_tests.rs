//! A lane of two ranks under loom: who writes to a window is alone with it, and who reads one finds what was staged.

use super::*;
use loom::{cell::UnsafeCell, sync::Arc, thread};

const WINDOWS: u64 = 3;
const ALL: Phases = Phases { reduces: true, takes: true };

/// Flags of a rank, and of its stage two halves with two parts each.
#[derive(Default)]
struct Stage {
    flags: [FlagWord; 2],
    halves: [[UnsafeCell<u64>; 2]; 2],
}

fn read(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: staged or reduced, and not written until all have read it; loom checks that.
    cell.with(|p| unsafe { *p })
}

fn write(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: this rank's own, which no other reads now; loom checks that.
    cell.with_mut(|p| unsafe { *p = value });
}

/// A rank's part of a call: each stages its number times 10, and the window; the sums come to 30, and twice the window.
fn carry(stages: &[Stage; 2], rank: usize) {
    let own = &stages[rank];
    let other = &stages[1 - rank];
    let mut lane = LaneProgress::new(0, 0, WINDOWS);
    loop {
        let act = match lane.next(ALL) {
            Next::End => return,
            Next::Now(act) => act,
            Next::After(flag, act) => {
                while other.flags[flag as usize].is_below(lane.number()) {
                    thread::yield_now();
                }
                act
            }
        };
        let half = lane.half();
        let share = |rank: usize| 10 * (rank as u64 + 1) + lane.window;
        match act {
            // The part that the other reduces.
            Act::Stage => write(&own.halves[half][1 - rank], share(rank)),
            Act::Reduce => {
                let theirs = read(&other.halves[half][rank]);
                assert_eq!(theirs, share(1 - rank));
                write(&own.halves[half][rank], theirs + share(rank));
            }
            Act::Take => assert_eq!(read(&other.halves[half][1 - rank]), 30 + 2 * lane.window),
        }
        let number = lane.number();
        if let Some(flag) = lane.did(act, ALL) {
            own.flags[flag as usize].raise(number);
        }
    }
}

#[test]
fn windows_are_read_as_they_were_staged() {
    loom::model(|| {
        let stages: Arc<[Stage; 2]> = Arc::default();
        let theirs = stages.clone();
        let other = thread::spawn(move || carry(&theirs, 1));
        carry(&stages, 0);
        other.join().unwrap();
    });
}
