//! `ADIT_REQUIRE`: where a file cannot have its mode's promise, a call fails with an error that says why, and
//! nothing is lost. In mode `sync` the kernel keeps the whole promise, so there is nothing to refuse.

use super::*;

const ATOMIC: [&str; 2] = ["atomic", "strict"];

impl Told {
    fn start(place: &Place, mode: &str, file: &Path) -> Self {
        Self::within(place, mode, file, &[])
    }

    /// Behind the words of another command.
    fn within(place: &Place, mode: &str, file: &Path, words: &[&str]) -> Self {
        Self::in_mode(place, &format!("{mode} ADIT_REQUIRE=1"), file, words)
    }

    /// In a mode that needs not be kept.
    fn willing(place: &Place, mode: &str, file: &Path) -> Self {
        Self::in_mode(place, mode, file, &[])
    }

    fn in_mode(place: &Place, mode: &str, file: &Path, words: &[&str]) -> Self {
        Self::run(place, Some(mode), file, words)
    }

    /// As the kernel does it.
    fn plainly(place: &Place, file: &Path) -> Self {
        Self::run(place, None, file, &[])
    }

    fn run(place: &Place, mode: Option<&str>, file: &Path, words: &[&str]) -> Self {
        let program = place.dir.join("required");
        let inner = place.command(&program, mode);
        let mut command = Command::new(words.first().copied().unwrap_or("env"));
        command.args(words.iter().skip(1));
        command.arg(inner.get_program()).args(inner.get_args());
        Self::of(command.arg(file))
    }
}

/// Has a program in each mode that stages do what is tested, with a file that is not there yet. Of a place that there is not
/// nothing is tested.
fn in_each_mode(name: &str, test: impl Fn(&Place, &str, &mut Told)) {
    let Some(place) = Place::new(name) else {
        return;
    };
    place.compile("required");
    for mode in ATOMIC {
        let _ = fs::remove_file(place.file());
        test(&place, mode, &mut Told::start(&place, mode, &place.file()));
    }
}

/// libc flushes its streams when the process has ended for us. Nobody would hear of an error, so it is no time for one.
#[test]
fn what_is_flushed_at_the_end_is_written() {
    let Some(place) = Place::new("flushed") else {
        return;
    };
    let source = place.dir.join("flushed.c");
    let program = place.dir.join("flushed");
    let text = "#include <stdio.h>\nint main(int c, char **v) { return c < 2 || fprintf(fopen(v[1], \"w\"), \"hi\") < 0; }";
    fs::write(&source, text).expect("a source");
    let built = Command::new("cc")
        .args(["-o"])
        .arg(&program)
        .arg(&source)
        .status();
    assert!(built.expect("cc").success());
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let mode = format!("{mode} ADIT_REQUIRE=1");
        run(place.command(&program, Some(&mode)).arg(place.file()));
        assert_eq!(place.content(), "hi", "{mode}");
    }
}

#[test]
fn what_cannot_be_staged_is_refused_with_a_reason() {
    let Some(place) = Place::new("refusals") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    for mode in ["sync", "atomic", "strict"] {
        let refused = |why: &'static str| if mode == "sync" { "done" } else { why };
        fs::write(&file, "").expect("the file");
        let mut program = Told::start(&place, mode, &file);
        // By its flags, and without a name by which a recovery finds it.
        for flags in ["s", "t"] {
            program.answers(&[(&format!("o0 {flags}"), refused("EOPNOTSUPP"))]);
            program.tell("c0");
        }
        // What the kernel makes on the fly is no place for data.
        for flags in ["k", "K"] {
            program.answers(&[(&format!("o0 {flags}"), "done"), ("w0 name", "done")]);
            program.tell("c0");
        }
        // Somebody else has it open.
        let reader = fs::File::open(&file).expect("the file");
        program.answers(&[("o0 a", refused("EBUSY"))]);
        if mode == "sync" {
            program.answers(&[("w0 kept", "done"), ("c0", "done"), ("o0 f", "done")]);
        } else {
            program.answers(&[("o0 f", "EBUSY")]);
        }
        program.tell("c0");
        drop(reader);
        program.answers(&[("o0 a", "done"), ("w0 own", "done")]);
        // A second description of its own: the first one keeps what it has, and goes on.
        program.answers(&[("o1 a", refused("EBUSY")), ("w0 more", "done")]);
        if mode == "sync" {
            program.answers(&[("w1 too", "done"), ("c1", "done")]);
        }
        program.answers(&[("c0", "done")]);
        let kept = ["own\nmore\n", "kept\nown\nmore\ntoo\n"];
        assert_eq!(place.content(), kept[usize::from(mode == "sync")]);
        // Rights that a write takes away.
        let rights = std::os::unix::fs::PermissionsExt::from_mode;
        fs::set_permissions(&file, rights(0o4700)).expect("chmod");
        program.answers(&[("o0 a", refused("EPERM"))]);
        program.tell("c0");
        fs::set_permissions(&file, rights(0o600)).expect("chmod");
        if std::os::unix::fs::chown(&file, Some(NOBODY), None).is_ok() {
            program.answers(&[("o0 a", refused("EPERM"))]);
            program.tell("c0");
        } else {
            println!("skipped: not root, so no file of another user");
        }
        assert_eq!(place.content(), kept[usize::from(mode == "sync")]);
        fs::remove_file(&file).expect("remove");
    }
}

/// A child of `vfork` that could not execute anything and calls `exit` runs its parent's destructors. The parent goes on, and
/// so does what its mode promises.
#[test]
fn a_promise_does_not_end_with_a_child_of_vfork() {
    in_each_mode("vforked_exit", |place, mode, program| {
        program.answers(&[("q", "done"), ("o0 a", "done"), ("w0 one", "done")]);
        let reader = fs::File::open(place.file()).expect("the file");
        program.answers(&[("w0 two", "EBUSY")]);
        drop(reader);
        program.answers(&[("w0 three", "done"), ("c0", "done")]);
        assert_eq!(place.content(), "one\nthree\n", "mode {mode}");
    });
}

/// To close one of two descriptors by the call's number takes nothing away from the other one.
#[test]
fn a_copy_keeps_its_promise_when_the_other_one_is_closed_by_number() {
    in_each_mode("closed_by_number", |place, mode, program| {
        program.answers(&[("o0 a", "done"), ("w0 one", "done"), ("b0", "done")]);
        program.answers(&[("w0 two", "EOPNOTSUPP"), ("c0", "done")]);
        assert_eq!(place.content(), "one\n", "mode {mode}");
    });
}

/// What was staged when it was opened may not be so later. The write then fails, as it does where the pool is full,
/// and happens when nothing speaks against it any more.
#[test]
fn a_promise_is_not_weakened_behind_the_programs_back() {
    in_each_mode("weakened", |place, mode, program| {
        program.answers(&[("o0 a", "done"), ("w0 one", "done")]);
        let reader = fs::File::open(place.file()).expect("the file");
        program.answers(&[("w0 two", "EBUSY"), ("t0", "EBUSY"), ("w0 two", "EBUSY")]);
        assert_eq!(place.content(), "one\n", "mode {mode}");
        drop(reader);
        program.answers(&[("w0 three", "done"), ("d0", "done")]);
        // A duplicate was the kernel's to serve, and the description is the kernel's since.
        program.answers(&[("w0 four", "EOPNOTSUPP"), ("t0", "EOPNOTSUPP")]);
        program.answers(&[("c0", "done"), ("o0 a", "done"), ("w0 five", "done")]);
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), "one\nthree\nfive\n", "mode {mode}");
    });
}

/// Where the kernel keeps the promise it does.
#[test]
fn a_promise_that_the_kernel_keeps_is_its_to_keep() {
    let Some(place) = Place::new("weakened-sync") else {
        return;
    };
    place.compile("required");
    let mut program = Told::start(&place, "sync", &place.file());
    program.answers(&[("o0 a", "done"), ("w0 one", "done")]);
    let reader = fs::File::open(place.file()).expect("the file");
    program.answers(&[("w0 two", "done"), ("d0", "done"), ("w0 three", "done")]);
    drop(reader);
    program.answers(&[("w0 four", "done"), ("c0", "done")]);
    assert_eq!(place.content(), "one\ntwo\nthree\nfour\n");
}

/// How `required` opens a file and cuts it.
const CUTTING: [&str; 10] = ["c", "C", "n", "m", "w", "W", "2", "3", "f", "F"];

/// A file that is written anew is what it was, or what it was made, also when the power fails in between.
#[test]
fn what_an_open_cuts_is_part_of_the_transaction() {
    let Some(place) = Place::new("cuts") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    let size = || fs::metadata(&file).expect("the file").len();
    // No crash leaves anything of memory.
    let old = if scratch::is_tmpfs() { 0 } else { 8 };
    let starts = [Told::willing, Told::start].into_iter();
    for (start, how) in starts.flat_map(|start| CUTTING.map(|how| (start, how))) {
        fs::write(&file, "old\nold\n").expect("the file");
        let mut program = start(&place, "atomic", &file);
        let open = format!("O0 {how}");
        program.answers(&[(&open, "done")]);
        assert_eq!(size(), old, "{how}: opened");
        program.answers(&[("w0 new", "done")]);
        assert!(place.is_leased(), "{how}");
        assert_eq!(size(), old, "{how}: written");
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), "new\n", "{how}");
        fs::remove_file(&file).expect("remove");
        program.answers(&[(&open, "done"), ("w0 a", "done"), ("c0", "done")]);
        assert_eq!(place.content(), "a\n", "{how}: new");
    }
}

/// Where it cannot be, the kernel cuts; and of an empty file, which `make` knows by its time, it is the time.
#[test]
fn what_an_open_cuts_is_cut_whoever_cuts_it() {
    let Some(place) = Place::new("cuts-otherwise") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1000);
    for how in CUTTING {
        fs::write(&file, "old\nold\n").expect("the file");
        let reader = fs::File::open(&file).expect("the file");
        let mut program = Told::willing(&place, "atomic", &file);
        let open = format!("O0 {how}");
        program.answers(&[(&open, "done")]);
        assert_eq!(place.content(), "", "{how}: somebody reads");
        drop(reader);
        program.answers(&[("w0 b", "done"), ("c0", "done")]);
        assert_eq!(place.content(), "b\n", "{how}: after a reader");
        let empty = fs::File::create(&file).expect("the file");
        empty.set_modified(long_ago).expect("its time");
        drop(empty);
        program.answers(&[(&open, "done"), ("c0", "done")]);
        let modified = fs::metadata(&file).expect("the file").modified();
        assert!(modified.expect("its time") > long_ago, "{how}: its time");
    }
}

/// Whether a new block's size is on the medium before the block is: then mode `strict` leaves nothing to the kernel.
fn sizes_come_early() -> bool {
    const EXT4: u64 = 0xef53;
    let place = scratch::place();
    let fs = rustix::fs::statfs(std::os::unix::ffi::OsStrExt::as_bytes(place.as_os_str()));
    !scratch::is_memory() && fs.expect("its file system").f_type as u64 == EXT4
}

/// What the kernel does as well as the mode promises it does, and a file of one page is not staged for that; from the
/// first write on that has to be whole across blocks, or begins inside one behind a page cache, it is.
#[test]
fn the_first_blocks_are_the_kernels() {
    let Some(place) = Place::new("blocks") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    let within = scratch::is_memory();
    // Of what is on tmpfs nothing is left by a crash that the kernel has and that is not committed.
    let volatile = scratch::is_tmpfs();
    let modes: &[_] = if volatile {
        &["sync", "strict", "atomic"]
    } else {
        &["sync", "strict"]
    };
    for mode in modes.iter().copied() {
        let _ = fs::remove_file(&file);
        let words = format!("{mode} ADIT_KERNEL_BLOCKS=2");
        let mut program = Told::willing(&place, &words, &file);
        program.answers(&[("o0", "done"), ("w0 one", "done")]);
        let early = mode == "strict" && sizes_come_early();
        assert_eq!(place.is_leased(), early, "{mode}: a block");
        if !early {
            assert_eq!(place.content(), "one\n", "mode {mode}");
        }
        program.answers(&[("w0 two", "done")]);
        let second = mode == "strict" && !within;
        assert_eq!(place.is_leased(), second, "{mode}: inside of it");
        // More than staging costs.
        program.answers(&[("w0 six", "done"), ("w0 end", "done")]);
        assert!(place.is_leased(), "{mode}: staged");
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), "one\ntwo\nsix\nend\n", "mode {mode}");
        // An overwrite is no append, which only mode strict minds, and a cut no write.
        for (what, leased) in [("w0 new", mode == "strict"), ("t0", true)] {
            fs::write(&file, "old\nold\n").expect("the file");
            let mut program = Told::willing(&place, &words, &file);
            program.answers(&[("o0", "done"), (what, "done")]);
            assert_eq!(place.is_leased(), leased, "{mode}: {what}");
            program.answers(&[("c0", "done")]);
        }
    }
    // A single byte is whole, but may be one that nobody wrote.
    let _ = fs::remove_file(&file);
    let mut program = Told::willing(&place, "strict ADIT_KERNEL_BLOCKS=2", &file);
    program.answers(&[("o0", "done"), ("w0 ", "done")]);
    assert_eq!(place.is_leased(), sizes_come_early(), "a byte");
    program.answers(&[("c0", "done")]);
    assert_eq!(place.content(), "\n");
    // What is not committed must not be in the file; and what is required begins with the open.
    let required = "strict ADIT_KERNEL_BLOCKS=2 ADIT_REQUIRE=1";
    let atomic = (!volatile).then_some("atomic ADIT_KERNEL_BLOCKS=2");
    for words in atomic.into_iter().chain([required]) {
        let _ = fs::remove_file(&file);
        let mut program = Told::willing(&place, words, &file);
        program.answers(&[("o0", "done"), ("w0 one", "done")]);
        assert!(place.is_leased(), "{words}");
        if words.ends_with("REQUIRE=1") {
            let reader = fs::File::open(&file).expect("the file");
            program.answers(&[("w0 two", "EBUSY")]);
            drop(reader);
        }
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), "one\n", "{words}");
    }
}

/// Where none has to be whole they may be appends with `O_APPEND` as well, and come behind what others have written.
#[test]
fn the_first_blocks_may_be_at_whatever_end_there_is() {
    let Some(place) = Place::new("ends") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    for (mode, few) in [
        ("sync", true),
        ("atomic", scratch::is_tmpfs()),
        ("strict", false),
    ] {
        let _ = fs::remove_file(&file);
        let words = format!("{mode} ADIT_KERNEL_BLOCKS=2");
        let mut program = Told::willing(&place, &words, &file);
        program.answers(&[("o0 a", "done"), ("w0 one", "done")]);
        assert_eq!(place.is_leased(), !few, "{mode}");
        if few {
            let mut other = fs::OpenOptions::new().append(true).open(&file).expect("it");
            other.write_all(b"other\n").expect("an append");
            drop(other);
            program.answers(&[("w0 two", "done")]);
            assert!(!place.is_leased(), "{mode}: the second");
            assert_eq!(place.content(), "one\nother\ntwo\n", "{mode}");
            program.answers(&[("w0 six", "done")]);
            assert!(place.is_leased(), "{mode}: the third");
        }
        program.answers(&[("c0", "done")]);
        let written = if few {
            "one\nother\ntwo\nsix\n"
        } else {
            "one\n"
        };
        assert_eq!(place.content(), written, "{mode}");
    }
}

/// There are as many as docs/posix.md says, whatever is asked for.
#[test]
fn so_many_first_blocks_are_the_kernels() {
    let Some(place) = Place::new("most") else {
        return;
    };
    place.compile("required");
    let most = match scratch::medium() {
        adit_pmem::MediumKind::Ram => 256,
        adit_pmem::MediumKind::Dax => 2,
        _ => 16,
    };
    let mut program = Told::willing(&place, "sync ADIT_KERNEL_BLOCKS=1000", &place.file());
    program.answers(&[("o0", "done")]);
    for written in 1..=most {
        program.answers(&[("w0 one", "done")]);
        assert!(!place.is_leased(), "after {written} of {most}");
    }
    program.answers(&[("w0 end", "done")]);
    assert!(place.is_leased(), "after {most}");
    program.answers(&[("c0", "done")]);
    assert_eq!(place.content(), "one\n".repeat(most) + "end\n");
}

/// Such a write waits for the disk, as a staged one does.
#[test]
fn the_kernels_blocks_are_durable() {
    let Some(place) = Place::new("dsync") else {
        return;
    };
    let program = place.compile("rights");
    if !has_strace() {
        return;
    }
    let modes = if sizes_come_early() {
        &["sync"][..]
    } else {
        &["sync", "strict"]
    };
    for mode in modes {
        let words = format!("{mode} ADIT_KERNEL_BLOCKS=1");
        run(place
            .tracing(&program, &words, "pwritev2,pwrite64,write")
            .args([
                "setgid".as_ref(),
                place.file().as_os_str(),
                "/pool".as_ref(),
            ]));
        let trace = place.trace();
        let first = trace.lines().find(|line| line.contains("before"));
        let first = first.unwrap_or_else(|| panic!("{trace}"));
        assert!(first.contains("RWF_DSYNC"), "{mode}: {first}");
    }
}

/// What is reserved, made longer, or written by a call's number comes through the pool as any write does. Each of these
/// left the file to the kernel: its bytes were neither whole after a crash nor durable, and the next write was refused.
#[test]
fn room_and_numbers_are_served() {
    let Some(place) = Place::new("room") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    let all = [
        ("o0", "done"),
        ("w0 one", "done"),
        ("p0 k", "done"),
        ("p0 l", "done"),
        ("n0 two", "done"),
        ("N0 six", "done"),
        ("p0 n", "done"),
        ("x0 ten", "done"),
    ];
    for mode in ATOMIC {
        let _ = fs::remove_file(&file);
        let mut program = Told::start(&place, mode, &file);
        program.answers(&all);
        // Of bytes that the kernel takes out nothing is promised.
        program.answers(&[("p0 h", "EOPNOTSUPP")]);
        // Nor of what is written with flags.
        program.answers(&[("X0 no", "EOPNOTSUPP"), ("Y0 no", "EOPNOTSUPP")]);
        program.answers(&[("w0 end", "done"), ("c0", "done")]);
        let whole = "one\ntwo\nsix\nten\nend\n\0\0\0\0";
        assert_eq!(place.content(), whole, "mode {mode}");
    }
    for mode in MODES {
        let _ = fs::remove_file(&file);
        let mut program = Told::willing(&place, mode, &file);
        program.answers(&all);
        program.answers(&[("p0 h", "done"), ("w0 end", "done"), ("c0", "done")]);
        let whole = "\0\0\0\0two\nsix\nten\nend\n\0\0\0\0";
        assert_eq!(place.content(), whole, "mode {mode}");
    }
}

/// What the kernel writes in a call of six arguments that was asked for by its number is durable when the call returns, as
/// under its name; and what it was asked for is what it does. Each of these left both files to the kernel, and the write
/// or copy in its page cache.
#[test]
fn numbers_of_six_arguments_are_durable() {
    let Some(place) = Place::new("six") else {
        return;
    };
    let program = place.compile("six");
    if !has_strace() {
        return;
    }
    for mode in MODES {
        let calls = "pwritev2,copy_file_range,splice,fdatasync";
        let said = run(place.tracing(&program, mode, calls).arg(place.file()));
        let trace = place.trace();
        let durable = ["sync", "strict"].contains(&mode);
        let is_of = |line: &str, call, path| line.contains(call) && line.contains(path);
        for (call, path) in [
            ("pwritev2", "file>"),
            ("copy_file_range", "file.copy>"),
            ("splice", "file.spliced>"),
        ] {
            let mut lines = trace.lines();
            let made = lines.find(|line| is_of(line, call, path));
            let made = made.unwrap_or_else(|| panic!("{mode}, {call}: {trace}"));
            let next = lines.next().unwrap_or_default();
            let waits = made.contains("RWF_DSYNC") || is_of(next, "fdatasync", path);
            assert_eq!(waits, durable, "{mode}, {call}: {trace}");
        }
        let said = String::from_utf8_lossy(&said.stdout);
        assert_eq!(said, "flags EINVAL, leased 1, behind end\n", "mode {mode}");
    }
}

/// libc writes formatted text by itself, without a slot of a served stream or with one, and what it has written is durable
/// when it returns.
#[test]
fn formatted_text_is_durable() {
    let Some(place) = Place::new("formats") else {
        return;
    };
    let program = place.compile("formats");
    let plain = run(place.command(&program, None).arg(place.file()));
    let whole = place.content();
    if !has_strace() {
        return;
    }
    for mode in ALL {
        let calls = "write,pwritev2,fdatasync";
        let said = run(place.tracing(&program, mode, calls).arg(place.file()));
        assert_eq!(said.stdout, plain.stdout, "mode {mode}");
        assert_eq!(place.content(), whole, "mode {mode}");
        let trace = place.trace();
        let durable = ["sync", "strict"].contains(&mode);
        for name in ["dprintf ", "dprintf_chk ", "vdprintf ", "vdprintf_chk "] {
            let mut lines = trace.lines().filter(|line| line.contains("file>"));
            let made = lines.find(|line| line.contains(&format!("\"{name}")));
            let made = made.unwrap_or_else(|| panic!("{mode}, {name}: {trace}"));
            let waits = made.contains("RWF_DSYNC")
                || lines.next().is_some_and(|line| line.contains("fdatasync"));
            assert_eq!(waits, durable, "{mode}, {name}: {trace}");
        }
    }
}

/// A file whose rights or times the program sets is staged again: SQLite and git do that to files that they are about
/// to write.
#[test]
fn rights_and_times_may_be_set() {
    in_each_mode("rights", |place, mode, program| {
        program.answers(&[("o0 a", "done")]);
        for what in ["h0", "H", "e0", "E"] {
            program.answers(&[(what, "done"), ("w0 text", "done")]);
            assert!(place.is_leased(), "mode {mode}, {what}");
        }
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), "text\n".repeat(4), "mode {mode}");
    });
}

fn beside(place: &Place, what: &str) -> PathBuf {
    let mut name = place.file().into_os_string();
    name.push(format!(".{what}"));
    name.into()
}

/// What the kernel would copy into a file is not what the mode promises. The program is told so in words that make it
/// write, and the file stays staged.
#[test]
fn the_kernel_copies_nothing_into_it() {
    let Some(place) = Place::new("copies") else {
        return;
    };
    place.compile("required");
    fs::write(beside(&place, "source"), "copy\n").expect("the source");
    for mode in ATOMIC {
        let _ = fs::remove_file(place.file());
        let mut program = Told::start(&place, mode, &place.file());
        program.answers(&[("o0 w", "done")]);
        let ways = [
            ("r", "EXDEV"),
            ("s", "EINVAL"),
            ("p", "EINVAL"),
            ("c", "EOPNOTSUPP"),
            ("g", "EOPNOTSUPP"),
            ("z", "done"),
            ("d", "EISDIR"),
            ("b", "EBADF"),
            ("f", "EINVAL"),
        ];
        for (how, answer) in ways {
            program.answers(&[(&format!("v0 {how}"), answer)]);
            assert!(place.is_leased(), "mode {mode}, {how}");
            program.answers(&[("w0 text", "done")]);
        }
        // It may read it.
        for how in ["r", "R", "s", "S", "p"] {
            program.answers(&[
                (&format!("V0 {how}"), refused_into(how)),
                ("w0 text", "done"),
            ]);
            assert!(place.is_leased(), "mode {mode}, {how}");
        }
        program.answers(&[("c0", "done")]);
        assert_eq!(
            place.content(),
            "text\n".repeat(ways.len() + 5),
            "mode {mode}"
        );
        // Where the kernel serves the program as it is, it copies as well.
        program.answers(&[
            ("o0 w", "done"),
            ("u", "done"),
            ("v0 r", "done"),
            ("v0 s", "done"),
        ]);
    }
}

/// What is copied is written to another file that must be staged.
fn refused_into(how: &str) -> &'static str {
    match how {
        "r" | "R" => "EXDEV",
        "s" | "S" => "EINVAL",
        _ => "done",
    }
}

/// A copy of the kernel's, into it or out of it, and one that fails, takes the file away for that call alone.
#[test]
fn a_file_is_staged_again_behind_a_copy() {
    let Some(place) = Place::new("copied") else {
        return;
    };
    place.compile("required");
    fs::write(beside(&place, "source"), "copy\n").expect("the source");
    // Whole blocks alone can be shared, where any can: the kernel says which error that is.
    let cloned = {
        let mut plain = Told::plainly(&place, &place.file());
        plain.answers(&[("o0 w", "done"), ("w0 text", "done"), ("w0 text", "done")]);
        plain.tell("v0 c")
    };
    assert!(
        ["EINVAL", "EOPNOTSUPP"].contains(&cloned.as_str()),
        "{cloned}"
    );
    // In a process of its own: what is open here when another test starts a program, that has open for a moment.
    let read = |path: PathBuf| {
        let read = Command::new("cat").arg(path).output().expect("cat");
        String::from_utf8(read.stdout).expect("text")
    };
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let mut program = Told::willing(&place, mode, &place.file());
        program.answers(&[("o0 w", "done"), ("w0 text", "done")]);
        let mut wanted = "text\n".to_owned();
        let ways = [
            ("r", "done"),
            ("s", "done"),
            ("p", "done"),
            ("z", "done"),
            ("c", cloned.as_str()),
            ("g", cloned.as_str()),
            ("d", "EISDIR"),
            ("b", "EBADF"),
            ("f", "EINVAL"),
        ];
        for (how, answer) in ways {
            program.answers(&[(&format!("v0 {how}"), answer)]);
            if "rsp".contains(how) {
                wanted.push_str("copy\n");
            }
            assert_eq!(read(place.file()), wanted, "mode {mode}, {how}");
            program.answers(&[("w0 text", "done")]);
            assert!(place.is_leased(), "mode {mode}, into it by {how}");
            wanted.push_str("text\n");
        }
        for how in ["r", "R", "s", "S", "p"] {
            program.answers(&[(&format!("V0 {how}"), "done")]);
            assert_eq!(read(beside(&place, "copy")), wanted, "mode {mode}, {how}");
            program.answers(&[("w0 text", "done")]);
            assert!(place.is_leased(), "mode {mode}, out of it by {how}");
            wanted.push_str("text\n");
        }
        // While the kernel copies into it, what another thread writes is the kernel's as well.
        program.answers(&[("B0", "done"), ("w0 text", "done")]);
        assert!(place.is_leased(), "mode {mode}, two threads");
        wanted.push_str("copy\ntext\ntext\n");
        program.answers(&[("c0", "done")]);
        assert_eq!(place.content(), wanted, "mode {mode}");
    }
}

/// What the program opens as a stream, or makes a stream of, is staged again with the next write; and a call that fails
/// changes nothing.
#[test]
fn a_file_is_staged_again_behind_a_stream() {
    let Some(place) = Place::new("behind") else {
        return;
    };
    place.compile("required");
    for mode in MODES {
        for flags in ["o0 w", "o0 wa"] {
            let _ = fs::remove_file(place.file());
            let mut program = Told::start(&place, mode, &place.file());
            program.answers(&[(flags, "done"), ("w0 one", "done"), ("F0", "done")]);
            program.answers(&[("w0 two", "done")]);
            assert!(place.is_leased(), "mode {mode}, {flags}: opened");
            program.answers(&[("D0", "EBADF"), ("w0 three", "done")]);
            assert!(place.is_leased(), "mode {mode}, {flags}: in vain");
            let mut wanted = "one\ntwo\nthree\n".to_owned();
            // A stream that makes it append is the kernel's.
            if flags == "o0 wa" {
                program.answers(&[("A0 four", "done"), ("w0 five", "done")]);
                assert!(place.is_leased(), "mode {mode}, {flags}: a stream of it");
                wanted.push_str("four\nfive\n");
            }
            drop(program);
            wait_for("all of it", || place.content() == wanted);
        }
    }
}

/// What the kernel has copied is as durable as what it writes.
#[test]
fn what_was_copied_is_durable_when_the_call_returns() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("durable-copies") else {
        return;
    };
    let program = place.compile("required");
    fs::write(beside(&place, "source"), "copy\n").expect("the source");
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let mut command = place.tracing(&program, mode, "copy_file_range,fdatasync");
        command
            .arg(place.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = command.spawn().expect("timeout(1)");
        let mut told = child.stdin.take().expect("a pipe");
        let lines = b"o0 w\nw0 text\nv0 r\nc0\n";
        told.write_all(lines).expect("its input");
        drop(told);
        assert!(child.wait().expect("wait").success());
        assert_eq!(place.content(), "text\ncopy\n", "mode {mode}");
        let trace = place.trace();
        let mut behind = trace
            .lines()
            .skip_while(|line| !line.contains("copy_file_range("));
        assert!(behind.next().is_some(), "mode {mode}: {trace}");
        let synced = behind.any(|line| line.contains("fdatasync(") && line.contains("/file>"));
        assert_eq!(synced, mode != "atomic", "mode {mode}: {trace}");
    }
}

/// Programs that copy files ask the kernel first, between two file systems and within one.
#[test]
fn programs_that_copy_files_write_them() {
    let places = [Place::new("programs"), Place::on_disk("programs-disk")];
    for place in places.into_iter().flatten() {
        let elsewhere = match &place.disk {
            Some(_) => place.dir.clone(),
            None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        };
        let within = place.file().parent().expect("a directory").to_owned();
        let text = lines("copied", 20_000);
        for (mode, dir) in ATOMIC
            .into_iter()
            .flat_map(|mode| [(mode, &within), (mode, &elsewhere)])
        {
            let source = dir.join(format!("source-{}", std::process::id()));
            for program in ["cp", "install", "mv"] {
                fs::write(&source, &text).expect("the source");
                let _ = fs::remove_file(place.file());
                let mode = format!("{mode} ADIT_REQUIRE=1");
                let mut command = place.command(Path::new(program), Some(&mode));
                let done = command.args([&source, &place.file()]).output();
                let done = done.expect("timeout(1)");
                let _ = fs::remove_file(&source);
                assert!(done.status.success(), "{program}, mode {mode}: {done:?}");
                assert!(place.content() == text, "{program}, mode {mode}");
            }
        }
    }
}

/// Of a file without a name no crash leaves anything: nothing is promised of it, so nothing is refused, and no write
/// waits for a disk.
#[test]
fn what_has_no_name_needs_no_promise() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("nameless") else {
        return;
    };
    let program = place.compile("required");
    let ways = ["o0 T w0", "o0 y w0", "o0 a u w0", "o0 a w0 u w0 w0 t0 w0"];
    for (mode, way) in ATOMIC
        .into_iter()
        .flat_map(|mode| ways.map(|way| (mode, way)))
    {
        let mut program = Told::start(&place, mode, &place.file());
        for word in way.replace("o0 ", "o0_").split(' ') {
            let line = word.replace('_', " ");
            let line = if line.starts_with('w') {
                format!("{line} text")
            } else {
                line
            };
            program.answers(&[(&line, "done")]);
        }
        program.answers(&[("c0", "done")]);
    }
    for (mode, linkable) in ["sync", "strict"]
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let mut command = place.tracing(&program, mode, "write,pwritev2,fsync,fdatasync,ftruncate");
        command
            .arg(place.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = command.spawn().expect("timeout(1)");
        let how = if linkable { "o0 t" } else { "o0 T" };
        let lines = format!("{how}\nw0 text\nt0\nw0 more\nc0\no0 a\nu\nw0 text\nt0\nc0\n");
        let told = child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(lines.as_bytes());
        told.expect("its input");
        assert!(child.wait().expect("wait").success());
        let trace = place.trace();
        let waits = |line: &&str| line.contains("RWF_DSYNC") || line.contains("sync(");
        let waited = trace
            .lines()
            .filter(|line| line.contains("deleted"))
            .filter(waits)
            .count();
        assert_eq!(waited, if linkable { 3 } else { 0 }, "mode {mode}: {trace}");
    }
}

/// Without a monitor nothing can be staged.
#[test]
fn without_a_monitor_nothing_is_opened() {
    let Some(mut place) = Place::new("unwatched") else {
        return;
    };
    place.compile("required");
    let file = place.file();
    let mut before = Told::start(&place, "strict", &file);
    before.answers(&[("o0 a", "done"), ("w0 one", "done")]);
    place.end_monitor();
    // It was taken away, with everything in it.
    before.answers(&[("w0 two", "ECONNREFUSED")]);
    assert_eq!(place.content(), "one\n");
    for mode in ATOMIC {
        let mut program = Told::start(&place, mode, &file);
        program.answers(&[("o0 a", "ECONNREFUSED"), ("o0 r", "done")]);
    }
    Told::start(&place, "sync", &file).answers(&[("o0 a", "done"), ("w0 two", "done")]);
    assert_eq!(place.content(), "one\ntwo\n");
}

/// A pool that can be used again is, by programs that were refused before: after some seconds.
#[test]
fn a_pool_that_was_repaired_is_found() {
    let Some(place) = Place::new("repaired") else {
        return;
    };
    place.compile("required");
    fs::write(place.pool(), "no pool").expect("a file");
    let mut program = Told::start(&place, "strict", &place.file());
    program.answers(&[("o0 a", "ENXIO"), ("o0 a", "ENXIO")]);
    fs::remove_file(place.pool()).expect("remove");
    wait_for("the pool", || {
        std::thread::sleep(Duration::from_millis(500));
        program.tell("o0 a") == "done"
    });
    program.answers(&[("w0 one", "done"), ("c0", "done")]);
    assert_eq!(place.content(), "one\n");
}

/// Files on what Adit does not serve: a union of directories stands for all of these, as it needs no server.
#[test]
fn media_that_are_not_served_are_refused() {
    let Some(place) = Place::new("unserved") else {
        return;
    };
    place.compile("required");
    for name in ["lower", "upper", "work", "union"] {
        fs::create_dir(place.dir.join(name)).expect("a directory");
    }
    let dir = place.dir.display();
    let mount = format!(
        "mount -t overlay -o lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work none {dir}/union \
         && exec \"$@\""
    );
    // Root needs no namespace of users for it, which it cannot have everywhere (below chroot).
    let root = rustix::process::geteuid().is_root();
    let own = if root { "-m" } else { "-rm" };
    let words = ["unshare", own, "sh", "-c", &mount, "sh"];
    let possible = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !possible.is_ok_and(|done| done.status.success()) {
        println!("skipped: no overlay file system can be mounted");
        return;
    }
    let file = place.dir.join("union/file");
    for mode in ATOMIC {
        let mut program = Told::within(&place, mode, &file, &words);
        program.answers(&[("o0 a", "EOPNOTSUPP"), ("o0 r", "done")]);
    }
    let mut program = Told::within(&place, "sync", &file, &words);
    program.answers(&[("o0 a", "done"), ("w0 one", "done"), ("c0", "done")]);
    drop(program);
    let upper = fs::read_to_string(place.dir.join("upper/file"));
    assert_eq!(upper.expect("the file"), "one\n");
}

/// A pool has room for the names of so many files; the next one is refused, and those before keep theirs.
#[test]
fn more_files_than_the_pool_has_names_for_are_refused() {
    let Some(place) = Place::new("names") else {
        return;
    };
    place.compile("required");
    let (_, command) = built().expect("built");
    let pool = place.dir.join("small");
    let created = Command::new(command)
        .args(["pool", "create", "--size", "16M"])
        .arg(&pool)
        .output();
    assert!(created.expect("adit pool create").status.success());
    let mode = format!("strict ADIT_POOL={}", pool.display());
    let mut program = Told::start(&place, &mode, &place.file());
    let said = program.tell("m 9000");
    let (opened, error) = said.split_once(' ').expect("two words");
    let opened: usize = opened.parse().expect("a number");
    assert_eq!(error, "ENOSPC");
    assert!(opened > 100, "only {opened} files were staged");
    drop(program);
    for number in 0..opened {
        let name = format!("{}.{number}", place.file().display());
        assert_eq!(fs::read_to_string(&name).expect("a file"), name);
    }
}
