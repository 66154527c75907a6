//! `cargo xtask test`: every check of the project, step by step.
