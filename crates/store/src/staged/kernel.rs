//! A base file as the kernel has it.
//!
//! # Safety
//!
//! The one unsafe call is an `ioctl` that rustix does not wrap. Its number and argument are those of
//! the kernel's interface, and the argument lives across the call.
#![allow(unsafe_code)]

use adit_pmem::BaseFile;
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};

/// `FICLONERANGE`: `_IOW(0x94, 13, struct file_clone_range)`.
const CLONE_RANGE: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<FileCloneRange>(0x94, 13);

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
    /// Through a description opened with `O_APPEND`, positional writes append unless told otherwise.
    appends: bool,
}

impl<F: AsFd> KernelFile<F> {
    /// The file behind a description, which must allow reading and writing.
    pub fn new(fd: F) -> Result<Self, Errno> {
        let appends = rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::APPEND);
        Ok(Self { fd, appends })
    }

    fn write_once(&self, offset: u64, from: &[u8]) -> Result<usize, Errno> {
        if self.appends {
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

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            match self.write_once(offset + done as u64, &from[done..]) {
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
        rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len)
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

    fn exchange_range(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
        // The publisher relinks by clone, which can be repeated; an exchange cannot.
        Err(Errno::OPNOTSUPP)
    }

    fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.fd)
    }
}
