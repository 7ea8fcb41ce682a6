//! # Safety
//!
//! The tests fork and map files as programs do; children of a fork only call what a signal handler
//! may call.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::*;
use crate::testing::{
    Helper, Scratch, argument, eventually, id_of, is_helper, listen, modified, old, open_rw,
    registry, runtime_at, say,
};

/// A shared mapping of one page.
struct Page(*mut u8);

impl Page {
    fn of(file: &std::fs::File) -> Self {
        // SAFETY: a new mapping; the file has two pages.
        let address = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        Self(address.cast())
    }

    fn store(&self, byte: u8) {
        // SAFETY: the page is mapped until the value goes.
        unsafe { self.0.write_volatile(byte) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `of`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

fn files_in(run: &Path) -> usize {
    std::fs::read_dir(run).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("proc."))
            .count()
    })
}

#[test]
fn nothing_is_made_before_the_first_file() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let registry = registry(&run);
    assert!(!run.exists() && registry.file_path().is_none());
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    assert_eq!(files_in(&run), 1);
    let mode = std::fs::metadata(&run).expect("run").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    slot.served_read(4096);
    slot.served_read(1);
    slot.served_write(7);
    slot.passed(Reason::Extend, 1);
    slot.passed(Reason::Small, 2);
    slot.appended(100, 8292);
    let listing = list(&runtime_at(&run)).expect("list");
    assert!(listing.skipped.is_empty());
    let [process] = &listing.processes[..] else {
        panic!("one process: {listing:?}");
    };
    assert!(process.alive && process.pid == std::process::id());
    assert!(process.start_time > 0 && !process.comm.is_empty());
    let [shown] = &process.files[..] else {
        panic!("one file: {process:?}");
    };
    assert_eq!(shown.path.as_deref(), path.to_str());
    assert!(shown.open && !shown.pending);
    assert_eq!((shown.counts.reads, shown.counts.read_bytes), (2, 4097));
    assert_eq!((shown.counts.writes, shown.counts.write_bytes), (1, 7));
    assert_eq!(shown.counts.passed_total(), 3);
    assert_eq!(shown.counts.passed.get("extend"), Some(&1));
    assert_eq!(shown.appended, 100);
    registry.detach();
    assert_eq!(files_in(&run), 0);
    assert!(slot.is_stale(registry));
    // The memory stays valid: a late call of the program must not crash.
    slot.served_read(1);
    assert!(registry.file(id_of(&file), file.as_raw_fd()).is_none());
}

#[test]
fn a_registered_number_must_lead_to_the_file() {
    let scratch = Scratch::new();
    let registry = registry(&scratch.path("run"));
    let file = open_rw(&scratch.old_file("data"));
    let id = id_of(&file);
    let other = FileId {
        ino: id.ino + 1,
        ..id
    };
    assert!(registry.file(other, file.as_raw_fd()).is_none());
    assert!(registry.file(id, -1).is_none());
    assert!(registry.file(id, 1 << 20).is_none());
    assert!(registry.file(id, file.as_raw_fd()).is_some());
    registry.detach();
}

#[test]
fn stores_advance_the_time_when_settled_and_only_then() {
    let scratch = Scratch::new();
    let registry = registry(&scratch.path("run"));
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let page = Page::of(&file);
    let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    slot.settle(file.as_raw_fd());
    assert_eq!(modified(&path), old(), "nothing was stored");
    page.store(1);
    slot.stored_now();
    assert!(slot.pending() && registry.any_pending());
    let noticed = modified(&path) != old();
    let kind = crate::testing::scratch::medium();
    assert_eq!(
        noticed,
        kind != adit_pmem::MediumKind::Ram,
        "tmpfs alone does not notice the first store to a page"
    );
    let accessed = std::fs::metadata(&path).expect("metadata").accessed().ok();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(5);
    slot.settle(file.as_raw_fd());
    assert!(modified(&path) > before && !slot.pending());
    let untouched = std::fs::metadata(&path).expect("metadata").accessed().ok();
    assert_eq!(accessed, untouched);

    file.set_modified(old()).expect("set");
    slot.stored_now();
    assert!(registry.settle_file(id_of(&file)));
    assert!(!registry.settle_file(id_of(&file)));
    assert!(modified(&path) > before);

    file.set_modified(old()).expect("set");
    slot.stored_now();
    registry.settle_all();
    assert!(modified(&path) > before);

    file.set_modified(old()).expect("set");
    slot.stored_now();
    slot.close(file.as_raw_fd());
    assert!(modified(&path) > before);
    registry.detach();
}

#[test]
fn times_the_program_sets_win_over_earlier_stores() {
    let scratch = Scratch::new();
    let registry = registry(&scratch.path("run"));
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    slot.stored_now();
    slot.settle(file.as_raw_fd());
    file.set_modified(old()).expect("set");
    slot.close(file.as_raw_fd());
    registry.detach();
    assert_eq!(modified(&path), old());
}

#[test]
fn a_descriptor_that_leads_elsewhere_is_not_touched() {
    let scratch = Scratch::new();
    let registry = registry(&scratch.path("run"));
    let path = scratch.old_file("data");
    let other = scratch.old_file("other");
    let file = open_rw(&path);
    let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    slot.stored_now();
    let replacement = open_rw(&other);
    // SAFETY: both numbers are open descriptors of this test.
    unsafe { libc::dup2(replacement.as_raw_fd(), file.as_raw_fd()) };
    registry.settle_all();
    assert_eq!(modified(&other), old());
    assert!(slot.pending(), "left for the monitor");
    registry.detach();
    assert!(
        registry.file_path().is_some(),
        "the file stays while something is pending"
    );
}

#[test]
fn slots_are_reused_and_their_counts_kept() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let registry = registry(&run);
    let file = open_rw(&scratch.old_file("data"));
    for _ in 0..10 {
        let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
        slot.served_read(10);
        slot.close(file.as_raw_fd());
    }
    let listing = list(&runtime_at(&run)).expect("list");
    assert_eq!(listing.processes[0].files.len(), 1);
    assert_eq!(listing.processes[0].files[0].counts.read_bytes, 100);
    let mut others = Vec::new();
    for index in 0..layout::SLOTS + 10 {
        let path = scratch.old_file(&format!("other{index}"));
        let file = open_rw(&path);
        let slot = registry.file(id_of(&file), file.as_raw_fd());
        others.push((file, slot));
    }
    let filled = others.iter().filter(|(_, slot)| slot.is_some()).count();
    assert_eq!(filled, layout::SLOTS);
    let listing = list(&runtime_at(&run)).expect("list");
    assert_eq!(listing.processes[0].files.len(), layout::SLOTS);
    assert_eq!(listing.processes[0].retired.read_bytes, 100);
    assert_eq!(listing.processes[0].refused, 10);
    registry.detach();
}

#[test]
fn counts_of_many_threads_are_about_right() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let registry = registry(&run);
    let file = open_rw(&scratch.old_file("data"));
    let slot = registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    slot.served_read(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..10_000).for_each(|_| slot.served_write(1)));
        }
    });
    let listing = list(&runtime_at(&run)).expect("list");
    let writes = listing.processes[0].files[0].counts.writes;
    assert!((10_000..=20_000).contains(&writes), "{writes}");
    registry.detach();
}

#[test]
fn a_mask_that_takes_everything_leaves_the_owner_his_rights() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let file = open_rw(&scratch.old_file("data"));
    let id = id_of(&file);
    let run_of_thread = run.clone();
    let attached = std::thread::spawn(move || {
        // A mask of this thread's own.
        // SAFETY: integers only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
        let registry = registry(&run_of_thread);
        assert!(registry.file(id, file.as_raw_fd()).is_some());
        registry
    });
    let registry = attached.join().expect("attached");
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).expect("metadata");
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(mode(&run), 0o700);
    for entry in std::fs::read_dir(&run).expect("list") {
        assert_eq!(mode(&entry.expect("entry").path()), 0o600);
    }
    registry.detach();
}

#[test]
fn directories_that_others_reach_are_refused() {
    let scratch = Scratch::new();
    let file = open_rw(&scratch.old_file("data"));
    let refused = |name: &str| {
        let path = scratch.path(name);
        let registry = registry(&path);
        assert!(registry.file(id_of(&file), file.as_raw_fd()).is_none());
        list(&runtime_at(&path)).expect_err("refused")
    };
    for mode in [0o750, 0o701, 0o777, 0o1777] {
        let name = format!("mode{mode:o}");
        std::fs::create_dir(scratch.path(&name)).expect("mkdir");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(scratch.path(&name), permissions).expect("chmod");
        assert_eq!(refused(&name), DirError::Accessible { mode });
    }
    runtime_at(&scratch.path("real")).create().expect("create");
    symlink(scratch.path("real"), scratch.path("link")).expect("symlink");
    assert_eq!(refused("link"), DirError::NotADirectory);
    std::fs::write(scratch.path("file"), "").expect("write");
    assert_eq!(refused("file"), DirError::NotADirectory);
    assert!(matches!(
        refused("missing/too/deep"),
        DirError::Kernel(rustix::io::Errno::NOENT)
    ));
    if rustix::process::geteuid().is_root() {
        runtime_at(&scratch.path("theirs"))
            .create()
            .expect("create");
        std::os::unix::fs::chown(scratch.path("theirs"), Some(1234), None).expect("chown");
        assert_eq!(refused("theirs"), DirError::OwnedBy { owner: 1234 });
    }
    for bad in [&b""[..], b"relative", b"/a\0b", &[b'/'; 5000]] {
        assert_eq!(RuntimeDir::at(bad).expect_err("bad"), DirError::BadPath);
    }
}

#[test]
fn the_directory_is_found_as_documented() {
    let scratch = Scratch::new();
    let run = scratch.0.to_str().expect("path").as_bytes();
    let resolve = |adit, xdg| {
        let env = Env {
            adit_runtime_dir: adit,
            xdg_runtime_dir: xdg,
        };
        let dir = RuntimeDir::resolve(&env).expect("resolve");
        String::from_utf8(dir.as_bytes().to_vec()).expect("text")
    };
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(resolve(Some(b"/a/b"), Some(run)), "/a/b");
    assert_eq!(
        resolve(None, Some(run)).as_bytes(),
        [run, b"/adit"].concat()
    );
    let fallback = format!("/dev/shm/adit-{uid}");
    assert_eq!(resolve(None, None), fallback);
    assert_eq!(resolve(Some(b""), Some(b"/does/not/exist")), fallback);
    if uid == 0 {
        // As after `su`: the variable still names another user's directory.
        std::os::unix::fs::chown(&scratch.0, Some(1234), None).expect("chown");
        assert_eq!(resolve(None, Some(run)), fallback);
    }
}

#[test]
fn files_of_others_are_skipped_with_a_reason() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let run = scratch.path("run");
    let put = |name: &str, bytes: &[u8], old_enough: bool| {
        std::fs::write(run.join(name), bytes).expect("write");
        if old_enough {
            open_rw(&run.join(name)).set_modified(old()).expect("set");
        }
    };
    put("proc.1.1", b"", true);
    put("proc.1.2", b"short", true);
    put("proc.1.3", &vec![0xff; layout::SIZE], true);
    put("proc.1.4", &vec![0xff; layout::SIZE + 1], true);
    put("proc.1.5", b"", false);
    put("unrelated", b"hello", true);
    symlink("/etc/passwd", run.join("proc.1.6")).expect("symlink");
    std::fs::create_dir(run.join("proc.1.7")).expect("mkdir");
    let fifo = std::ffi::CString::new(run.join("proc.1.8").to_str().expect("path")).expect("name");
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    // The right words in front of garbage: everything behind them must be survived.
    let mut garbage = vec![0xff; layout::SIZE];
    garbage[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
    garbage[8..16].copy_from_slice(&layout::ABI.to_ne_bytes());
    garbage[16..20].copy_from_slice(&1u32.to_ne_bytes());
    for slot in 0..layout::SLOTS {
        let at = layout::slot_offset(slot);
        garbage[at] = layout::state::OPEN as u8;
    }
    put("proc.1.9", &garbage, true);
    let listing = list(&dir).expect("list");
    assert_eq!(listing.skipped.len(), 7, "{listing:?}");
    let [garbage] = &listing.processes[..] else {
        panic!("{listing:?}");
    };
    assert!(!garbage.alive && garbage.files.len() == layout::SLOTS);
    assert!(garbage.files.iter().all(|file| file.path.is_none()));
}

#[test]
fn a_child_of_a_fork_attaches_anew() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    scratch.old_file("data");
    let mut helper = Helper::start("registry::tests::helper_forks", &[("T_DIR", &scratch.0)]);
    helper.wait_for("forked");
    let dir = runtime_at(&run);
    let listing = list(&dir).expect("list");
    assert_eq!(listing.processes.len(), 2, "{listing:?}");
    let mine = helper.child.id();
    let find = |parent: bool| {
        let mut all = listing.processes.iter();
        all.find(|process| (process.pid == mine) == parent)
            .expect("process")
    };
    assert_eq!(find(true).files[0].counts.reads, 1 + 10, "inherited handle");
    assert_eq!(find(false).files[0].counts.reads, 100);
    // The parent dies; the child, which lives on, must not keep the parent's lock.
    helper.kill();
    let listing = list(&dir).expect("list");
    let alive = |process: &ProcessStat| (process.pid == mine, process.alive);
    let mut states: Vec<_> = listing.processes.iter().map(alive).collect();
    states.sort_unstable();
    assert_eq!(states, [(false, true), (true, false)]);
    let child = listing.processes.iter().find(|process| process.pid != mine);
    let child = child.expect("child").pid;
    // SAFETY: the pid is that of the helper's child, which waits for its signal.
    unsafe { libc::kill(child as i32, libc::SIGKILL) };
    eventually("the child is seen dead", || {
        list(&dir).is_ok_and(|listing| listing.processes.iter().all(|process| !process.alive))
    });
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_forks() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let registry = registry(&dir.join("run"));
    let file = open_rw(&dir.join("data"));
    let id = id_of(&file);
    let slot = registry.file(id, file.as_raw_fd()).expect("slot");
    slot.served_read(1);
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child only calls what a signal handler may call.
    let child = unsafe { libc::fork() };
    if child == 0 {
        registry.after_fork_child();
        let stale = slot.is_stale(registry);
        (0..10).for_each(|_| slot.served_read(1));
        let own = registry.file(id, file.as_raw_fd());
        if let Some(own) = own {
            (0..100).for_each(|_| own.served_read(1));
        }
        let fine = u8::from(stale && own.is_some_and(|own| !own.is_stale(registry)));
        // SAFETY: one byte from a local; then the process waits for its end.
        unsafe {
            libc::write(pipe[1], (&raw const fine).cast(), 1);
            libc::alarm(60);
            loop {
                libc::pause();
            }
        }
    }
    let mut fine = 0u8;
    // SAFETY: one byte into a local.
    unsafe { libc::read(pipe[0], (&raw mut fine).cast(), 1) };
    assert_eq!(fine, 1);
    assert!(!slot.is_stale(registry));
    say("forked");
    listen();
}

#[test]
fn an_exec_drops_the_attachment() {
    let scratch = Scratch::new();
    scratch.old_file("data");
    let mut helper = Helper::start("registry::tests::helper_execs", &[("T_DIR", &scratch.0)]);
    helper.wait_for("attached");
    let dir = runtime_at(&scratch.path("run"));
    assert!(list(&dir).expect("list").processes[0].alive);
    helper.go_on();
    eventually("the lock is gone", || {
        !list(&dir).expect("list").processes[0].alive
    });
    assert!(
        helper.child.try_wait().expect("wait").is_none(),
        "the process itself lives"
    );
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_execs() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let registry = registry(&dir.join("run"));
    let file = open_rw(&dir.join("data"));
    registry.file(id_of(&file), file.as_raw_fd()).expect("slot");
    say("attached");
    listen();
    use std::os::unix::process::CommandExt as _;
    let error = std::process::Command::new("sleep").arg("60").exec();
    panic!("{error}");
}

#[test]
fn a_full_descriptor_table_is_survived() {
    let scratch = Scratch::new();
    scratch.old_file("data");
    let mut helper = Helper::start("registry::tests::helper_full", &[("T_DIR", &scratch.0)]);
    helper.wait_for("done");
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_full() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let registry = registry(&dir.join("run"));
    let file = open_rw(&dir.join("data"));
    let id = id_of(&file);
    let limit = libc::rlimit {
        rlim_cur: file.as_raw_fd() as u64 + 1,
        rlim_max: 4096,
    };
    // SAFETY: the structure is a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert!(registry.file(id, file.as_raw_fd()).is_none());
    let limit = libc::rlimit {
        rlim_cur: 1024,
        ..limit
    };
    // SAFETY: the structure is a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert!(registry.file(id, file.as_raw_fd()).is_some(), "it passed");
    say("done");
}

/// Not a test of time: prints what one call costs.
#[test]
#[ignore = "prints costs"]
fn costs() {
    let scratch = Scratch::new();
    let registry = registry(&scratch.path("run"));
    let file = open_rw(&scratch.old_file("data"));
    let (id, fd) = (id_of(&file), file.as_raw_fd());
    let start = std::time::Instant::now();
    let slot = registry.file(id, fd).expect("slot");
    println!("attach and register: {:?}", start.elapsed());
    slot.close(fd);
    let others: Vec<_> = (0..100)
        .map(|_| crate::testing::registry(&scratch.path("run")))
        .collect();
    let start = std::time::Instant::now();
    for other in &others {
        other.file(id, fd).expect("slot");
    }
    println!("attach, directory there: {:?}", start.elapsed() / 100);
    let start = std::time::Instant::now();
    others.iter().for_each(|other| other.detach());
    println!("detach: {:?}", start.elapsed() / 100);
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        registry.file(id, fd).expect("slot").close(fd);
    }
    println!("register and close: {:?}", start.elapsed() / 1000);
    let slot = registry.file(id, fd).expect("slot");
    let time = |what: &str, action: &dyn Fn()| {
        let rounds = 10_000_000u32;
        let start = std::time::Instant::now();
        (0..rounds).for_each(|_| action());
        let each = start.elapsed().as_nanos() as f64 / f64::from(rounds);
        println!("{what}: {each:.2} ns");
    };
    time("empty", &|| {
        core::hint::black_box(&slot);
    });
    time("served_read", &|| {
        core::hint::black_box(&slot).served_read(4096)
    });
    time("served_write + stored_now", &|| {
        let slot = core::hint::black_box(&slot);
        slot.served_write(4096);
        slot.stored_now();
    });
    time("any_pending, one file", &|| {
        core::hint::black_box(registry.any_pending());
    });
    slot.settled();
    let start = std::time::Instant::now();
    for _ in 0..100_000 {
        slot.stored_now();
        slot.settle(fd);
    }
    println!("stored_now + settle: {:?}", start.elapsed() / 100_000);
    registry.detach();
}
