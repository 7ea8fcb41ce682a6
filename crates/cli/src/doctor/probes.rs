//! Asks the kernel by trying: each feature is used once on nameless files in the directory in
//! question. Versions and lists of what a file system should do are not consulted, because back
//! ports, mount options and containers make them wrong.
//!
//! # Safety
//!
//! The probes make raw system calls. Each passes either no memory, or buffers and structures that
//! live on this function's stack and have the size that the call is told. Mappings are made and
//! removed inside [`Mapped`], which owns its range; it is only touched while it exists.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;

/// What a probe found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Probe {
    /// The feature's name.
    pub(crate) name: &'static str,
    /// Whether it works here.
    pub(crate) works: bool,
    /// Why not, in the kernel's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// The first kernel that has it, on one file system at least.
    pub(crate) since: &'static str,
    /// What Adit uses it for.
    pub(crate) used_for: &'static str,
}

/// The result of one trial: nothing, or the reason.
type Trial = Result<(), String>;

const PAGE: usize = 4096;
/// Large enough for the block size of any file system served.
const LEN: usize = 1 << 16;

/// Tries everything in `dir`. Fails when no file can be made there.
pub(crate) fn all(dir: &Path) -> Result<Vec<Probe>, String> {
    let file = || nameless(dir);
    let first =
        file().map_err(|e| format!("no file can be made in {}: {}", dir.display(), plain(&e)))?;
    drop(first);
    let probe = |name, since, used_for, trial: &dyn Fn() -> Result<Trial, Error>| {
        let result = trial().unwrap_or_else(|e| Err(plain(&e)));
        Probe {
            name,
            works: result.is_ok(),
            why: result.err(),
            since,
            used_for,
        }
    };
    Ok(vec![
        probe("MAP_SYNC", "4.15", "durable stores (medium dax)", &|| {
            Ok(map_sync(&file()?))
        }),
        probe(
            "shared mapping",
            "2.6",
            "reads and overwrites as loads and stores",
            &|| Ok(shared_mapping(&file()?)),
        ),
        probe(
            "MADV_POPULATE_READ",
            "5.14",
            "filling a mapping in one call",
            &|| Ok(populate(&file()?)),
        ),
        probe(
            "fallocate KEEP_SIZE",
            "2.6.23",
            "blocks reserved ahead of appenders",
            &|| Ok(reserve(&file()?)),
        ),
        probe(
            "F_SETLEASE",
            "2.4",
            "staging where outsiders are kept waiting",
            &|| Ok(lease(dir)),
        ),
        probe(
            "RWF_NOAPPEND",
            "6.9",
            "publishing through an O_APPEND description",
            &|| Ok(no_append(&file()?)),
        ),
        probe("FICLONERANGE", "4.5", "relinking staged pages", &|| {
            Ok(clone_range(&file()?, &file()?))
        }),
        probe(
            "exchange-range",
            "6.10",
            "relinking staged pages atomically",
            &|| Ok(exchange_range(&file()?, &file()?)),
        ),
        probe("file handles", "2.6.39", "naming files in records", &|| {
            Ok(handle(&file()?))
        }),
        probe(
            "huge mapping",
            "4.6",
            "fewer faults on DAX and on tmpfs with huge pages",
            &|| Ok(huge_mapping(&file()?)),
        ),
        probe(
            "PAGEMAP_SCAN",
            "6.7",
            "finding the modified pages of regions",
            &|| Ok(pagemap_scan()),
        ),
    ])
}

/// What would spare an XFS behind a page cache copying what is published.
pub(crate) fn relinking(probes: &[Probe]) -> Option<&'static str> {
    let refused = |name| {
        probes
            .iter()
            .any(|probe| probe.name == name && !probe.works)
    };
    match (refused("FICLONERANGE"), refused("exchange-range")) {
        (true, _) => Some(
            "long runs of staged bytes are copied when they are published: a file system that is made with mkfs.xfs \
             -m reflink=1 clones them, and one with -i exchange=1 exchanges them (from Linux and xfsprogs 6.10)",
        ),
        (false, true) => Some(
            "long runs of staged bytes are cloned when they are published, for which the pool needs other blocks each \
             time: a file system that is made with mkfs.xfs -i exchange=1 exchanges them (from Linux and xfsprogs 6.10)",
        ),
        (false, false) => None,
    }
}

/// A file without a name, 64 KB long and written. Where the file system has no such files, one
/// with a name that is removed at once.
fn nameless(dir: &Path) -> Result<File, Error> {
    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(dir);
    let mut file = match unnamed {
        Ok(file) => file,
        Err(_) => {
            let (file, path) = named(dir)?;
            std::fs::remove_file(path)?;
            file
        }
    };
    file.write_all(&[0x5a; LEN])?;
    Ok(file)
}

/// A file with a name nobody else uses.
fn named(dir: &Path) -> Result<(File, std::path::PathBuf), Error> {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unique = time.map(|t| t.as_nanos()).unwrap_or_default();
    let path = dir.join(format!(".adit-doctor-{}-{unique}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    Ok((file, path))
}

/// A mapping that goes away with this value.
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapped {
    fn new(file: &File, flags: libc::c_int) -> Result<Self, String> {
        Self::of(file, LEN, flags)
    }

    fn of(file: &File, len: usize, flags: libc::c_int) -> Result<Self, String> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            Err(last())
        } else {
            Ok(Self { at: base, len })
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and nobody keeps a pointer into it.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Whether MAP_SYNC is granted on a file: what makes a medium `dax`.
pub(super) fn map_sync(file: &File) -> Trial {
    Mapped::new(file, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC).map(drop)
}

/// What is stored through a mapping must be what a read returns.
fn shared_mapping(file: &File) -> Trial {
    let mapped = Mapped::new(file, libc::MAP_SHARED)?;
    // SAFETY: the first byte of a mapping of a file that is LEN bytes long and has no other user.
    unsafe { mapped.at.cast::<u8>().write_volatile(0xa5) };
    let mut byte = [0u8; 1];
    file.read_exact_at(&mut byte, 0).map_err(|e| plain(&e))?;
    if byte == [0xa5] {
        Ok(())
    } else {
        Err("a store is not seen by read".into())
    }
}

fn populate(file: &File) -> Trial {
    let mapped = Mapped::new(file, libc::MAP_SHARED)?;
    // SAFETY: the range is exactly the mapping's.
    done(unsafe { libc::madvise(mapped.at, LEN, libc::MADV_POPULATE_READ) })
}

/// Whether one fault maps 2 MB: counted, because no kernel says so of every file system.
fn huge_mapping(file: &File) -> Trial {
    const HUGE: usize = 2 << 20;
    const MOST_FAULTS: i64 = 8;
    let len = 4 * HUGE;
    // SAFETY: takes no memory.
    done(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) })?;
    let mapped = Mapped::of(file, len, libc::MAP_SHARED)?;
    let base = mapped.at.cast::<u8>();
    let first = base.align_offset(HUGE);
    let whole = (len - first) / HUGE;
    let faults = (0..whole).map(|i| {
        let before = faults_so_far();
        for page in (0..HUGE).step_by(PAGE) {
            // SAFETY: inside the mapping, as `whole` counts only what lies in it entirely; the file is
            // as long and has no other user.
            unsafe { base.add(first + i * HUGE + page).write_volatile(1) };
        }
        faults_so_far() - before
    });
    match faults.min() {
        Some(few) if few <= MOST_FAULTS => Ok(()),
        Some(many) => Err(format!("2 MB take {many} faults")),
        None => Err("no mapping was aligned".into()),
    }
}

fn faults_so_far() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure has the layout of the call; all zero is a valid one.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_minflt
    }
}

fn reserve(file: &File) -> Trial {
    let len = 16 * LEN as libc::off_t;
    // SAFETY: takes no memory.
    done(unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, len) })
}

/// A lease wants a file with a name: some file systems refuse it on one without.
fn lease(dir: &Path) -> Trial {
    let (file, path) = named(dir).map_err(|e| plain(&e))?;
    // SAFETY: takes no memory.
    let taken = done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) });
    drop(file);
    let _ = std::fs::remove_file(path);
    taken
}

fn no_append(file: &File) -> Trial {
    const RWF_NOAPPEND: libc::c_int = 0x20;
    // SAFETY: takes no memory.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) })?;
    let mut byte = [0x77u8];
    let part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: one iovec that names one byte on this stack.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, 3, RWF_NOAPPEND) };
    if written != 1 {
        return Err(last());
    }
    let mut seen = [0u8];
    file.read_exact_at(&mut seen, 3).map_err(|e| plain(&e))?;
    if seen == [0x77] {
        Ok(())
    } else {
        Err("the flag is ignored: the byte was appended".into())
    }
}

fn clone_range(from: &File, to: &File) -> Trial {
    #[repr(C)]
    struct Range {
        fd: i64,
        offset: u64,
        len: u64,
        to: u64,
    }
    const FICLONERANGE: libc::c_ulong = 0x4020_940d;
    let range = Range {
        fd: from.as_raw_fd().into(),
        offset: 0,
        len: LEN as u64,
        to: 0,
    };
    // SAFETY: the request reads a structure of exactly this layout.
    done(unsafe { libc::ioctl(to.as_raw_fd(), FICLONERANGE as _, &range) })
}

fn exchange_range(first: &File, second: &File) -> Trial {
    #[repr(C)]
    struct Exchange {
        fd: i32,
        pad: u32,
        first: u64,
        second: u64,
        len: u64,
        flags: u64,
    }
    /// `_IOW('X', 129, struct of 40 bytes)`.
    const XFS_IOC_EXCHANGE_RANGE: libc::c_ulong = 0x4028_5881;
    let exchange = Exchange {
        fd: first.as_raw_fd(),
        pad: 0,
        first: 0,
        second: 0,
        len: LEN as u64,
        flags: 0,
    };
    // SAFETY: the request reads a structure of exactly this layout.
    done(unsafe { libc::ioctl(second.as_raw_fd(), XFS_IOC_EXCHANGE_RANGE as _, &exchange) })
}

fn handle(file: &File) -> Trial {
    // SAFETY: the file is open for as long as it is borrowed.
    let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(file.as_raw_fd()) };
    adit_store::staged::handle_of(fd)
        .map(drop)
        .map_err(crate::failure::words)
}

fn pagemap_scan() -> Trial {
    #[repr(C)]
    #[derive(Default)]
    struct Scan {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        vec: u64,
        vec_len: u64,
        max_pages: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }
    /// `_IOWR('f', 16, struct of 96 bytes)`.
    const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
    const PAGE_IS_PRESENT: u64 = 1 << 3;
    let pagemap = File::open("/proc/self/pagemap").map_err(|e| plain(&e))?;
    let here = 0u64;
    let page = (&raw const here as u64) & !(PAGE as u64 - 1);
    let mut regions = [[0u64; 3]; 1];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: page,
        end: page + PAGE as u64,
        vec: regions.as_mut_ptr() as u64,
        vec_len: 1,
        category_mask: PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..Scan::default()
    };
    // SAFETY: the structure has the layout of the request; it names one region on this stack.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
    match found {
        1 => Ok(()),
        -1 => Err(last()),
        _ => Err("a present page was not reported".into()),
    }
}

fn done(result: libc::c_int) -> Trial {
    if result < 0 { Err(last()) } else { Ok(()) }
}

fn last() -> String {
    plain(&Error::last_os_error())
}

/// The kernel's words without the number.
fn plain(error: &Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_none_is_an_error() {
        assert!(all(Path::new("/nonexistent")).is_err());
        assert!(all(Path::new("/proc")).is_err());
    }

    #[test]
    fn it_is_told_what_would_spare_copying() {
        let told = |works: [bool; 2]| {
            let probe = |name, works| Probe {
                name,
                works,
                why: None,
                since: "",
                used_for: "",
            };
            let [clones, exchanges] = works;
            relinking(&[
                probe("FICLONERANGE", clones),
                probe("exchange-range", exchanges),
            ])
        };
        let says = |works, what| told(works).is_some_and(|said| said.contains(what));
        assert!(says([false, false], "-m reflink=1") && says([false, false], "-i exchange=1"));
        assert!(says([true, false], "-i exchange=1") && !says([true, false], "reflink"));
        assert_eq!(told([true, true]), None);
    }

    #[test]
    fn nothing_is_left_behind() {
        let dir = std::env::temp_dir().join(format!("adit-probes-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let probes = all(&dir).unwrap();
        assert!(
            probes.iter().any(|p| p.name == "shared mapping" && p.works),
            "{probes:?}"
        );
        // A refusal always says why.
        assert!(probes.iter().all(|p| p.works == p.why.is_none()));
        // Fails when a probe forgets a file.
        std::fs::remove_dir(&dir).unwrap();
    }
}
