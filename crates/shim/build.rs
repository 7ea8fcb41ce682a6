//! Keeps small what each process that starts under Adit pays: the pages it touches, the areas the
//! kernel maps, copies and unmaps for it, and the names the dynamic linker looks up.
//!
//! **No `libgcc_s.so`.** Rust's standard library asks for `-lgcc_s`. Loading that object would cost
//! about as much as everything else the library does, and it is needed for nothing: we never unwind.
//! So the name is answered here by a linker script that means its static twin.
//!
//! **Two segments.** Constants and code are one segment, as they were in every library before linkers
//! began to separate them. All that is written is the other one, without a part that is made read-only
//! after relocation: the pointers worth guarding are the slots of libc's functions, which are written
//! on first use and could not be in it.
//!
//! **One of it.** By its name (`-soname`) the dynamic linker knows that what is preloaded is what a program is linked with,
//! though that may be another copy: two would each believe to have the offsets of the same descriptions.
//!
//! **Names inside the library** are bound by the linker (`-Bsymbolic`).
//!
//! **Order** ([`layout.ld`](layout.ld)): what every process touches lies together.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script runs at build time only"
)]

use std::path::Path;
use std::{env, fs, process};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=layout.ld");
    let (Some(directory), Some(here)) = (env::var_os("OUT_DIR"), env::var_os("CARGO_MANIFEST_DIR"))
    else {
        process::exit(1)
    };
    let layout = Path::new(&here).join("layout.ld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", layout.display());
    for flag in [
        "--no-rosegment",
        "-z,norelro",
        "-Bsymbolic",
        "-soname,libadit.so",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{flag}");
    }
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
