//! Files that programs have closed, and left to the monitor with what is staged of them: taken away at once, many beside
//! each other, with nobody waiting for each. Who must not go on before that is over asks for it: before a name changes, a
//! program is executed or ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Entry, Leases, peer_of};
use crate::monitor::client::Refused;
use crate::monitor::held::Held;
use crate::monitor::lease::Said;
use crate::registry::sys::Fd;
use crate::registry::wire::{self, Answer};

/// How long a file is left as it is that nobody asks for: many that are synced beside each other disturb their program less
/// often, and who looks without Adit sees them late.
const NOBODY_ASKS: Duration = Duration::from_millis(50);

/// How long a file is waited for that cannot be published: there is no room for it, say.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long anybody waits at all: longer than who asks.
const LONGEST: Duration = Duration::from_secs(15);

/// Somebody who waits, since when, and those of his files that were closed then.
pub(super) struct Waiting {
    connection: Fd,
    since: Instant,
    leaving: Vec<Weak<Held>>,
    files: BTreeMap<u64, Weak<Held>>,
}

/// A closed file that is in nobody's care any more, and whose descriptor somebody has who is about to close it.
pub(super) struct Leaving {
    owner: Option<i32>,
    held: Weak<Held>,
}

impl Leaving {
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let is_had = entry.held.is_closed() && Arc::strong_count(&entry.held) > 1;
        is_had.then(|| Self {
            owner: entry.owner.pid,
            held: Arc::downgrade(&entry.held),
        })
    }
}

impl Leases {
    /// A program closes a file, and leaves it. Not one that others may stage, which waits for nobody.
    pub(in crate::monitor) fn close(&mut self, connection: &Fd, number: u64, ino: u64) {
        let owner = peer_of(connection).unwrap_or(None);
        let its = |entry: &&Entry| {
            let held = &entry.held;
            entry.owner.pid == owner && held.id.1 == ino && held.is_leased() && !held.is_declared()
        };
        let its = self.held.get(&number).is_some_and(|entry| its(&entry));
        let answer = match self.held.get_mut(&number) {
            Some(entry) if its && !self.ending => {
                entry.held.close();
                entry.again_at = Some(Instant::now() + NOBODY_ASKS);
                entry.again_shares = false;
                // Before anybody relies on it: the next monitor goes on with that.
                self.list_again(number);
                Answer::yes()
            }
            _ => Refused::NotUnderstood.answer(),
        };
        wire::answer(connection, &answer);
    }

    /// Answers when everything is in the files that the asking program has closed, or cannot get there.
    pub(in crate::monitor) fn wait_for_closed(&mut self, connection: Fd) {
        let owner = peer_of(&connection).unwrap_or(None);
        if self.is_closed_and_postponed(owner) {
            wire::answer(&connection, &Refused::Pool(Errno::AGAIN).answer());
            return;
        }
        let leaving = self.leaving.iter().filter(|file| file.owner == owner);
        let leaving = leaving.map(|file| Weak::clone(&file.held)).collect();
        let mut files = BTreeMap::new();
        for (number, entry) in &mut self.held {
            if entry.held.is_closed() && entry.owner.pid == owner {
                // As an opener does.
                entry.awaited = true;
                entry.is_asked_for();
                files.insert(*number, Arc::downgrade(&entry.held));
            }
        }
        self.waiting.push(Waiting {
            connection,
            since: Instant::now(),
            files,
            leaving,
        });
        self.answer_those_waiting();
        self.take_back(Instant::now(), Said::default(), false);
    }

    pub(super) fn answer_those_waiting(&mut self) {
        self.leaving.retain(|file| file.held.strong_count() > 0);
        let held = &self.held;
        let is_awaited = |number: &u64, its: &mut Weak<Held>| {
            let failing = |entry: &Entry| {
                entry
                    .failing_since
                    .is_some_and(|at| at.elapsed() > PATIENCE)
            };
            match held.get(number) {
                Some(entry) => !failing(entry),
                // Who was publishing it when it was closed has its descriptor for a moment.
                None => its.strong_count() > 0,
            }
        };
        let is_over = |waiting: &mut Waiting| {
            waiting.files.retain(is_awaited);
            waiting.leaving.retain(|held| held.strong_count() > 0);
            let is_over = waiting.files.is_empty() && waiting.leaving.is_empty();
            is_over || waiting.since.elapsed() > LONGEST
        };
        for waiting in self.waiting.extract_if(.., is_over) {
            wire::answer(&waiting.connection, &Answer::yes());
        }
    }
}
