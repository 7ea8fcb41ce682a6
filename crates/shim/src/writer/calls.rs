//! What a program does with a description: reads, writes, its length, syncs. The engine does it where the file is
//! staged, the kernel where it is not, and a file that could not be staged any more has had nothing done to it.

use super::buffers::{FARTHEST, read_into, with_parts, write_from};
use super::staging::Unstaged;
use super::{Answer, Buffers, Doubt, State, UNWRITTEN, Writer};
use crate::appends::Trial;
use crate::ofd::{Ofd, Offset};
use crate::signal::engine;
use crate::stage::Staged;
use crate::stat::Logical;
use crate::{copies, data, declared, stack, stage, sys, together};
use adit_store::staged::{AppendsOnly, Error, Mode, Place, Where};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use rustix::io::Errno;

impl Writer {
    /// A read, at a position of its own or at the description's.
    pub(crate) fn read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> sys::Result {
        // A copy from a mapping takes little room, and reads again where another thread has moved the offset.
        if !self.declared
            && self.mapped.load(Ordering::Relaxed)
            && let Some(read) = self.mapped_read(ofd, fd, into, at)
        {
            self.account().mapped(fd, read);
            return Ok(read);
        }
        stack::with_room(|| {
            let _turn = at.is_none().then(|| ofd.turn());
            self.read_somehow(ofd, fd, into, at)
        })
    }

    fn read_somehow(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> sys::Result {
        if self.declared {
            self.be_told(ofd);
            // Without a mapping whoever is asked below looks for others himself.
            if self.mapped.load(Ordering::Relaxed)
                && let Some(read) = self.joined_read(ofd, fd, into, at)
            {
                self.account().mapped(fd, read);
                return Ok(read);
            }
        }
        if self.readable && !into.is_empty() {
            match self.ask(ofd, fd, |staged| self.staged_read(ofd, staged, into, at)) {
                Answer::Done(read) => {
                    self.account().served(fd, |slot| slot.served_read(read));
                    return Ok(read);
                }
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged => {}
            }
        }
        if self.trial.is_some() || self.loan.is_out() {
            let read = || into.kernel_read(fd, at.unwrap_or(-1));
            return match self.with_kernels_offset(ofd, read) {
                Some(read) => read,
                None if self.readable && !into.is_empty() => self.read_somehow(ofd, fd, into, at),
                // It moves neither bytes nor the offset.
                None => read(),
            };
        }
        match at {
            Some(at) => self.paid_read(ofd, fd, into, at as u64),
            None => data::sequential_read(
                ofd,
                |at| self.paid_read(ofd, fd, into, at),
                || self.read_at_kernels_offset(ofd, fd, into),
            ),
        }
    }

    /// A read of a declared file from its mapping, unless others have it staged.
    fn joined_read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> Option<usize> {
        let _inside = engine::enter();
        self.join(ofd, fd);
        let mapped = self.mapped.load(Ordering::Relaxed);
        mapped.then(|| self.mapped_read(ofd, fd, into, at))?
    }

    /// A read by somebody who has found the offset to be the kernel's. One that was lent may be back.
    fn read_at_kernels_offset(&self, ofd: &Ofd, fd: i32, into: Buffers) -> sys::Result {
        let read = || into.kernel_read(fd, -1);
        if !self.loan.has_ever_been() {
            return read();
        }
        let read = self.with_kernels_offset(ofd, read);
        read.unwrap_or_else(|| self.read_somehow(ofd, fd, into, None))
    }

    /// A read of a file of which nothing is staged, from its mapping; `None` where the kernel is asked.
    fn mapped_read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> Option<usize> {
        let Buffers::One(into) = into else {
            return None;
        };
        if into.iov_len == 0 || into.iov_len > data::LONGEST {
            return None;
        }
        let _inside = engine::enter();
        let state = self.look();
        let State::Fresh(fresh) = &*state else {
            return None;
        };
        if let Some(at) = at {
            return fresh.read(fd, at as u64, into);
        }
        loop {
            let Offset::At(at) = ofd.offset() else {
                return None;
            };
            let read = fresh.read(fd, at, into)?;
            if ofd.advance(at, at + read as u64) {
                return Some(read);
            }
        }
    }

    /// The kernel's read, which counts towards a mapping as long as nothing is written.
    fn paid_read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: u64) -> sys::Result {
        let read = into.kernel_read(fd, at as i64)?;
        let _inside = engine::enter();
        if self.declared && self.is_staged_by_others(fd) {
            // Since the call began, maybe, and a part of it is in the file.
            let again = |staged: &Staged| self.staged_read(ofd, staged, into, Some(at as i64));
            match self.ask(ofd, fd, again) {
                Answer::Done(read) => return Ok(read),
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged => {}
            }
        }
        if self.readable
            && let State::Fresh(fresh) = &*self.look()
        {
            self.account().not_yet(fd);
            fresh.pay(fd, at, read as u64);
            self.mapped.store(fresh.file().is_some(), Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Before some file may get holes: a mapping must not fill them.
    pub(crate) fn holes_somewhere(&self) {
        let _inside = engine::enter();
        if let State::Fresh(fresh) = &*self.look()
            && let Some(file) = fresh.file()
        {
            file.holes_from(0);
        }
    }

    fn staged_read(
        &self,
        ofd: &Ofd,
        staged: &Staged,
        into: Buffers,
        at: Option<i64>,
    ) -> Result<usize, Doubt> {
        with_parts(&into, <*mut c_void>::cast, |parts, _| {
            if let Some(at) = at {
                return read_into(staged, at as u64, parts);
            }
            loop {
                let Offset::At(at) = ofd.offset() else {
                    return Err(Doubt::Unserved);
                };
                let read = read_into(staged, at, parts)?;
                if ofd.advance(at, at + read as u64) {
                    return Ok(read);
                }
            }
        })
    }

    /// A write, at a position of its own or at the description's, which moves when the bytes are there: who has the turn
    /// next begins behind them, whoever has the file by then, and behind those that were written where not all were.
    ///
    /// Where children have the offset, too, one may take it to the kernel at any time: it is moved before, and what the
    /// write has claimed stays its own, whoever does it in the end.
    pub(crate) fn write(&self, ofd: &Ofd, fd: i32, from: Buffers, at: Option<i64>) -> sys::Result {
        stack::with_room(|| self.write_whole(ofd, fd, from, at))
    }

    fn write_whole(&self, ofd: &Ofd, fd: i32, from: Buffers, at: Option<i64>) -> sys::Result {
        // Appends are in order by themselves.
        let _turn = (at.is_none() && !self.appends).then(|| ofd.turn());
        // Nor puts a handler another file behind the number, when a place in this one is claimed.
        let _inside = ofd.common().map(|_| engine::enter());
        let mut claimed = None;
        let result = self.write_somehow(ofd, fd, from, at, &mut claimed);
        if let Some((start, end)) = claimed {
            let reached = start + *result.as_ref().unwrap_or(&0) as u64;
            if reached < end {
                self.give_back(ofd, fd, end, reached);
            }
        }
        result
    }

    /// Moves the offset back from where a write had moved it to how far it came, unless someone moved it
    /// meanwhile. Who forks takes it to the kernel with all that is not done.
    fn give_back(&self, ofd: &Ofd, fd: i32, from: u64, to: u64) {
        let seek = || ofd.give_back_in_kernel(fd, from, to);
        while !ofd.advance(from, to) && self.with_kernels_offset(ofd, seek).is_none() {
            if !matches!(ofd.offset(), Offset::At(at) if at == from) {
                return;
            }
        }
    }

    fn write_somehow(
        &self,
        ofd: &Ofd,
        fd: i32,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> sys::Result {
        if from.is_empty() || !self.writable {
            return self.write_in_kernel(fd, from, position(at, *claimed));
        }
        loop {
            let write = |staged: &Staged| self.staged_write(ofd, fd, staged, from, at, claimed);
            match self.ask(ofd, fd, write) {
                Answer::Done(written) => {
                    self.account().served(fd, |slot| slot.served_write(written));
                    return Ok(written);
                }
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged => {}
            }
            if let Some(written) = self.write_unstaged(ofd, fd, from, at, claimed) {
                return written;
            }
        }
    }

    /// A write to a file that is not staged; `None` when it is by now, or is to be asked again.
    #[inline(never)]
    fn write_unstaged(
        &self,
        ofd: &Ofd,
        fd: i32,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> Option<sys::Result> {
        if let Some(trial) = &self.trial {
            let at = position(at, *claimed);
            let write = || {
                self.be_barred(fd)?;
                from.kernel_write(fd, at, false)
            };
            let written = self.with_kernels_offset(ofd, write)?;
            self.judge(ofd, fd, trial, *written.as_ref().unwrap_or(&0) as u64);
            return Some(written);
        }
        if self.loan.is_out() {
            let at = position(at, *claimed);
            return self.while_lent(ofd, fd, || self.write_in_kernel(fd, from, at));
        }
        // A file that has come into a declared directory others stage by now, who would not know of it.
        if self.blocks.are_left()
            && !declared::is_shareable(fd)
            && let Some(written) = self.write_block(ofd, fd, from, at, claimed)
        {
            return Some(written);
        }
        match self.stage_now(ofd, fd) {
            Ok(()) | Err(Unstaged::Lent) => None,
            Err(Unstaged::Failed(errno)) => Some(Err(errno)),
            Err(Unstaged::Refused(refusal)) if self.must_stage() => Some(Err(refusal)),
            Err(Unstaged::Refused(_)) => {
                Some(self.write_in_kernel(fd, from, position(at, *claimed)))
            }
        }
    }

    /// A write that the kernel does as well as the mode promises, before the file is staged; `None` when it is another.
    fn write_block(
        &self,
        ofd: &Ofd,
        fd: i32,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> Option<sys::Result> {
        let Buffers::One(one) = from else {
            return None;
        };
        let _inside = engine::enter();
        let state = self.look();
        let State::Fresh(fresh) = &*state else {
            return None;
        };
        let is_shared = self.loan.is_out() || ofd.is_wanted() || fresh.file().is_some();
        if is_shared || self.must_stage() {
            return None;
        }
        let len = one.iov_len as u64;
        let write = |start: i64| {
            // Others may write to it, too, and an `fsync` is about their bytes as well.
            self.named.store(stage::UNNAMED, Ordering::Relaxed);
            match from.kernel_write(fd, start, self.durable()) {
                Err(libc::EOPNOTSUPP) => None,
                done => {
                    self.account().not_yet(fd);
                    Some(done)
                }
            }
        };
        if !self.appends {
            let start = begin(ofd, at, len, claimed).ok()?;
            let _alone = self.blocks.take(fd, start, len)?;
            return Some(write(start as i64)?.map(|written| moved(ofd, at, start, written)));
        }
        let Offset::At(here) = ofd.offset() else {
            return None;
        };
        // Where the end is the kernel finds out, as others may write there just now: and moves its offset there.
        let _alone = self.blocks.take_anywhere()?;
        let written = write(at.unwrap_or(-1))?;
        if let (Ok(_), None) = (written, at)
            && let Ok(end) = sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize)
        {
            ofd.follow(here, end as u64);
        }
        Some(written)
    }

    /// The kernel's write, with what the mode adds to its promise; at its own offset where `at` is -1.
    fn write_in_kernel(&self, fd: i32, from: Buffers, at: i64) -> sys::Result {
        self.be_barred(fd)?;
        self.look_for_a_name(fd);
        self.account().passed(fd, self.mode);
        match from.kernel_write(fd, at, self.durable()) {
            // Files of the kernel's own (`/proc`) know no such promise.
            Err(libc::EOPNOTSUPP) => from.kernel_write(fd, at, false),
            result => result,
        }
    }

    fn staged_write(
        &self,
        ofd: &Ofd,
        fd: i32,
        staged: &Staged,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> Result<usize, Doubt> {
        if staged.watches() {
            return Err(Doubt::Unserved);
        }
        let constant = |at: *mut c_void| at.cast_const().cast();
        with_parts(&from, constant, |parts, len| {
            let Offset::At(here) = ofd.offset() else {
                return Err(Doubt::Unserved);
            };
            if self.appends {
                // It matters to nothing but this where the kernel is told to write.
                let begins = at.map_or(here, |at| at as u64);
                if begins.saturating_add(len as u64) > i64::MAX as u64 {
                    return Err(Error::Base(rustix::io::Errno::INVAL).into());
                }
                let start = write_from(staged, Place::End, parts, len)?;
                if at.is_none() {
                    ofd.follow(here, start + len as u64);
                }
                return Ok(len);
            }
            let start = begin(ofd, at, len as u64, claimed)?;
            self.looks_for_a_log(staged, start);
            let written = match staged
                .only()
                .map(|only| (only, only.place(start, len as u64)))
            {
                Some((_, Where::Divided)) => return Err(Doubt::Whole),
                Some((only, Where::InPlace)) => in_place(staged, only, fd, from, start)?,
                Some((_, Where::Staged)) | None => {
                    write_from(staged, Place::At(start), parts, len)?;
                    len
                }
            };
            if self.mode == Mode::Atomic {
                self.grown.store(start + written as u64, Ordering::Relaxed);
            }
            Ok(moved(ofd, at, start, written))
        })
    }

    /// Before a write: of a program that only appends, with `O_APPEND` or without, any part that is in order is as good as
    /// all of it, as long as it syncs nothing.
    fn looks_for_a_log(&self, staged: &Staged, start: u64) {
        if self.mode != Mode::Atomic || self.transacts.load(Ordering::Relaxed) {
            return;
        }
        let is_the_end = match self.grown.load(Ordering::Relaxed) {
            UNWRITTEN => staged.file().size().is_ok_and(|size| size == start),
            grown => grown == start,
        };
        if !is_the_end {
            self.transacts.store(true, Ordering::Relaxed);
        }
    }

    /// The size, if the kernel does not know it. Who could not ask for that does not know it either.
    pub(crate) fn size(&self, ofd: &Ofd, fd: i32) -> Result<Option<u64>, i32> {
        match stack::with_room(|| self.ask(ofd, fd, |staged| Ok(staged.file().size()?))) {
            Answer::Done(size) => Ok(Some(size)),
            Answer::Failed(errno) => Err(errno),
            Answer::NotStaged => Ok(None),
        }
    }

    /// `ftruncate`. It stages the file as a write does: in the kernel the bytes beyond the new end are
    /// zeros on the medium before the journal has the size, and neither waits for the next `fsync`.
    pub(crate) fn truncate(&self, ofd: &Ofd, fd: i32, size: i64) -> sys::Result {
        self.transacts.store(true, Ordering::Relaxed);
        let in_kernel = || sys::ftruncate(fd as usize, size as usize);
        let in_pool = |staged: &Staged, size| staged.file().truncate(size);
        stack::with_room(|| self.resize(ofd, fd, size, in_pool, in_kernel))
    }

    /// `fallocate`. Blocks are nothing that anybody reads: the kernel reserves them, and the file is made longer as
    /// `ftruncate` does. What changes bytes is the kernel's alone.
    pub(crate) fn allocate(
        &self,
        ofd: &Ofd,
        fd: i32,
        mode: i32,
        offset: i64,
        len: i64,
    ) -> sys::Result {
        stack::with_room(|| self.allocate_here(ofd, fd, mode, offset, len))
    }

    fn allocate_here(&self, ofd: &Ofd, fd: i32, mode: i32, offset: i64, len: i64) -> sys::Result {
        let allocate = |mode: i32| {
            let [offset, len] = [offset, len].map(|word| word as usize);
            sys::fallocate(fd as usize, mode as usize, offset, len)
        };
        if !self.writable {
            return allocate(mode);
        }
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return self.change_in_kernel(ofd, fd, || allocate(mode));
        }
        if self.trial.is_some() {
            return self.resize_whole(ofd, fd, || allocate(mode));
        }
        let done = allocate(libc::FALLOC_FL_KEEP_SIZE)?;
        if mode != 0 {
            // The kernel has set the file's time, which is not set back to that of an older write.
            self.ask(ofd, fd, |staged| Ok(staged.file().was_written()?));
            self.look_for_a_name(fd);
            return if self.durable() {
                sys::fsync(fd as usize)
            } else {
                Ok(done)
            };
        }
        // The kernel has seen that they are a range.
        let extend = |staged: &Staged, size| staged.file().extend(size);
        self.resize(ofd, fd, offset.saturating_add(len), extend, || allocate(0))
    }

    /// Lets the kernel change bytes of the file. Afterwards it may be staged again.
    fn change_in_kernel(&self, ofd: &Ofd, fd: i32, call: impl Fn() -> sys::Result) -> sys::Result {
        if self.refuses_copies(fd) {
            return Err(libc::EOPNOTSUPP);
        }
        self.lend_for_a_call(ofd, fd)?;
        let barred = self.be_barred(fd);
        let done = barred.and_then(|()| call());
        self.call_has_returned(copies::may_have_written(done.map(drop)));
        if self.durable() {
            sys::fsync(fd as usize)?;
        }
        done
    }

    /// Gives the file another size, in the pool or by `in_kernel`.
    fn resize(
        &self,
        ofd: &Ofd,
        fd: i32,
        size: i64,
        in_pool: impl Fn(&Staged, u64) -> Result<(), Error>,
        in_kernel: impl Fn() -> sys::Result,
    ) -> sys::Result {
        // What the kernel refuses without a look at the file changes nothing.
        if !self.writable || size < 0 {
            return in_kernel();
        }
        if self.trial.is_some() {
            return self.resize_whole(ofd, fd, in_kernel);
        }
        let served = u64::try_from(size).ok().filter(|&size| size <= FARTHEST);
        let resize = || {
            self.be_barred(fd)?;
            let done = in_kernel()?;
            self.look_for_a_name(fd);
            if self.durable() {
                sys::fsync(fd as usize)?;
            }
            Ok(done)
        };
        loop {
            let staged = self.ask(ofd, fd, |staged| {
                let served = served.filter(|_| !staged.watches());
                Ok(in_pool(staged, served.ok_or(Doubt::Unserved)?)?)
            });
            match staged {
                Answer::Done(()) => return Ok(0),
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged if served.is_none() => break,
                Answer::NotStaged if self.loan.is_out() => {
                    if let Some(done) = self.while_lent(ofd, fd, resize) {
                        return done;
                    }
                }
                Answer::NotStaged => match self.stage_now(ofd, fd) {
                    Ok(()) | Err(Unstaged::Lent) => {}
                    Err(Unstaged::Failed(errno)) => return Err(errno),
                    Err(Unstaged::Refused(refusal)) if self.must_stage() => return Err(refusal),
                    Err(Unstaged::Refused(_)) => break,
                },
            }
        }
        resize()
    }

    /// The same where that is not staged.
    fn resize_whole(&self, ofd: &Ofd, fd: i32, in_kernel: impl Fn() -> sys::Result) -> sys::Result {
        loop {
            if let Answer::Failed(errno) = self.ask(ofd, fd, |_| Err::<(), _>(Doubt::Whole)) {
                return Err(errno);
            }
            self.be_barred(fd)?;
            if let Some(done) = self.with_kernels_offset(ofd, &in_kernel) {
                return done;
            }
        }
    }

    /// Size and time of last change, if the staged file is the one with this identity.
    pub(crate) fn logical(&self, ofd: &Ofd, fd: i32, device: u64, inode: u64) -> Option<Logical> {
        if self.is_the_parents() && self.identity() != (device, inode) {
            return None;
        }
        let look = |staged: &Staged| {
            if !staged.is(device, inode) {
                return Ok(None);
            }
            let modified = staged.file().last_write()?;
            Ok(Some(Logical {
                size: staged.file().size()?,
                modified: modified.map(|at| (at.tv_sec, at.tv_nsec)),
            }))
        };
        match stack::with_room(|| self.ask(ofd, fd, look)) {
            Answer::Done(logical) => logical,
            Answer::Failed(_) | Answer::NotStaged => None,
        }
    }

    /// Whether it is staged where to publish it waits for a device.
    pub(crate) fn waits_for_a_device(&self) -> bool {
        let _inside = engine::enter();
        matches!(&*self.look(), State::Staged(staged) if staged.waits_for_a_device())
    }

    /// Sets the file's times by `set` and leaves it staged; false where it has to be put down first.
    pub(crate) fn set_times(&self, fd: i32, set: impl Fn() -> Result<(), Errno>) -> bool {
        let _inside = engine::enter();
        match &*self.look() {
            State::Staged(staged) if staged.set_times(fd, set).is_ok() => {
                self.timed.store(true, Ordering::Relaxed);
                true
            }
            State::Staged(_) => false,
            State::Fresh(_) | State::Kernel | State::Parents => false,
        }
    }

    /// Whether it is staged, and nobody else has ended that without being noticed here.
    fn is_staged(&self) -> bool {
        let _inside = engine::enter();
        matches!(&*self.look(), State::Staged(staged) if !staged.file().is_taken())
    }

    /// `fsync`; `None` when it is the kernel's.
    pub(crate) fn sync(&self, ofd: &Ofd, fd: i32) -> Option<sys::Result> {
        stack::with_room(|| self.sync_here(ofd, fd))
    }

    /// Commits the file if it is staged, with the others if all are committed together; and nothing if it is not.
    pub(crate) fn sync_if_staged(&self, ofd: &Ofd, fd: i32) {
        if self.is_staged() {
            // What cannot be committed now is the next `fsync`'s to tell.
            let _ = self.sync(ofd, fd);
        }
    }

    /// Before a commit of several files, of which this one is named: what else its `fsync` would do first.
    pub(crate) fn is_about_to_sync(&self, ofd: &Ofd, fd: i32) {
        self.transacts.store(true, Ordering::Relaxed);
        self.look_for_children(ofd, fd);
        self.join(ofd, fd);
    }

    /// Gives a file back whose times were set: the kernel's `fsync` makes them durable, of one that nobody publishes any
    /// more. `Ok(false)` where none were.
    pub(crate) fn settle_times(&self, ofd: &Ofd, fd: i32) -> Result<bool, i32> {
        let is_timed = self.timed.load(Ordering::Relaxed);
        if is_timed {
            self.put_down(ofd, fd)?;
            self.timed.store(false, Ordering::Relaxed);
        }
        Ok(is_timed)
    }

    fn sync_here(&self, ofd: &Ofd, fd: i32) -> Option<sys::Result> {
        self.bypassed.store(false, Ordering::Relaxed);
        self.transacts.store(true, Ordering::Relaxed);
        // The others, where all are committed together, still have to be.
        if let Err(errno) = self.settle_times(ofd, fd) {
            return Some(Err(errno));
        }
        match together::sync(ofd, fd) {
            // Others see it from here on; and what they have staged anew was not among it. Nor was what is in the kernel
            // of a file that is not staged, or was taken away, and that somebody else may have written.
            Some(Ok(_)) if self.declared || !self.is_staged() => {}
            Some(done) => return Some(done),
            None => {}
        }
        match self.ask(ofd, fd, |staged| Ok(staged.fsync()?)) {
            Answer::Done(()) => Some(Ok(0)),
            Answer::Failed(errno) => Some(Err(errno)),
            Answer::NotStaged => {
                self.trial.as_ref().map(Trial::synced);
                None
            }
        }
    }
}

/// Writes to the file itself what is not staged of it.
fn in_place(
    staged: &Staged,
    only: &AppendsOnly,
    fd: i32,
    from: Buffers,
    start: u64,
) -> Result<usize, Doubt> {
    let errno = |errno| Error::Base(rustix::io::Errno::from_raw_os_error(errno));
    let written = from.kernel_write(fd, start as i64, false).map_err(errno)?;
    only.wrote_in_place(staged.file());
    Ok(written)
}

/// Where the kernel does a write: where it is told, where the write has claimed its place, or at its own offset.
fn position(at: Option<i64>, claimed: Option<(u64, u64)>) -> i64 {
    at.or(claimed.map(|(start, _)| start as i64)).unwrap_or(-1)
}

/// Where a write of `len` bytes begins. The writer's state is held.
fn begin(
    ofd: &Ofd,
    at: Option<i64>,
    len: u64,
    claimed: &mut Option<(u64, u64)>,
) -> Result<u64, Doubt> {
    if let Some(at) = at {
        return u64::try_from(at).map_err(|_| Doubt::Unserved);
    }
    if let Some((start, _)) = *claimed {
        return Ok(start);
    }
    loop {
        let Offset::At(here) = ofd.offset() else {
            return Err(Doubt::Unserved);
        };
        let end = here.checked_add(len).filter(|&end| end <= FARTHEST);
        let end = end.ok_or(Doubt::Unserved)?;
        if ofd.common().is_none() {
            return Ok(here);
        }
        if ofd.advance(here, end) {
            return Ok(claimed.insert((here, end)).0);
        }
    }
}

/// Moves the description's offset behind so many bytes that were written at `start`, and says how many. Where it was moved
/// before, it is not there any more, and stays. The writer's state is held, so nobody hands it over meanwhile.
fn moved(ofd: &Ofd, at: Option<i64>, start: u64, written: usize) -> usize {
    if at.is_none() && ofd.common().is_none() {
        let _ = ofd.advance(start, start + written as u64);
    }
    written
}
