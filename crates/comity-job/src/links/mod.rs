//! The making of a group's links: who reaches whom over what.
//!
//! ```text
//!   a group is open when each member has said so to each other (Entered); one that follows another, when each has said so to the
//!   member that proposes it, and that one has said that it follows
//!   for each pair of its members that a call needs (or each, with COMITY_CONNECT=all), of ranks low < high:
//!   either: wants a link            low asks high to connect (Connect), over their control connection
//!   high: connects          over the first transport that both have and that leads there (Channel::Link{transport, index, of})
//!   low:  its control thread accepts, keeps what comes for groups not opened yet, and has the group's maker look;
//!         the transport makes the link of the connections
//! ```
//! Four objects stand between a call that lacks a link and the connection:
//!
//! ```text
//!   World::want   the engine names the ranks that its call lacks links to
//!     Makers      a thread for each group that has links to make: started, woken, ended         maker.rs
//!     Linking     each member of it: connect to a lower rank, ask a higher one, take what came  mesh/making.rs
//!     Path        one member over one kind of link: dials and waits for the transport           mesh/making.rs
//!     Ways        addresses of that rank, else of one that passes on; dials them side by side    way.rs
//!   GroupStatus   the made link, where the engine takes it
//! ```
//!
//! | what can go wrong | what follows |
//! |---|---|
//! | there is no way to a member that both allow | an error that says which were tried |
//! | a member does not come within the limit, leaves before the group stands, or lacks descriptors | an error that names it |
//! | a member dies | its control connection says so; that explains a broken link, so it is waited for up to a quarter of a second |
//! | the group that is being split fails meanwhile | its failure |
//!
//! Whoever finds it tells the other members.
//!
//! Two worlds make links: `Endpoint`, of processes that have met, and `LocalWorld`, of threads.

mod elastic;
mod endpoint;
mod local;
mod maker;
mod mesh;
mod way;

pub use elastic::join_running;
pub use endpoint::Endpoint;
pub use local::LocalWorld;
