//! The page for users of other libraries, whose code is run as doctests; `tests` compares models.

/// The page itself.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust-libraries.md")]
struct Page;
