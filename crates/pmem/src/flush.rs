//! Write-back of cache lines and fences.
//!
//! # Safety
//!
//! The unsafe code calls the guarded write-back routines; the instruction it picks is one that
//! `cpuid` announced.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64 as arch;
use crate::copy::{Fault, LINE};
use crate::cpu::features;

/// The instruction that writes cache lines back to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// None that user space may use: nothing on this machine is called `dax`.
    None,
    /// Serialising and evicting; every x86-64 processor has it.
    Clflush,
    /// Evicting.
    Clflushopt,
    /// May keep the line cached.
    Clwb,
}

impl WriteBack {
    /// The best one of this processor.
    #[inline]
    pub fn chosen() -> WriteBack {
        let can = features();
        if can.clwb() {
            WriteBack::Clwb
        } else if can.clflushopt() {
            WriteBack::Clflushopt
        } else if can.clflush() {
            WriteBack::Clflush
        } else {
            WriteBack::None
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            WriteBack::None => "none",
            WriteBack::Clflush => "clflush",
            WriteBack::Clflushopt => "clflushopt",
            WriteBack::Clwb => "clwb",
        }
    }

    /// Whether the running processor can execute it.
    pub fn is_available(self) -> bool {
        let can = features();
        match self {
            WriteBack::None => true,
            WriteBack::Clflush => can.clflush(),
            WriteBack::Clflushopt => can.clflushopt(),
            WriteBack::Clwb => can.clwb(),
        }
    }
}

/// Starts the write-back of every line that `at..at+len` touches; [`fence`] waits for it.
///
/// # Safety
///
/// The range must be memory of the caller, or addresses that fault while a handler that uses
/// [`crate::fault::handle`] is installed.
#[inline]
pub unsafe fn write_back(at: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the range.
    unsafe { write_back_with(WriteBack::chosen(), at, len) }
}

/// As [`write_back`] with an instruction chosen by the caller; `Err` also if the processor lacks it.
///
/// # Safety
///
/// As for [`write_back`].
#[inline]
pub unsafe fn write_back_with(how: WriteBack, at: *const u8, len: usize) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let last = at.addr().checked_add(len - 1).ok_or(Fault)?;
    if !how.is_available() {
        return Err(Fault);
    }
    let into_line = at.addr() % LINE;
    let first = at.wrapping_sub(into_line);
    let lines = last / LINE - first.addr() / LINE + 1;
    // SAFETY: the lines are those of the range, for which the caller vouches; `how` is available.
    unsafe { lines_back(how, first, lines) }
}

/// Applies the instruction to `lines` lines.
///
/// # Safety
///
/// As for [`write_back`], and the processor has the instruction.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn lines_back(how: WriteBack, first: *const u8, lines: usize) -> Result<(), Fault> {
    let routine: arch::FlushFn = match how {
        WriteBack::None => return Ok(()),
        WriteBack::Clflush => arch::adit_pmem_clflush,
        WriteBack::Clflushopt => arch::adit_pmem_clflushopt,
        WriteBack::Clwb => arch::adit_pmem_clwb,
    };
    // SAFETY: write-back changes no byte; the caller vouches for the lines and the instruction.
    crate::copy::outcome(unsafe { routine(first, lines) })
}

/// Without an instruction for it there is nothing to do, and no medium is called `dax`.
///
/// # Safety
///
/// None; the signature is the other architecture's.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines_back(_how: WriteBack, _first: *const u8, _lines: usize) -> Result<(), Fault> {
    Ok(())
}

/// Waits until everything this thread streamed or wrote back before has reached the medium, and
/// orders it before later stores.
#[inline]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    arch::store_fence();
    // The compiler must not move ordinary stores across either; elsewhere this is the fence itself.
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
