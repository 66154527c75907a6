//! Counts the instructions of small calls, so that a slower path shows at once, also on a busy machine.
//!
//! ```text
//!   cases.rs    the jobs: Rust, C, NumPy, torch; 8 bytes on one rank and on two
//!   tracer.rs   single steps between two markers
//!   limits.rs   what each case may take
//! ```
//!
//! Code as the gate has built it is counted, unoptimised but for the loops of reductions: the numbers are larger than a user's.

#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod tracer;

#[cfg(target_os = "linux")]
pub(super) use cases::run;

#[cfg(not(target_os = "linux"))]
pub(super) fn run(_: &super::scope::Scope) -> super::Outcome {
    Ok(super::Done::NotRun("single steps are known for Linux only".into()))
}
