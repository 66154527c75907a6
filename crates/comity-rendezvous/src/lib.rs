//! Meeting of a job's ranks: a store collects their announcements, and sends the table of all to everyone.
//!
//! ```text
//!   rank 0 without a launcher: starts the store, posts its address (and a key where none is held) on the launcher's exchange
//!   rank r: finds the store   by an address, a hostfile, or the exchange (`comity-settings`); where none of its addresses answers, through a
//!                             rank that has a way (listen)
//!           listens           at the addresses that its user names, else at those of its interfaces (listen)
//!           Join{rank, size, what it says of itself}  ------>  store
//!           <------  Waiting{how many are here}, every half second in which one came
//!           <------  Welcome{the meeting's number}, Entry of each rank: all have come
//!   rank r: makes its control connections (`comity-job`), then
//!           Ready  ------>  store, which forgets it
//! ```
//! | what can go wrong | what follows |
//! |---|---|
//! | a rank does not come within the limit, which starts anew with each that comes | all are told who is missing |
//! | a rank ends or gives up while others wait or connect | all are told (`Refused`) |
//! | two processes claim a rank, or one was started for another size | a young job ends on all ranks, an old one goes on |
//! | the port is taken | rank 0 asks whoever holds it |
//! | processes with another key knock | they are counted, and named with who is missing |
//! | the store's host dies | `StoreClient::lost` |
//!
//! **An internal crate: nothing here is a promise.** Use `comity`.

#![doc(hidden)]
#![forbid(unsafe_code)]

mod field;
mod listen;
mod locate;
mod store;
mod store_client;
mod wire;

// Rooms of the crates below, so that a path says the room and not the crate.
use comity_base::{
    ConfigError, Error, HostPort, JoinCause, JoinError, Key, MAX_SIZE, Result, error, sync, sys,
};
use comity_channel as channel;
use comity_settings::{exchange, settings};
use comity_transport::{self as transport, LinkKind};
use settings::{MeetingPoint, Protection};

// The macro `fields` names them.
pub use channel::{Malformed, Reader, Writer};
pub use field::{Field, MAX_LIST};
pub use listen::{OwnListeners, PassingOn, agree_on_secrecy, announce, facts};
pub use store::{NoStore, Store, StoreBind, StoreJob, StoreTeller};
pub use store_client::{StoreClient, Table};
pub use wire::{Facts, FromStore, Summons, ToStore, can_be_told, facts_of};
