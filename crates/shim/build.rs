//! Keeps `libgcc_s.so` out of every program that is preloaded.
//!
//! Rust's standard library asks for `-lgcc_s`. Loading that object costs each process that starts
//! under Adit about as much as everything else the library does, and it is needed for nothing: we
//! never unwind. So the name is answered here by a linker script that means its static twin.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script runs at build time only"
)]

use std::path::Path;
use std::{env, fs, process};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(directory) = env::var_os("OUT_DIR") else {
        process::exit(1)
    };
    let script = Path::new(&directory).join("libgcc_s.so");
    if fs::write(&script, "INPUT(-l:libgcc_eh.a)\n").is_err() {
        println!("cargo:error=cannot write the linker script");
        process::exit(1);
    }
    println!(
        "cargo:rustc-link-search=native={}",
        Path::new(&directory).display()
    );
}
