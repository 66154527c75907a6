//! Entries of the fuzz targets in `fuzz/`, which are compiled with `cfg(fuzzing)`: each reads arbitrary bytes the way
//! the library reads those of a peer or a user, and panics when what must hold does not.

pub use crate::{
    channel::fuzz::handshake, config::fuzz::config, control::fuzz::messages, engine::fuzz::stream,
    link::tcp::fuzz::frame, recorder::fuzz::flight,
};

/// Bytes that steer a target, 0 when they are used up.
pub(crate) struct Dice<'a>(pub(crate) &'a [u8]);

impl Dice<'_> {
    pub(crate) fn roll(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }
}
