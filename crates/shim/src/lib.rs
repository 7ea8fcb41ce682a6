//! `libadit.so`: the library that `adit run` preloads into unmodified programs.
//!
//! It translates; the engine (`adit-store`) decides. Every libc entry through which a program can
//! reach file data or an open file description is listed once, in [`table`]; everything else in
//! this crate is what those entries do. Where to read on:
//!
//! 1. [`table`]: the interposed names and the shape of each.
//! 2. [`fds`]: what one word per descriptor says (foreign, candidate, promoted).
//! 3. [`ofd`]: a promoted open file description, who owns its offset, and hand-over.
//! 4. [`data`]: the read and write families.
//! 5. [`writer`], [`stage`]: what is opened for writing, in the modes that stage; [`appends`]: in mode `posix`.
//! 6. [`descriptors`], [`process`], [`children`], [`vfork`], [`actions`], [`times`]: the calls that change what 2 and 3
//!    say; [`closed`]: what is staged of files that nobody has open any more.
//! 7. [`stat`], [`names`]: what a program sees of staged files, and what becomes of their names.
//! 8. [`stdio`]: libc's own streams, whose calls happen inside libc.
//! 9. [`handles`]: what a program finds of libc past the table.
//! 10. [`together`], [`capi`]: several files committed at one instant, and what programs call by name.
//!
//! Rules of the house (PROTOCOLS F): foreign calls tail-jump from assembly to libc's own function,
//! so there is no Rust frame that a cancelled thread would have to unwind; nothing here allocates,
//! prints, takes a lock that a signal handler could wait on, or panics; any doubt or fault is
//! answered by doing the call in the kernel.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod account;
mod actions;
mod alloc;
mod appends;
mod blocks;
mod capi;
mod children;
mod closed;
mod copies;
mod data;
mod declared;
mod descriptors;
mod elsewhere;
mod fds;
mod fresh;
mod handles;
mod init;
mod lock;
mod names;
mod numbers;
mod ofd;
mod pointers;
mod process;
mod real;
mod record_locks;
mod signal;
mod stack;
mod stage;
mod stat;
mod stdio;
mod strangers;
mod stubs;
mod sys;
mod table;
mod thread;
mod times;
mod together;
mod vfork;
mod writer;
