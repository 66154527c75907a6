//! Comity for C: what `include/comity.h` declares.
//!
//! ```text
//!   C program ── comity_all_reduce(group, ...) ──> errors     catches panics, makes a status of a Result
//!                                                  handles    finds the group behind a handle, or says that there is none
//!                                                  raw        makes views of the caller's memory
//!                                                  job        one call, checked, and the method of Group that makes it
//! ```
//! cbindgen makes the header of this crate's public functions and types, whose comments are therefore for C programmers. The test
//! `header` compares. `abi.txt` has every symbol and layout; the test `abi` compares that. Names are C's own.
//!
//! SAFETY of each `#[unsafe(no_mangle)]`: a name that begins with `comity_` is this library's own.
#![allow(non_camel_case_types, reason = "the names of C's types")]
#![allow(unreachable_pub, reason = "nobody imports this crate; what is public is in the header")]
#![allow(unsafe_code, reason = "a C interface: names for its functions, and memory that C vouches for")]

#[cfg(test)]
mod abi;
mod config;
mod errors;
mod group;
mod handles;
#[cfg(test)]
mod header;
mod job;
mod ops;
mod raw;
mod request;
mod types;
