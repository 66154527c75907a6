//! Names the library and its symbol versions as rdma-core does, so that programs linked against the real one take it.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=versions.map");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/versions.map");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    }
}
