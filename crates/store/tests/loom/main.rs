//! The lock-free parts of the staged engine in every order of steps that the memory model allows, within
//! bounds: the same source files as in the library, with loom's atomics in the place of the processor's.
//! Each model also runs with atomics that have forgotten their orderings, and has to fail then.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::duplicate_mod
)]

mod forgetful;
mod sound;

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    // Who waits looks again and again.
    builder.max_branches = 20_000;

    builder.check(model);
}

#[test]
fn who_asks_is_served_once_and_alone() {
    bounded(sound::asking);
}

#[test]
#[should_panic(expected = "not one after the other")]
fn a_board_without_orderings() {
    bounded(forgetful::asking);
}

#[test]
fn a_reader_never_keeps_bytes_that_were_used_again() {
    bounded(sound::reading);
}

#[test]
#[should_panic(expected = "torn")]
fn an_epoch_without_orderings() {
    bounded(forgetful::reading);
}

#[test]
#[should_panic(expected = "torn")]
fn an_epoch_that_moves_too_late() {
    bounded(sound::reading_while_the_epoch_is_late);
}

#[test]
fn a_pinned_reader_is_left_in_peace() {
    bounded(sound::pinned);
}

/// Lets the others go on. Who has looked in vain so often is in no new situation: orders of steps in which
/// it looks still more often are not tried.
fn pause(tries: &mut u32) {
    const ENOUGH: u32 = 2;
    *tries += 1;
    if *tries > ENOUGH {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}
