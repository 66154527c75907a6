//! A loan that lasts only if the borrower begins to read at once.
//!
//! ```text
//!   lender                                        borrower
//!   shows the loan, OFFERED                       comes to it: CLAIMED, and reads
//!   nobody comes: WITHDRAWN, unless CLAIMED       finds it WITHDRAWN: its bytes come through the ring
//! ```
//! Both sides change one word, so that one of the two is first.

use super::Entry;
use std::sync::atomic::Ordering;

/// It lasts until it was read.
const LASTS: u64 = 0;
const OFFERED: u64 = 1;
const CLAIMED: u64 = 2;
const WITHDRAWN: u64 = 3;

impl Entry {
    /// Before it is shown: whether it lasts only if it is claimed.
    pub(super) fn begin(&self, is_offer: bool) {
        self.state.store(if is_offer { OFFERED } else { LASTS }, Ordering::Relaxed);
    }

    /// Returns true if it is to be claimed before it is read.
    pub(super) fn is_offer(&self) -> bool {
        self.state.load(Ordering::Relaxed) != LASTS
    }

    /// The borrower is about to read; false if the lender has withdrawn it.
    pub(super) fn claim(&self) -> bool {
        self.becomes(CLAIMED)
    }

    /// The lender goes on without the borrower; false if that reads.
    pub(super) fn withdraw(&self) -> bool {
        self.becomes(WITHDRAWN)
    }

    /// Returns true if the borrower reads, or has read.
    pub(super) fn is_claimed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLAIMED
    }

    fn becomes(&self, new: u64) -> bool {
        self.state.compare_exchange(OFFERED, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
