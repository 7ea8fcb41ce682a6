//! Files that are written before the library's own start, and streams that get another file.

use super::declared::REQUIRED;
use super::*;

/// Compiles one of the C files here, which may be a library and what goes with it.
fn compile(name: &str, arguments: &[&str], out: &Path, with: &[&Path]) {
    let source = format!("{}/tests/staged/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("gcc");
    command.args(["-O1", "-w", "-pthread"]).args(arguments);
    let status = command.arg("-o").arg(out).arg(&source).args(with).status();
    assert!(status.expect("gcc").success(), "{source}");
}

/// A library whose constructor runs before ours, writes to files in every way and leaves some open: it leaves
/// what it leaves plainly, and what it has opened is served as far as anything is at that time.
#[test]
fn constructors_that_run_first_may_write() {
    let Some(place) = Place::new("early") else {
        return;
    };
    let library = place.dir.join("libearly.so");
    let program = place.dir.join("early");
    compile("early", &["-DLIBRARY", "-shared", "-fPIC"], &library, &[]);
    compile("early", &[], &program, &[&library]);
    let early = library.display().to_string();
    let ours = place.library.display().to_string();
    let plain = place.leaves(&program, &place.dir, "-", None, &[&early]);
    assert_eq!(plain.files.len(), 5, "{plain:?}");
    assert!(plain.status.ends_with(": 0"), "{plain:?}");
    for mode in MODES {
        for preload in [[&ours, &early], [&early, &ours]] {
            let adit = place.leaves(&program, &place.dir, "-", Some(mode), &preload);
            assert_eq!(adit, plain, "mode {mode}, {preload:?}");
            assert!(adit.staged, "mode {mode}, {preload:?}: nothing was staged");
        }
    }
}

/// A library beneath the program, with handlers of forks that were registered before our constructor ran, and one that is
/// to find libc before us: what both write lies where it lies plainly, and nobody waits for ever.
#[test]
fn libraries_beneath_the_program_are_served() {
    let Some(place) = Place::new("beneath") else {
        return;
    };
    let library = place.dir.join("libbeneath.so");
    let programs = ["loads", "linked"].map(|name| place.dir.join(name));
    compile("beneath", &["-DLIBRARY", "-shared", "-fPIC"], &library, &[]);
    compile("beneath", &[], &programs[0], &[]);
    compile("beneath", &["-DLINKED"], &programs[1], &[&library]);
    for program in &programs {
        let left = |mode: Option<&str>| {
            let _ = fs::remove_file(place.file());
            let mut command = place.command(program, mode);
            let output = run(command.arg(place.file()).arg(&library));
            (output.status.code(), output.stdout, place.content())
        };
        let plain = left(None);
        assert_eq!(plain.0, Some(0), "{plain:?}");
        for mode in ALL {
            assert_eq!(left(Some(mode)), plain, "mode {mode}, {program:?}");
        }
    }
}

/// What a program, or a library that stands between it and libc, finds of libc by a handle.
#[test]
fn what_a_handle_of_libc_finds_is_served() {
    let Some(place) = Place::new("handles") else {
        return;
    };
    let between = place.dir.join("libbetween.so");
    let programs = ["handles", "behind"].map(|name| place.dir.join(name));
    compile("handles", &["-DLIBRARY", "-shared", "-fPIC"], &between, &[]);
    compile("handles", &[], &programs[0], &[]);
    compile(
        "handles",
        &["-Wl,--no-as-needed"],
        &programs[1],
        &[&between],
    );
    for program in &programs {
        let plain = place.leaves(program, &place.dir, "-", None, &[]);
        assert!(plain.status.ends_with(": 0"), "{plain:?}");
        for mode in MODES {
            let adit = place.leaves(program, &place.dir, "-", Some(mode), &[]);
            assert_eq!(adit, plain, "mode {mode}, {program:?}");
            assert!(adit.staged, "mode {mode}, {program:?}: nothing was staged");
        }
    }
}

/// Of a library that is not there the program is told whatever it has called since, and for the first time.
#[test]
fn what_a_program_did_not_find_is_told_after_other_calls() {
    let Some(place) = Place::new("missing") else {
        return;
    };
    let program = place.dir.join("missing");
    compile("missing", &[], &program, &[]);
    let said = |mode: Option<&str>| {
        let mut command = place.command(&program, mode);
        String::from_utf8(run(command.arg(place.file())).stdout).expect("text")
    };
    let plain = said(None);
    assert_eq!(plain.matches("libmissing").count(), 8, "{plain}");
    for mode in ALL {
        assert_eq!(said(Some(mode)), plain, "mode {mode}");
    }
}

/// What libc has since 2.43 is called, and is a cancellation point as every open is.
#[test]
fn a_thread_is_cancelled_in_openat2() {
    let Some(place) = Place::new("cancelled") else {
        return;
    };
    let (library, program) = (place.dir.join("libopens.so"), place.dir.join("cancelled"));
    let arguments = ["-DLIBRARY", "-shared", "-fPIC"];
    compile("cancelled", &arguments, &library, &[]);
    compile("cancelled", &[], &program, &[&library]);
    for mode in MODES {
        // In mode `atomic` a cut is a part of the transaction: there is something to be cut.
        fs::write(place.file(), "what was there before").expect("the file");
        let mut command = place.command(&program, Some(mode));
        let output = run(command.arg(place.dir.join("fifo")).arg(place.file()));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "cancelled 1, staged 1, short, longer 1, called 3 times\n",
            "mode {mode}"
        );
    }
}

/// Plugins that are loaded for themselves alone call what is linked to them, whatever this library has of the same name.
#[test]
fn plugins_call_their_own_libraries() {
    let Some(place) = Place::new("plugins") else {
        return;
    };
    let program = place.compile("plugins");
    let plugins = ["1", "2"].map(|number| {
        let [engine, plugin] = ["engine", "plugin"].map(|name| {
            let name = format!("lib{name}{number}.so");
            place.dir.join(name)
        });
        let define = format!("-DENGINE={number}");
        let shared = ["-shared", "-fPIC"];
        compile("plugins", &[&define, shared[0], shared[1]], &engine, &[]);
        let own = ["-DPLUGIN", shared[0], shared[1]];
        compile("plugins", &own, &plugin, &[&engine]);
        plugin
    });
    let said = |mode| {
        let output = run(place.command(&program, mode).args(&plugins));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let plain = said(None);
    assert_eq!(plain, "-1 41 -\n-2 42 -\n-1 41 -\n-2 42 -\n");
    for mode in ALL {
        assert_eq!(said(Some(mode)), plain, "mode {mode}");
    }
}

/// `freopen` over a stream whose file is staged: what was buffered and staged is the old file's, and what follows
/// the new one's, whatever the two are.
#[test]
fn streams_get_other_files() {
    let Some(place) = Place::new("freopens") else {
        return;
    };
    let program = place.compile("freopens");
    let plain = place.leaves(&program, &place.dir, "-", None, &[]);
    assert!(plain.status.ends_with(": 0"), "{plain:?}");
    for mode in MODES {
        let adit = place.leaves(&program, &place.dir, "-", Some(mode), &[]);
        assert_eq!(adit, plain, "mode {mode}");
        assert!(adit.staged, "mode {mode}: nothing was staged");
    }
}

/// Its place, and the program that leaves streams open.
fn streams(name: &str) -> Option<(Place, PathBuf)> {
    let place = Place::on_disk(name)?;
    let program = place.compile("streams");
    Some((place, program))
}

fn printed() -> String {
    (0..1000).map(|line| format!("line {line}\n")).collect()
}

/// What is left in a stream when its program ends is staged as all before it was, and durable with that.
#[test]
fn what_a_stream_is_left_with_is_no_afterthought() {
    if !has_strace() {
        return;
    }
    for mode in MODES {
        let Some((place, program)) = streams("streams-left") else {
            return;
        };
        fs::write(place.file(), "what was there before").expect("the file");
        let mut command = place.tracing(&program, mode, "write");
        run(command.args(["left", &place.file().display().to_string(), "w"]));
        assert_eq!(place.content(), printed(), "mode {mode}");
        let name = format!("{}>", place.file().display());
        let trace = place.trace();
        assert!(!trace.contains(&name), "mode {mode}: {trace}");
    }
}

/// Where it cannot be staged it is the kernel's, as nobody would hear of an error.
#[test]
fn what_a_child_is_left_with_is_written_somehow() {
    for mode in REQUIRED {
        let Some((place, program)) = streams("streams-child") else {
            return;
        };
        let mut command = place.command(&program, Some(mode));
        run(command.arg("child").arg(place.file()).arg("w"));
        assert_eq!(place.content(), printed(), "{mode}");
    }
}

/// Libc's own last flush goes to a declared file behind what others have staged of it.
#[test]
fn what_a_stream_is_left_with_is_behind_what_others_have_staged() {
    for mode in MODES {
        let Some((place, program)) = streams("streams-beside") else {
            return;
        };
        let (file, sharer) = (place.file(), place.compile("sharer"));
        fs::write(&file, "").expect("the file");
        let mode = format!("{mode} ADIT_PATH={}", file.with_file_name("").display());
        let mut other = Told::of(&mut place.command(&sharer, Some(&mode)));
        other.all_well(&[&format!("o0 rwa {}", file.display()), "w0 first "]);
        let mut command = place.command(&program, Some(&mode));
        command.arg("beside").arg(&file).arg("a");
        let mut left = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut said = BufReader::new(left.stdout.take().expect("its output"));
        said.read_line(&mut String::new()).expect("a line");
        // Now it knows how far what is staged goes, before that is published and more comes.
        assert!(other.tell("s0").starts_with("0 "));
        left.stdin
            .take()
            .expect("its input")
            .write_all(b"\n")
            .expect("a word");
        assert!(left.wait().expect("its end").success());
        other.all_well(&["w0 last", "f0"]);
        other.end();
        assert_eq!(
            place.content(),
            format!("first {}last", printed()),
            "{mode}"
        );
    }
}

/// A stream whose next file is refused has none, as where there is no such file.
#[test]
fn a_refused_stream_is_closed() {
    let Some((place, program)) = streams("streams-refused") else {
        return;
    };
    fs::write(place.file(), "").expect("the file");
    let mut command = place.command(&program, Some("strict ADIT_REQUIRE=1"));
    let said = run(command.arg("refused").arg(place.file())).stdout;
    assert_eq!(String::from_utf8_lossy(&said), "EOPNOTSUPP, free\n");
}

/// A file is not taken from those who have it by who would only make it, as it is by who cuts it.
#[test]
fn a_file_that_is_there_is_not_made_and_not_taken() {
    for (case, said, is_taken) in [("exclusive", "EEXIST", false), ("cut", "made", true)] {
        let Some(mut place) = Place::new("streams-exclusive") else {
            return;
        };
        place.end_monitor();
        place.monitor =
            Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
        let (file, sharer) = (place.file(), place.compile("sharer"));
        let program = place.compile("streams");
        fs::write(&file, "").expect("the file");
        let mode = format!("atomic ADIT_PATH={}", file.with_file_name("").display());
        let mut other = Told::of(&mut place.command(&sharer, Some(&mode)));
        other.all_well(&[&format!("o0 rw {}", file.display()), "w0 staged"]);
        assert!(place.is_leased());
        let mut command = place.command(&program, Some(&mode));
        let told = run(command.arg(case).arg(&file)).stdout;
        assert_eq!(String::from_utf8_lossy(&told), format!("{said}\n"));
        assert_eq!(place.is_leased(), !is_taken, "{case}");
        other.end();
    }
}
