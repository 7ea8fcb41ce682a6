//! Faults inside the guarded routines: bytes that a file no longer has (SIGBUS) and pages that may
//! not be touched (SIGSEGV), at every distance from the boundary, from threads and from inside a
//! signal handler; and faults that are not ours still reach whom they belong to.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[path = "../../../tests/scratch.rs"]
mod scratch;
#[path = "../../../tests/skipped.rs"]
mod skipped;

use adit_pmem::copy::{
    Routine, guarded_copy, guarded_copy_streaming, guarded_copy_streaming_with, guarded_copy_with,
    guarded_probe,
};
use adit_pmem::flush::{WriteBack, write_back_with};
use adit_pmem::map::{Access, Mapping, PAGE, Window};
use adit_pmem::{Fault, fault};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A mapping of two pages over a file that has only the first.
struct Cliff {
    mapping: Mapping,
    _file: OwnedFd,
}

impl Cliff {
    fn beyond_end_of_file() -> Self {
        fault::install().expect("handlers");
        let file = memfd_create("cliff", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&file, 2 * PAGE as u64).expect("grow");
        let mapping = Mapping::new(&file, 0, 2 * PAGE, Access::ReadWrite, false).expect("map");
        mapping.populate(0, 2 * PAGE).expect("populate");
        ftruncate(&file, PAGE as u64).expect("shrink");
        Cliff {
            mapping,
            _file: file,
        }
    }

    fn edge(&self) -> *mut u8 {
        self.mapping.base().wrapping_add(PAGE)
    }
}

/// A window whose first page is mapped and whose second is not.
struct Wall {
    window: Window,
    _file: OwnedFd,
}

impl Wall {
    fn inaccessible() -> Self {
        fault::install().expect("handlers");
        let file = memfd_create("wall", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&file, PAGE as u64).expect("grow");
        let window = Window::reserve(2 * PAGE).expect("reserve");
        window
            .map(0, &file, 0, PAGE, Access::ReadWrite, false)
            .expect("map");
        Wall {
            window,
            _file: file,
        }
    }

    fn edge(&self) -> *mut u8 {
        self.window.base().wrapping_add(PAGE)
    }
}

fn guarded_routines() -> impl Iterator<Item = Routine> {
    Routine::ALL
        .into_iter()
        .filter(|routine| routine.is_available() && *routine != Routine::Portable)
}

/// Copies ranges that end before, at and behind the edge, both ways, with every routine.
fn copies_across(edge: *mut u8) {
    const LEN: usize = 700;
    let mut ours = [7_u8; LEN];
    for routine in guarded_routines() {
        for before in 0..=600 {
            for len in [1, 15, 16, 33, 64, 100, 129, 300, 520, 700] {
                let at = edge.wrapping_sub(before);
                let want = if len > before { Err(Fault) } else { Ok(()) };
                // SAFETY: `ours` is long enough; the other side is mapped or faults.
                let results = unsafe {
                    [
                        guarded_copy_with(routine, ours.as_mut_ptr(), at, len),
                        guarded_copy_with(routine, at, ours.as_ptr(), len),
                        guarded_copy_streaming_with(routine, at, ours.as_ptr(), len, true),
                        guarded_copy_streaming_with(routine, at, ours.as_ptr(), len, false),
                        guarded_copy_streaming_with(routine, ours.as_mut_ptr(), at, len, true),
                    ]
                };
                assert_eq!(
                    results, [want; 5],
                    "{routine:?}: {len} bytes {before} before the edge"
                );
            }
        }
    }
}

#[test]
fn copies_beyond_the_end_of_a_file_fault() {
    copies_across(Cliff::beyond_end_of_file().edge());
}

#[test]
fn copies_to_inaccessible_pages_fault() {
    copies_across(Wall::inaccessible().edge());
}

#[test]
fn stores_to_a_read_only_mapping_fault_and_loads_do_not() {
    fault::install().expect("handlers");
    let file = memfd_create("read-only", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, PAGE as u64).expect("grow");
    let mapping = Mapping::new(&file, 0, PAGE, Access::Read, false).expect("map");
    let mut ours = [0_u8; 256];
    // SAFETY: the mapping's page is readable; stores to it fault.
    unsafe {
        assert_eq!(guarded_copy(ours.as_mut_ptr(), mapping.base(), 256), Ok(()));
        assert_eq!(guarded_copy(mapping.base(), ours.as_ptr(), 256), Err(Fault));
        assert_eq!(
            guarded_copy_streaming(mapping.base(), ours.as_ptr(), 256),
            Err(Fault)
        );
    }
}

#[test]
fn probes_tell_the_last_byte_from_the_first_beyond() {
    for edge in [Cliff::beyond_end_of_file(), Cliff::beyond_end_of_file()] {
        // SAFETY: the byte before the edge is mapped; the one behind it faults.
        unsafe {
            edge.edge().wrapping_sub(1).write_volatile(0xff);
            assert_eq!(guarded_probe(edge.edge().wrapping_sub(1)), Ok(0xff));
            assert_eq!(guarded_probe(edge.edge()), Err(Fault));
        }
    }
    let wall = Wall::inaccessible();
    // SAFETY: as above.
    unsafe {
        assert_eq!(guarded_probe(wall.edge().wrapping_sub(1)), Ok(0));
        assert_eq!(guarded_probe(wall.edge()), Err(Fault));
        // Null, an address no user has, and one that no page table can name.
        assert_eq!(guarded_probe(std::ptr::null()), Err(Fault));
        for nowhere in [0xffff_8000_0000_0000_usize, 0x8000_0000_0000_0000] {
            assert_eq!(
                guarded_probe(std::ptr::without_provenance(nowhere)),
                Err(Fault)
            );
        }
    }
}

#[test]
fn write_back_of_inaccessible_lines_faults() {
    let wall = Wall::inaccessible();
    for how in [WriteBack::Clflush, WriteBack::Clflushopt, WriteBack::Clwb] {
        if how.is_available() {
            // SAFETY: the page is mapped before the edge; behind it the instruction faults.
            unsafe {
                assert_eq!(
                    write_back_with(how, wall.edge().wrapping_sub(64), 64),
                    Ok(())
                );
                assert_eq!(
                    write_back_with(how, wall.edge().wrapping_sub(64), 65),
                    Err(Fault)
                );
            }
        }
    }
}

#[test]
fn registers_and_stack_survive_many_faults() {
    let cliff = Cliff::beyond_end_of_file();
    let mut ours = [0_u8; 4096];
    let mut sum = 0_usize;
    for round in 0..20_000 {
        // SAFETY: half of the range is mapped, the rest faults.
        let result = unsafe {
            guarded_copy(
                ours.as_mut_ptr(),
                cliff.edge().wrapping_sub(round % 4096),
                4096,
            )
        };
        assert_eq!(result, Err(Fault));
        sum = sum.wrapping_mul(31).wrapping_add(round);
    }
    let expected = (0..20_000_usize).fold(0_usize, |sum, at| sum.wrapping_mul(31).wrapping_add(at));
    assert_eq!(sum, expected);
}

#[test]
fn threads_fault_independently_while_others_copy() {
    let cliff = Cliff::beyond_end_of_file();
    let wall = Wall::inaccessible();
    let edges = [cliff.edge().addr(), wall.edge().addr()];
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            scope.spawn(move || {
                let edge = std::ptr::with_exposed_provenance::<u8>(edges[thread % 2]);
                let mut ours = [0_u8; 2048];
                for round in 0..5_000 {
                    let before = round * (thread + 3) % 2048;
                    let len = round * 37 % 2048;
                    let want = if len > before { Err(Fault) } else { Ok(()) };
                    // SAFETY: mapped before the edge, faulting behind it.
                    let got =
                        unsafe { guarded_copy(ours.as_mut_ptr(), edge.wrapping_sub(before), len) };
                    assert_eq!(got, want);
                }
            });
        }
    });
}

/// A file shrinks and grows while others read it: each copy works or faults, and nothing else.
#[test]
fn truncation_in_the_middle_of_copies_is_survived() {
    fault::install().expect("handlers");
    let file = memfd_create("breathing", MemfdFlags::CLOEXEC).expect("memfd");
    const SIZE: usize = 16 * PAGE;
    ftruncate(&file, SIZE as u64).expect("grow");
    let mapping = Mapping::new(&file, 0, SIZE, Access::ReadWrite, false).expect("map");
    let (faults, copies) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut ours = vec![0_u8; SIZE];
                for _ in 0..2_000 {
                    // SAFETY: the mapping faults where the file ends.
                    let got = unsafe { guarded_copy(ours.as_mut_ptr(), mapping.base(), SIZE) };
                    let counter = if got.is_ok() { &copies } else { &faults };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2_000 {
            ftruncate(&file, 0).expect("shrink");
            ftruncate(&file, SIZE as u64).expect("grow");
        }
    });
    assert_eq!(faults.into_inner() + copies.into_inner(), 4_000);
}

/// Stores to a hole that the file system has no page for: the kernel's ENOSPC, met by a store.
#[test]
fn stores_to_holes_of_a_full_file_system_fault() {
    const NAME: &str = "stores_to_holes_of_a_full_file_system_fault";
    if let Ok(directory) = std::env::var(SMALL) {
        return stores_to_holes_until_they_fault(&directory);
    }
    let dir = scratch::place().join(format!("adit-small-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    // Where somebody is not root he may be, among his own mounts.
    let root = rustix::process::geteuid().is_root();
    let own = if root { "-m" } else { "-rm" };
    // Another status than a test's, and than that of a program which a signal ends.
    let script = "mount -t tmpfs -o size=8m none \"$0\" || exit 77; exec \"$@\"";
    let said = Command::new("timeout")
        .args(["-k", "2", &scratch::seconds(60), "unshare", own])
        .args(["sh", "-c", script])
        .arg(&dir)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", NAME])
        .env(SMALL, &dir)
        .output()
        .expect("timeout(1)");
    std::fs::remove_dir(&dir).expect("nothing is left in it");
    match said.status.code() {
        Some(0) => {
            let told = String::from_utf8_lossy(&said.stdout);
            assert!(told.contains("1 passed"), "{told}");
        }
        // What `unshare` says of itself, and `timeout` where there is none.
        Some(1 | 77 | 127) => skipped::skip("no small tmpfs may be mounted"),
        _ => panic!("{said:?}"),
    }
}

/// In the environment of the helper process of a test: a directory on a tmpfs of less than 64 MB.
const SMALL: &str = "T_SMALL";

fn stores_to_holes_until_they_fault(directory: &str) {
    use rustix::fs::{Mode, OFlags, open};
    const SIZE: usize = 64 << 20;
    fault::install().expect("handlers");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(directory, flags, Mode::RUSR | Mode::WUSR).expect("nameless file");
    ftruncate(&file, SIZE as u64).expect("a hole");
    let mapping = Mapping::new(&file, 0, SIZE, Access::ReadWrite, false).expect("map");
    let stored = (0..SIZE).step_by(PAGE).filter(|at| {
        // SAFETY: inside the mapping, whose pages exist or fault.
        unsafe { guarded_copy(mapping.base().wrapping_add(*at), [1; 9].as_ptr(), 9) }.is_ok()
    });
    let stored = stored.count();
    assert!((1..SIZE / PAGE).contains(&stored), "{stored} pages stored");
}

static EDGE: AtomicUsize = AtomicUsize::new(0);
static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn copies_in_a_handler(_signal: i32) {
    let edge = std::ptr::with_exposed_provenance::<u8>(EDGE.load(Ordering::Acquire));
    let mut ours = [0_u8; 128];
    // SAFETY: mapped before the edge, faulting behind it.
    let (good, bad) = unsafe {
        (
            guarded_copy(ours.as_mut_ptr(), edge.wrapping_sub(128), 128),
            guarded_copy(ours.as_mut_ptr(), edge.wrapping_sub(100), 128),
        )
    };
    SEEN.store(
        1 + u32::from(good.is_ok()) + 2 * u32::from(bad.is_err()),
        Ordering::Release,
    );
}

#[test]
fn copies_inside_a_signal_handler_fault_too() {
    let cliff = Cliff::beyond_end_of_file();
    EDGE.store(cliff.edge().expose_provenance(), Ordering::Release);
    // SAFETY: the handler only copies and stores to an atomic.
    unsafe {
        libc::signal(libc::SIGUSR1, copies_in_a_handler as *const () as usize);
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
    }
    assert_eq!(SEEN.load(Ordering::Acquire), 4);
}

/// Runs a child with our handlers that does `act` and returns how it ended.
fn child_status(act: fn()) -> i32 {
    fault::install().expect("handlers");
    // SAFETY: the child makes only async-signal-safe calls: an access, and `_exit`.
    unsafe {
        match libc::fork() {
            0 => {
                libc::setrlimit(
                    libc::RLIMIT_CORE,
                    &libc::rlimit {
                        rlim_cur: 0,
                        rlim_max: 0,
                    },
                );
                act();
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            }
        }
    }
}

#[test]
fn faults_elsewhere_still_kill() {
    let status = child_status(|| {
        // SAFETY: meant to fault; nothing runs afterwards.
        unsafe { std::ptr::without_provenance::<u8>(4096).read_volatile() };
    });
    assert!(libc::WIFSIGNALED(status), "the child lived: {status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}

/// What the other tests show only means something because this happens without the guard.
#[test]
fn an_unguarded_copy_of_the_same_bytes_kills() {
    let status = child_status(|| {
        let cliff = Cliff::beyond_end_of_file();
        let mut ours = [0_u8; 16];
        // SAFETY: meant to fault; nothing runs afterwards.
        let _ = unsafe {
            guarded_copy_with(
                Routine::Portable,
                ours.as_mut_ptr(),
                cliff.edge(),
                ours.len(),
            )
        };
    });
    assert!(libc::WIFSIGNALED(status), "the child lived: {status}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
}

/// The part of the next test that dies, in a process of its own: our handlers go in front of the
/// default action, not of the one that Rust's runtime installed.
#[test]
#[ignore = "run by a_sent_signal_still_kills"]
fn dies_by_a_sent_signal() {
    // SAFETY: sends a signal to this process alone.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        fault::install().expect("handlers");
        libc::setrlimit(
            libc::RLIMIT_CORE,
            &libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            },
        );
        libc::raise(libc::SIGBUS);
    }
}

#[test]
fn a_sent_signal_still_kills() {
    use std::os::unix::process::ExitStatusExt;
    let status = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "dies_by_a_sent_signal", "--ignored"])
        .stdout(std::process::Stdio::null())
        .status()
        .expect("child");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

#[test]
fn only_guarded_addresses_have_a_fixup() {
    assert_eq!(fault::handle(0), None);
    assert_eq!(fault::handle(usize::MAX), None);
    assert_eq!(fault::handle(fault::install as *const () as usize), None);
    assert_eq!(fault::handle(guarded_routines as *const () as usize), None);
}
