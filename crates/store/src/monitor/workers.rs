//! Threads for what takes long, so that the main thread always answers and never lets an opener wait
//! for another file.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use crate::registry::sys::Fd;

/// Threads, and what they report when they are done.
pub(super) struct Workers<T> {
    wake: Arc<Fd>,
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T: Send + 'static> Workers<T> {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (sender, receiver) = channel();
        Ok(Self {
            wake: Arc::new(Fd::new(eventfd(0, flags)?)),
            sender,
            receiver,
        })
    }

    /// Readable when something is reported.
    pub(super) fn wake(&self) -> &Fd {
        &self.wake
    }

    /// Runs `work` in a thread of its own; `false` when the kernel gives none.
    pub(super) fn start(&self, work: impl FnOnce() -> T + Send + 'static) -> bool {
        let (wake, sender) = (Arc::clone(&self.wake), self.sender.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            // The main thread is there as long as the process is.
            let _ = sender.send(work());
            let _ = rustix::io::write(wake.as_fd(), &1u64.to_ne_bytes());
        });
        thread.is_ok()
    }

    /// What was reported since the last time.
    pub(super) fn reports(&self) -> Vec<T> {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.wake.as_fd(), &mut count);
        self.receiver.try_iter().collect()
    }
}
