//! A base file as the kernel has it.
//!
//! # Safety
//!
//! Three calls are made that rustix does not wrap. The two `ioctl`s: number and argument are those of the
//! kernel's interface, and the argument lives across the call. `pread64` into a program's memory,
//! which rustix would want as a slice: the kernel checks the address itself, and the caller vouches
//! that what lies there may be overwritten.
#![allow(unsafe_code)]

use adit_pmem::{BaseFile, syscall};
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd};
use rustix::fs::{Advice, FallocateFlags, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};

/// `FICLONERANGE`: `_IOW(0x94, 13, struct file_clone_range)`.
const CLONE_RANGE: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<FileCloneRange>(0x94, 13);

/// `XFS_IOC_EXCHANGE_RANGE`, Linux 6.10: `_IOW('X', 129, struct xfs_exchange_range)`.
const EXCHANGE_RANGE: rustix::ioctl::Opcode =
    rustix::ioctl::opcode::write::<ExchangeRange>(b'X', 129);

/// Check everything, change nothing.
const DRY_RUN: u64 = 1 << 2;

#[repr(C)]
struct ExchangeRange {
    other: i32,
    pad: u32,
    other_offset: u64,
    offset: u64,
    len: u64,
    flags: u64,
}

#[repr(C)]
struct FileCloneRange {
    source: i64,
    source_offset: u64,
    source_len: u64,
    offset: u64,
}

/// An open file of the kernel's, owned in whatever way suits the caller. (Under the preloaded library
/// that is not the standard library's way: it closes through libc.)
#[derive(Debug)]
pub struct KernelFile<F> {
    fd: F,
}

impl<F: AsFd> KernelFile<F> {
    /// The description.
    pub fn into_inner(self) -> F {
        self.fd
    }

    /// The file behind a description, which must allow reading and writing.
    pub fn new(fd: F) -> Result<Self, Errno> {
        // Nothing is begun with a number that names none.
        rustix::fs::fcntl_getfl(&fd)?;
        Ok(Self { fd })
    }

    fn exchange(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        len: u64,
        flags: u64,
    ) -> Result<(), Errno> {
        let range = ExchangeRange {
            other: other.fd.as_fd().as_raw_fd(),
            pad: 0,
            other_offset,
            offset,
            len,
            flags,
        };
        // SAFETY: number and argument are the kernel's XFS_IOC_EXCHANGE_RANGE, which reads the argument
        // only.
        let call =
            unsafe { rustix::ioctl::Setter::<{ EXCHANGE_RANGE }, ExchangeRange>::new(range) };
        // SAFETY: the ioctl accesses no memory of ours but its argument, which `call` owns.
        unsafe { rustix::ioctl::ioctl(&self.fd, call) }
    }

    /// Whether positional writes append unless told otherwise. It is asked, not remembered: who ends a
    /// staging gives the description its `O_APPEND` back, and may die before the staging has ended.
    fn appends(&self) -> Result<bool, Errno> {
        Ok(rustix::fs::fcntl_getfl(&self.fd)?.contains(OFlags::APPEND))
    }

    fn write_once(&self, offset: u64, from: &[u8], appends: bool) -> Result<usize, Errno> {
        if appends {
            // RWF_NOAPPEND, Linux 6.9. An older kernel refuses, and nothing is lost.
            let flags = ReadWriteFlags::from_bits_retain(0x20);
            let from = [IoSlice::new(from)];
            return rustix::io::pwritev2(&self.fd, &from[..], offset, flags);
        }
        rustix::io::pwrite(&self.fd, from, offset)
    }
}

impl<F: AsFd + Send + Sync> BaseFile for KernelFile<F> {
    fn size(&self) -> Result<u64, Errno> {
        Ok(rustix::fs::fstat(&self.fd)?.st_size as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    unsafe fn read_into(&self, offset: u64, into: *mut u8, len: usize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            let (into, at) = (into.wrapping_add(done), offset + done as u64);
            // SAFETY: the caller vouches for the memory.
            match unsafe { pread(self.fd.as_fd(), into, len - done, at) } {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let appends = self.appends()?;
        let mut done = 0;
        while done < from.len() {
            match self.write_once(offset + done as u64, &from[done..], appends) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(&self.fd, size)
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        // tmpfs takes back what it has done when a signal waits.
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len)
        })
    }

    fn available(&self) -> Result<u64, Errno> {
        let fs = rustix::fs::fstatfs(&self.fd)?;
        // A tmpfs without a limit reports no blocks at all.
        if fs.f_blocks == 0 {
            return Ok(u64::MAX);
        }
        Ok(fs.f_bavail.saturating_mul(fs.f_bsize as u64))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, offset, len)
    }

    fn clone_range(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let range = FileCloneRange {
            source: i64::from(from.fd.as_fd().as_raw_fd()),
            source_offset: from_offset,
            source_len: len,
            offset,
        };
        // SAFETY: number and argument are the kernel's FICLONERANGE, which reads the argument only.
        let call = unsafe { rustix::ioctl::Setter::<{ CLONE_RANGE }, FileCloneRange>::new(range) };
        // SAFETY: the ioctl accesses no memory of ours but its argument, which `call` owns.
        unsafe { rustix::ioctl::ioctl(&self.fd, call) }
    }

    fn exchange_range(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        self.exchange(offset, other, other_offset, len, 0)
    }

    fn may_exchange(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        self.exchange(offset, other, other_offset, len, DRY_RUN)
    }

    fn set_modified(&self, nanoseconds: u64) -> Result<(), Errno> {
        let omit = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
        let modified = Timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        };
        rustix::fs::futimens(
            &self.fd,
            &Timestamps {
                last_access: omit,
                last_modification: modified,
            },
        )
    }

    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.fd).inspect_err(|_| forget_cached(self.fd.as_fd()))
    }
}

/// Lets go of a file's pages in the cache, as far as they are clean. A page whose write-back has failed is clean, and holds
/// what is not on the medium. When such pages are written again, ext4 leaves blocks that were reserved for them unwritten,
/// and tells no error: so whoever writes again after a failed sync, or for somebody who may have died over one, begins with
/// what is there. The kernel tells a failure once to each description, and a dead program's is its monitor's.
pub(crate) fn forget_cached(fd: BorrowedFd<'_>) {
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::DontNeed);
}

/// `pread64`.
///
/// # Safety
///
/// What lies at `into..into + len` may be overwritten, if anything does.
unsafe fn pread(fd: BorrowedFd<'_>, into: *mut u8, len: usize, at: u64) -> Result<usize, Errno> {
    let args = [
        fd.as_raw_fd() as usize,
        into as usize,
        len,
        at as usize,
        0,
        0,
    ];
    // SAFETY: it writes `into..into + len` only, as the caller allows.
    let read = unsafe { syscall::call(libc::SYS_pread64, args) };
    read.map_err(Errno::from_raw_os_error)
}
