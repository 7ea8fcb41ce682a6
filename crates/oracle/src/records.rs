//! Files of numbered records: whoever reads any of them can say which it was and whether it is whole.

use crate::outside;
use crate::twin::Plant;
use crate::way::{Way, raw_size};
use std::ffi::CString;
use std::path::{Path, PathBuf};

pub(crate) const RECORD: usize = 64;

/// What all scenarios of a run share.
pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
    pub(crate) plant: Option<Plant>,
    /// Scales how much each scenario does.
    pub(crate) rounds: usize,
}

impl Stage {
    pub(crate) fn path(&self, name: &str) -> CString {
        path_in(&self.dir, name)
    }
}

pub(crate) fn path_in(dir: &Path, name: &str) -> CString {
    CString::new(dir.join(name).into_os_string().into_encoded_bytes()).expect("a path has no NUL")
}

/// The record of a given number.
pub(crate) fn record(number: u64) -> [u8; RECORD] {
    let mut r = [0; RECORD];
    for (i, part) in r.chunks_mut(8).enumerate() {
        let word = if i == 0 {
            number
        } else {
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64
        };
        part.copy_from_slice(&word.to_le_bytes());
    }
    r
}

/// The number of a whole record.
pub(crate) fn number_of(bytes: &[u8]) -> Result<u64, String> {
    let head = bytes
        .get(..8)
        .and_then(|b| b.try_into().ok())
        .ok_or("a piece of a record")?;
    let number = u64::from_le_bytes(head);
    if bytes == record(number) {
        Ok(number)
    } else {
        Err(format!("a torn record {number}"))
    }
}

/// The numbers of all records in a buffer.
pub(crate) fn numbers(bytes: &[u8]) -> Result<Vec<u64>, String> {
    bytes.chunks(RECORD).map(number_of).collect()
}

/// Makes a file of the first `count` records, by raw calls.
pub(crate) fn make(path: &std::ffi::CStr, count: u64) -> Result<(), String> {
    let all: Vec<u8> = (0..count).flat_map(record).collect();
    let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY | libc::O_CLOEXEC;
    let fd = Way::Raw.open(path, flags, 0o644, 0) as i32;
    let n = outside::write_all(Way::Raw, fd, &all);
    Way::Raw.close(fd);
    if n == all.len() as i64 {
        Ok(())
    } else {
        Err(format!("cannot make {path:?}: {n}"))
    }
}

/// Opens through libc, and reads everything twice so that Adit takes the descriptor over.
pub(crate) fn open_warm(path: &std::ffi::CStr, flags: i32) -> Result<i32, String> {
    let fd = Way::Libc.open(path, flags, 0o644, 0) as i32;
    if fd < 0 {
        return Err(format!("open {path:?}: {fd}"));
    }
    let mut buf = vec![0u8; 64 << 10];
    for _ in 0..3 {
        Way::Libc.lseek(fd, 0, libc::SEEK_SET, 0);
        while Way::Libc.read(fd, buf.as_mut_ptr(), buf.len()) > 0 {}
    }
    match Way::Libc.lseek(fd, 0, libc::SEEK_SET, 0) {
        0 => Ok(fd),
        r => Err(format!("lseek: {r}")),
    }
}

/// A whole file as an outsider sees it.
pub(crate) fn raw_contents(path: &std::ffi::CStr) -> Result<Vec<u8>, String> {
    let fd = Way::Raw.open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0, 0) as i32;
    let mut buf = vec![0u8; raw_size(fd).ok_or("no size")? as usize];
    let n = Way::Raw.pread(fd, buf.as_mut_ptr(), buf.len(), 0, 0);
    Way::Raw.close(fd);
    if n == buf.len() as i64 {
        Ok(buf)
    } else {
        Err(format!("short outsider's read: {n}"))
    }
}

/// Each of `0..count` exactly once.
pub(crate) fn each_once(mut seen: Vec<u64>, count: u64) -> Result<(), String> {
    seen.sort_unstable();
    let expected = 0..count;
    if seen.iter().copied().eq(expected) {
        return Ok(());
    }
    let twice = seen.windows(2).find(|w| w[0] == w[1]).map(|w| w[0]);
    let missing = (0..count).find(|n| seen.binary_search(n).is_err());
    Err(format!(
        "{} records of {count}: first missing {missing:?}, first seen twice {twice:?}",
        seen.len()
    ))
}

/// Reads whole records from a shared offset until the file ends.
pub(crate) fn read_to_end(fd: i32, seed: u64) -> Result<Vec<u64>, String> {
    let mut rng = crate::rng::Rng::new(seed);
    let mut buf = vec![0u8; 32 * RECORD];
    let mut got = Vec::new();
    loop {
        let want = rng.range(1, 33) as usize * RECORD;
        let n = Way::Libc.read(fd, buf.as_mut_ptr(), want);
        match n {
            0 => return Ok(got),
            n if n < 0 => return Err(format!("read: {n}")),
            n => got.extend(numbers(&buf[..n as usize])?),
        }
    }
}
