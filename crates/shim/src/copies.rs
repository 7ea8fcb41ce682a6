//! Copies that the kernel makes from one descriptor to another: `copy_file_range`, `sendfile`, `splice`, and the
//! requests of `ioctl` that share blocks, or give a descriptor away.
//!
//! The kernel reads and writes the files themselves, so both ends are published first. The description that is written
//! to is lent to the kernel for the call, as is one that is read at its own offset, and may be staged again at its next
//! write: `cp` asks for such a copy before it writes, and is often refused.
//!
//! Under `ADIT_REQUIRE` nothing may come into a file but through the pool. There the call is refused with an error of
//! the kernel's for files that it cannot copy between, and every program goes on with `read` and `write`.
//!
//! # Safety
//! Hooks are called from the stubs with the frame in which they keep the program's arguments. Pointers among these are
//! passed on to the kernel, or read through guarded copies.
#![allow(unsafe_code)]

use crate::ofd::{Ofd, Users};
use crate::writer::Writer;
use crate::{declared, descriptors, fds, pointers, sys};
use core::ffi::{c_int, c_long};

const FIOCLEX: u32 = libc::FIOCLEX as u32;
const FIONCLEX: u32 = libc::FIONCLEX as u32;
const TCGETS: u32 = libc::TCGETS as u32;
const TIOCGPGRP: u32 = libc::TIOCGPGRP as u32;
const TIOCGWINSZ: u32 = libc::TIOCGWINSZ as u32;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const EXT4_IOC_MOVE_EXT: u32 = 0xc028_660f;
const XFS_IOC_EXCHANGE_RANGE: u32 = 0x4028_5881;
const XFS_IOC_COMMIT_RANGE: u32 = 0x4058_5883;
/// Kind and number: the size of what it is about changes with the structure at its end.
const XFS_IOC_SWAPEXT: u32 = 0x586d;
const LOOP_SET_FD: u32 = 0x4c00;
const LOOP_CHANGE_FD: u32 = 0x4c06;
const LOOP_CONFIGURE: u32 = 0x4c0a;

/// A call under way, as its stub has it on the stack: the last that was pushed comes first.
#[repr(C)]
pub(crate) struct Call {
    /// Descriptions that are the kernel's until the call has returned: what is written to, and what is read.
    lent: [*const Ofd; 2],
    /// The descriptor that is written to, once its description is lent.
    to: usize,
    sixth: usize,
    fifth: usize,
    fourth: usize,
    third: usize,
    second: usize,
    first: usize,
}

/// What is to become of a call: made by the kernel, or not, with this answer; or its error.
type Fate = Result<Option<usize>, c_int>;

/// As hooks of the refusing shapes say it, for [`crate::numbers::answer`].
fn code(fate: Fate) -> c_int {
    match fate {
        Ok(None) => 0,
        Ok(Some(answer)) => -(answer as c_int) - 1,
        Err(errno) => errno,
    }
}

/// Before `copy_file_range(from, from_at, to, to_at, len, flags)`.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn before_range(call: *mut Call) -> c_int {
    // SAFETY: the stub's frame, which nobody else has.
    let call = unsafe { &mut *call };
    code(call.range())
}

/// Before `sendfile(to, from, from_at, len)`.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn before_send(call: *mut Call) -> c_int {
    // SAFETY: the stub's frame, which nobody else has.
    let call = unsafe { &mut *call };
    code(call.send())
}

/// Before `splice(from, from_at, to, to_at, len, flags)`.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn before_splice(call: *mut Call) -> c_int {
    // SAFETY: the stub's frame, which nobody else has.
    let call = unsafe { &mut *call };
    code(call.splice())
}

/// Before `ioctl(fd, request, argument)`.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn before_ioctl(call: *mut Call) -> c_int {
    // SAFETY: the stub's frame, which nobody else has.
    let call = unsafe { &mut *call };
    code(call.ioctl())
}

/// After the call, whose result the program gets unless the mode's promise was broken.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn after(call: *mut Call, result: i64) -> i64 {
    // SAFETY: the stub's frame, which nobody else has.
    let call = unsafe { &mut *call };
    // Of `ioctl` the upper half means nothing, and no call copies as much as would need it.
    let made = if result as c_int >= 0 {
        Ok(())
    } else {
        Err(sys::errno())
    };
    match call.end(made) {
        Ok(()) => result,
        Err(errno) => descriptors::minus_one(errno),
    }
}

/// The same for a call by its number; `None` if it is no copy.
pub(crate) fn by_number(
    number: c_long,
    arguments: [usize; 5],
    sixth: usize,
) -> Option<Result<Option<c_int>, c_int>> {
    let [first, second, third, fourth, fifth] = arguments;
    let mut call = Call {
        lent: [core::ptr::null(); 2],
        to: 0,
        sixth,
        fifth,
        fourth,
        third,
        second,
        first,
    };
    let fate = match number {
        libc::SYS_sendfile => call.send(),
        libc::SYS_ioctl => call.ioctl(),
        libc::SYS_copy_file_range => call.range(),
        libc::SYS_splice => call.splice(),
        _ => return None,
    };
    Some(match fate {
        // What has nothing to take back is libc's to make.
        Ok(None) if call.lent.iter().all(|ofd| ofd.is_null()) => Ok(None),
        Ok(None) => {
            let args = [first, second, third, fourth, fifth, sixth];
            // SAFETY: the program's own call.
            let result = unsafe { sys::call(number, args) };
            let ended = call.end(result.map(drop));
            result.and_then(|done| ended.map(|()| Some(done as c_int)))
        }
        Ok(Some(answer)) => Ok(Some(answer as c_int)),
        Err(errno) => Err(errno),
    })
}

impl Call {
    fn range(&mut self) -> Fate {
        let [from, to] = [self.first, self.third];
        let [from_at, to_at, len, flags] = [self.second, self.fourth, self.fifth, self.sixth];
        self.ready(from, from_at != 0, to, |writer| {
            // To copy nothing changes nothing, but tells what is wrong with the call.
            sys::copy_file_range(from, from_at, to, to_at, 0, flags)?;
            match len {
                _ if writer.appends() => Err(libc::EBADF),
                0 => Ok(Some(0)),
                _ => Err(libc::EXDEV),
            }
        })
    }

    fn send(&mut self) -> Fate {
        let [to, from, from_at, len] = [self.first, self.second, self.third, self.fourth];
        self.ready(from, from_at != 0, to, |writer| {
            sys::sendfile(to, from, from_at, 0)?;
            match len {
                0 if !writer.appends() => Ok(Some(0)),
                _ => Err(libc::EINVAL),
            }
        })
    }

    fn splice(&mut self) -> Fate {
        let [from, from_at, to, len] = [self.first, self.second, self.third, self.fifth];
        self.ready(from, from_at != 0, to, |_| {
            if len == 0 {
                return Ok(Some(0));
            }
            is_readable(from)?;
            Err(libc::EINVAL)
        })
    }

    fn ioctl(&mut self) -> Fate {
        let [fd, request, argument] = [self.first, self.second, self.third];
        let unsupported = |from: usize| {
            is_readable(from)?;
            Err(libc::EOPNOTSUPP)
        };
        match request as u32 {
            FICLONE => self.ready(argument, true, fd, |_| unsupported(argument)),
            FICLONERANGE => {
                let from = source_of(argument);
                self.ready(from.unwrap_or(usize::MAX), true, fd, |_| match from {
                    Some(from) => unsupported(from),
                    None => Err(libc::EOPNOTSUPP),
                })
            }
            // About this number alone, or whether it leads to a terminal.
            FIOCLEX | TCGETS | TIOCGPGRP | TIOCGWINSZ => Ok(None),
            FIONCLEX => descriptors::before_inheriting(fd as c_int).map(|()| None),
            // It reads this one, and those that it compares with. No byte changes.
            FIDEDUPERANGE => {
                for other in compared_with(argument) {
                    self.ready_to_read(other, true)?;
                }
                self.ready(fd, true, usize::MAX, |_| Ok(None))
            }
            // The kernel keeps the description that the device is given, to read and write the file.
            LOOP_SET_FD | LOOP_CHANGE_FD => give_away(argument as c_int),
            LOOP_CONFIGURE => file_of(argument).map_or(Ok(None), give_away),
            request => {
                for other in exchanged_with(request, argument).into_iter().flatten() {
                    descriptors::hand_over(other)?;
                }
                descriptors::hand_over(fd as c_int).map(|()| None)
            }
        }
    }

    /// Makes both ends ready for the kernel, or has the call answered by `refuse`.
    fn ready(
        &mut self,
        from: usize,
        from_somewhere: bool,
        to: usize,
        refuse: impl FnOnce(&Writer) -> Fate,
    ) -> Fate {
        let [from, to] = [from as c_int, to as c_int];
        if let Some(ofd) = fds::served(to)? {
            match ofd.writer() {
                Some(writer) if writer.refuses_copies(to) => return refuse(writer),
                Some(writer) => {
                    writer.lend_for_a_call(&ofd, to)?;
                    self.lent[0] = ofd.stay();
                    self.to = to as usize;
                }
                None => ofd.hand_over(to)?,
            }
        }
        let ready = self.ready_to_read(from, from_somewhere);
        let ready = ready.and_then(|()| self.may_be_written(to));
        if let Err(errno) = ready {
            self.end(Err(errno))?;
            return Err(errno);
        }
        Ok(None)
    }

    fn may_be_written(&self, to: c_int) -> Result<(), c_int> {
        let ofd = fds::served(to)?;
        let writer = ofd.as_ref().and_then(|ofd| ofd.writer());
        writer.map_or(Ok(()), |writer| writer.be_barred(to))
    }

    fn ready_to_read(&mut self, fd: c_int, somewhere: bool) -> Result<(), c_int> {
        let Some(ofd) = fds::served(fd)? else {
            return Ok(());
        };
        match ofd.writer() {
            // What is written meanwhile may be read or not, as ever. What others have staged of a declared file goes to
            // the file as well.
            Some(writer) if somewhere => {
                writer.put_down(&ofd, fd)?;
                declared::take_away(fd)
            }
            Some(writer) => {
                writer.lend_for_a_call(&ofd, fd)?;
                self.lent[1] = ofd.stay();
                Ok(())
            }
            None => ofd.hand_over(fd),
        }
    }

    /// Takes back what was lent. What the kernel has written is durable when the call returns, where writes are.
    fn end(&mut self, made: Result<(), c_int>) -> Result<(), c_int> {
        let mut result = Ok(());
        for end in 0..self.lent.len() {
            let ofd = core::mem::replace(&mut self.lent[end], core::ptr::null());
            if ofd.is_null() {
                continue;
            }
            // SAFETY: kept by this call on this thread, and taken back once.
            let ofd = unsafe { Users::again(ofd) };
            if let Some(writer) = ofd.writer() {
                writer.call_has_returned(end == 0 && may_have_written(made));
                // Another thread may have closed it meanwhile.
                let is_it = |now: &Ofd| core::ptr::eq(now, &*ofd);
                let still = || fds::promoted(self.to as c_int).is_some_and(|now| is_it(&now));
                if end == 0 && made.is_ok() && writer.kernel_flags() != 0 && still() {
                    result = sys::fdatasync(self.to).map(drop);
                }
            }
        }
        result
    }
}

/// Whether a call may have changed the file that it was to write to: the kernel refuses most before it begins.
pub(crate) fn may_have_written(made: Result<(), c_int>) -> bool {
    const REFUSED: [c_int; 8] = [
        libc::EXDEV,
        libc::EOPNOTSUPP,
        libc::EINVAL,
        libc::EBADF,
        libc::ENOTTY,
        libc::EISDIR,
        libc::EPERM,
        libc::ETXTBSY,
    ];
    made.err().is_none_or(|errno| !REFUSED.contains(&errno))
}

/// The kernel's error for a descriptor that cannot be read.
fn is_readable(fd: usize) -> Result<(), c_int> {
    match sys::fcntl(fd, libc::F_GETFL as usize, 0)? as c_int & libc::O_ACCMODE {
        libc::O_WRONLY => Err(libc::EBADF),
        _ => Ok(()),
    }
}

/// The kernel has this description in common with the program, for longer than the call.
fn give_away(fd: c_int) -> Fate {
    descriptors::unstage(fd).map(|()| None)
}

/// Where a program's range is copied from, if the range can be read.
fn source_of(range: usize) -> Option<usize> {
    let [from, ..] = pointers::words::<4>(range)?;
    Some(from as usize)
}

/// The other descriptors of requests that exchange what files consist of.
fn exchanged_with(request: u32, argument: usize) -> [Option<c_int>; 2] {
    match request {
        XFS_IOC_EXCHANGE_RANGE | XFS_IOC_COMMIT_RANGE => [file_of(argument), None],
        // Behind four bytes that mean nothing.
        EXT4_IOC_MOVE_EXT => [file_of(argument.wrapping_add(4)), None],
        // Behind its version.
        _ if request & 0xffff == XFS_IOC_SWAPEXT => match pointers::words(argument) {
            Some([_, target, temporary]) => [Some(target as c_int), Some(temporary as c_int)],
            None => [None; 2],
        },
        _ => [None; 2],
    }
}

/// The descriptors of `struct file_dedupe_range`: so many as it says, behind three words, each with three more.
fn compared_with(range: usize) -> impl Iterator<Item = c_int> {
    let count = pointers::words::<3>(range).map_or(0, |[.., count]| usize::from(count as u16));
    let at = move |nth: usize| range.wrapping_add(24 + 32 * nth);
    (0..count).map_while(move |nth| file_of(at(nth)))
}

/// The descriptor that a structure has here, with four bytes more behind it, if it can be read.
fn file_of(at: usize) -> Option<c_int> {
    let [word] = pointers::words::<1>(at)?;
    Some(word as c_int)
}
