//! One thread does what several want to do under the same lock.
//!
//! A lock that is handed from core to core costs more than what is done under it: with it travel the
//! lines of all that it guards. So a thread that finds somebody inside sits down and leaves its request;
//! whoever is inside serves all who sit before it leaves. Nobody depends on that: who sits goes inside
//! itself as soon as it can.
//!
//! Requests and answers are words, and nothing here knows what they mean; the atomics come from the
//! parent module, so that a checker can put its own in their place.

use super::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, SEATS, looks_free, pause};

/// Words of a request, and of an answer.
pub(super) const WORDS: usize = 4;

/// A request or an answer.
pub(super) type Words = [u64; WORDS];

/// Nobody sits here.
const FREE: u32 = 0;
/// Somebody is writing a request, or reading the answer.
const TAKEN: u32 = 1;
/// The request is there.
const ASKED: u32 = 2;
/// The answer is there.
const SERVED: u32 = 3;

/// One line, so that two who sit do not meet.
#[repr(align(64))]
struct Seat {
    state: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Seat {
    fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn take(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
            && self
                .state
                .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Leaves words behind: whoever sees the state sees them.
    fn put(&self, words: Words, state: u32) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.state.store(state, Ordering::Release);
    }

    fn get(&self, state: u32) -> Option<Words> {
        let there = self.state.load(Ordering::Acquire) == state;
        there.then(|| std::array::from_fn(|nth| self.words[nth].load(Ordering::Relaxed)))
    }
}

/// See the module.
pub(super) struct Board {
    inside: AtomicBool,
    /// Somebody may sit who was not served: whoever is inside need not look at every seat before it leaves. May be wrong
    /// for a moment, as nobody who sits depends on it.
    asked: AtomicBool,
    seats: [Seat; SEATS],
}

/// Somebody is inside, until this is dropped.
struct Inside<'a>(&'a Board);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

impl Board {
    pub(super) fn new() -> Self {
        Self {
            inside: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            seats: std::array::from_fn(|_| Seat::new()),
        }
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let free = looks_free(&self.inside) && !self.inside.swap(true, Ordering::Acquire);
        free.then(|| Inside(self))
    }

    /// Has a request served, by this thread or by another. `begin` opens a round of serving, which ends
    /// when what it gave is dropped; `sit` is called before somebody else may see the request.
    pub(super) fn ask<R>(
        &self,
        request: Words,
        sit: impl FnOnce(),
        begin: impl Fn() -> R,
        serve: impl Fn(&mut R, &Words) -> Words,
    ) -> Words {
        let mut tries = 0;
        let seat = loop {
            if let Some(_inside) = self.enter() {
                let mut round = begin();
                let answer = serve(&mut round, &request);
                if self.asked.load(Ordering::Relaxed) {
                    self.serve_all(&mut round, &serve);
                }
                return answer;
            }
            if let Some(seat) = self.seats.iter().find(|seat| seat.take()) {
                break seat;
            }
            pause(&mut tries);
        };
        sit();
        seat.put(request, ASKED);
        self.asked.store(true, Ordering::Release);
        loop {
            if let Some(answer) = seat.get(SERVED) {
                seat.state.store(FREE, Ordering::Release);
                return answer;
            }
            if let Some(_inside) = self.enter() {
                // Ours is among them, unless it was served before.
                self.serve_all(&mut begin(), &serve);
            } else {
                pause(&mut tries);
            }
        }
    }

    /// Whether somebody waits to be served.
    #[cfg(test)]
    pub(super) fn is_asked(&self) -> bool {
        self.seats.iter().any(|seat| seat.get(ASKED).is_some())
    }

    fn serve_all<R>(&self, round: &mut R, serve: &impl Fn(&mut R, &Words) -> Words) {
        // Before the look at the seats: who sits down after it says so again.
        self.asked.swap(false, Ordering::Acquire);
        for seat in &self.seats {
            if let Some(request) = seat.get(ASKED) {
                seat.put(serve(round, &request), SERVED);
            }
        }
    }
}
