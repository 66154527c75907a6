//! Authenticated connections between two processes: the handshake, what seals what follows, dialling and accepting.
//!
//! ```text
//!   connector                                listener (Acceptor, by turns of its owner's thread)
//!   TCP or a Unix socket  ----------------->  accepted; a process of another user is dropped on a Unix socket
//!   Hello: version, job | encrypted: who, to whom, for what
//!                         ----------------->  another version, job or key: refused in words, or as far as it may be told
//!                                             for another, to whom the connector has no way: passed on as it is (Relay)
//!                                             the owner judges the hello: yes | no, in words | busy
//!                         <-----------------  Answer, encrypted
//!   Proof                 ----------------->  the connector lives, so the hello was no recording
//!   from here on: messages of a length, a body and a CRC32C (Conn), in the clear or sealed; or a link takes the socket over
//! ```
//! | what can go wrong | what follows |
//! |---|---|
//! | nobody listens, or nothing answers | `Miss`; tried again until its time is up |
//! | the listener is no Comity, or of another version, job or key | `Refusal`; final |
//! | the listener has no room | tried again |
//! | a stranger sends nothing | dropped after a second |
//! | a stranger sends nonsense | dropped at the first wrong byte |
//! | the process has no descriptors left | strangers make room, else who comes is turned away; the owner can ask |
//! | a message is damaged | `Malformed` |
//!
//! **An internal crate: nothing here is a promise.** Use `comity`.

#![doc(hidden)]

mod accept;
mod dial;
mod fields;
#[cfg(fuzzing)]
pub mod fuzz;
mod hello;
mod relay;
mod stream;

#[cfg(fuzzing)]
use comity_base::fuzz_input;
// Rooms of the crate below, so that a path says the room and not the crate.
use comity_base::{Error, Key, Result, sync, sys};

pub use accept::{Accepted, Acceptor, Listener, Unlink};
pub use dial::{
    DialLimits, Miss, TRY, Target, Winner, answering, begin_connect, dial, dial_all, dial_any, is_own, probe,
};
pub use fields::{MAX_TEXT, Malformed, Reader, Writer};
pub use hello::{Agreed, Channel, Denial, Hello, HelloVerdict, Initiator, Refusal, STORE, Secret};
pub use relay::Relay;
pub use stream::{Conn, Seal, SealError, Sealing, Seals, Stream, TAG, both_ends, frame};
