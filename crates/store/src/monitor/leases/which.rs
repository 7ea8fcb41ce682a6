//! Which pool stages a file. One may have to be made, so a worker finds out.
//!
//! When many programs begin at once, one worker finds out for all that ask the same while he is at it: each would open the
//! pool for himself, and they and the programs would wait for each other's locks.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::{Leases, Report, errno_of};
use crate::monitor::client::Refused;
use crate::monitor::workers::Haste;
use crate::pools::{AskedPool, NoPool, Places};
use crate::registry::sys::Fd;
use crate::registry::wire::{self, Answer};

/// What has the same answer for all who ask: the mount that a file was opened through, and the pool that its user wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::monitor) struct Question {
    device: (u32, u32),
    mount: u64,
    path: Vec<u8>,
}

impl Question {
    fn of(file: &Fd, path: &[u8]) -> Option<Self> {
        let (flags, fields) = (AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID);
        let stat = rustix::fs::statx(file.as_fd(), c"", flags, fields).ok()?;
        let is_told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        is_told.then(|| Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            mount: stat.stx_mnt_id,
            path: path.to_owned(),
        })
    }
}

/// A program that asks.
pub(super) struct Asking {
    connection: Fd,
    file: Fd,
    path: Vec<u8>,
    /// Bytes of a pool that has to be made, or zero.
    size: u64,
}

impl Asking {
    fn find(&self, places: &Places) -> Result<PathBuf, NoPool> {
        let asked = AskedPool {
            path: (!self.path.is_empty()).then_some(&self.path[..]),
            size: (self.size != 0).then_some(self.size),
        };
        let found = places.pool_for(self.file.as_fd(), asked);
        found.map(|pool| pool.path().to_owned())
    }

    fn answer(self, found: Result<PathBuf, NoPool>) {
        drop(self.file);
        wire::answer(&self.connection, &answer_of(found));
    }
}

impl Leases {
    /// Says which pool stages a file, when a worker has found out.
    pub(in crate::monitor) fn pool_for(
        &mut self,
        connection: Fd,
        (path, size): (&[u8], u64),
        along: Option<Fd>,
    ) {
        let Some(file) = along else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        let question = Question::of(&file, path);
        let program = Asking {
            connection,
            file,
            path: path.to_owned(),
            size,
        };
        match question {
            Some(question) => match self.finding.get_mut(&question) {
                Some(others) => others.push(program),
                None => {
                    self.finding.insert(question.clone(), Vec::new());
                    self.find_pool(program, Some(question));
                }
            },
            None => self.find_pool(program, None),
        }
    }

    fn find_pool(&self, program: Asking, question: Option<Question>) {
        let places = self.places.clone();
        self.workers.start(Haste::Awaited, move || {
            let found = program.find(&places);
            let path = found.as_ref().ok().cloned();
            program.answer(found);
            question.map_or(Report::Nothing, |question| Report::PoolOf(question, path))
        });
    }

    /// Answers those who have asked the same meanwhile. Where there is none for the first, there may be one for others.
    pub(super) fn pool_was_found(&mut self, question: &Question, path: Option<&Path>) {
        for program in self.finding.remove(question).unwrap_or_default() {
            match path {
                Some(path) => program.answer(Ok(path.to_owned())),
                None => self.find_pool(program, None),
            }
        }
    }
}

fn answer_of(found: Result<PathBuf, NoPool>) -> Answer {
    let refused = match found {
        Ok(path) => {
            let mut answer = Answer::yes();
            answer.path.push(path.as_os_str().as_bytes());
            if answer.path.as_c_str().is_some() {
                return answer;
            }
            Refused::NoPlace(Errno::NAMETOOLONG)
        }
        Err(NoPool::Medium(_)) => Refused::Medium,
        Err(NoPool::NoMount) => Refused::NoPlace(Errno::NODEV),
        Err(NoPool::Place { errno, .. } | NoPool::Unlisted { errno, .. }) => {
            Refused::NoPlace(errno)
        }
        Err(NoPool::NotPrivate { .. }) => Refused::NoPlace(Errno::PERM),
        Err(NoPool::Copy { .. }) => Refused::NoPlace(Errno::NOTUNIQ),
        Err(NoPool::NoRoom { errno, .. }) => Refused::Pool(errno),
        Err(NoPool::Pool { error, .. }) => Refused::Pool(errno_of(&error)),
    };
    refused.answer()
}
