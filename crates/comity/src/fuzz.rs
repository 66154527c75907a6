//! Entries of the fuzz targets in `fuzz/`, which are compiled with `cfg(fuzzing)`: each reads arbitrary bytes the way
//! the library reads those of a peer or a user, and panics when what must hold does not.

pub use crate::{
    channel::fuzz::handshake, control::fuzz::messages, engine::fuzz::stream, recorder::fuzz::flight,
    settings::fuzz::config, transport::frame,
};
