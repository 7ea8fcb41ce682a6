//! Programs that the library must not be loaded into, executed by one that it is loaded into.

use super::*;

/// Builds the program under a name, with more words for the compiler.
fn build(place: &Place, name: &str, words: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/staged/stranger.c");
    let program = place.dir.join(name);
    let built = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(words)
        .status();
    assert!(built.expect("cc").success());
    program
}

/// A program of another C library is told by the name of its dynamic linker; this one's is glibc's own under such a
/// name, so that it runs, and would have the library loaded.
fn build_musl(place: &Place) -> PathBuf {
    let linker = place.dir.join("ld-musl-x86_64.so.1");
    let real = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let real = real
        .iter()
        .find(|path| Path::new(path).exists())
        .expect("a dynamic linker");
    std::os::unix::fs::symlink(real, &linker).expect("a link");
    let word = format!("-Wl,--dynamic-linker={}", linker.display());
    build(place, "musl", &[&word])
}

/// The calls that execute a program.
const CALLS: [&str; 14] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "SYS_execve",
    "SYS_execveat",
    "fexecve",
    "execveat",
    "posix_spawn",
    "posix_spawnp",
    "vfork",
];

#[test]
fn strangers_run_without_the_library() {
    let Some(place) = Place::new("strangers") else {
        return;
    };
    let own = place.compile("stranger");
    let musl = build_musl(&place);
    let go = build(&place, "go", &["-DGO"]);
    let script = place.dir.join("script");
    fs::write(&script, format!("#! {} \n", musl.display())).expect("a script");
    let rights = std::os::unix::fs::PermissionsExt::from_mode;
    fs::set_permissions(&script, rights(0o755)).expect("chmod");
    for mode in ["posix", "strict"] {
        for how in CALLS {
            for (program, alone) in [(&musl, true), (&go, true), (&own, false)] {
                let said = run(place.command(&own, Some(mode)).arg(how).arg(program)).stdout;
                let said = String::from_utf8_lossy(&said).into_owned();
                let first = if alone {
                    "alone, LD_PRELOAD unset"
                } else {
                    "preloaded, LD_PRELOAD ours"
                };
                let all: Vec<&str> = said.lines().collect();
                assert_eq!(
                    all,
                    [first, "preloaded, LD_PRELOAD ours"],
                    "{mode}, {how}, {program:?}"
                );
            }
        }
        // A script's interpreter gets the script's name, and then "tell".
        let said = run(place.command(&own, Some(mode)).arg("execve").arg(&script)).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(
            !said.contains("preloaded\n") && said.ends_with("preloaded, LD_PRELOAD ours\n"),
            "{said}"
        );
    }
}

/// A process keeps its record locks on a program when it executes it, or looks whether it may be preloaded into it.
#[test]
fn a_program_stays_locked_that_is_executed() {
    let Some(place) = Place::new("locked-program") else {
        return;
    };
    let own = place.compile("stranger");
    let musl = build_musl(&place);
    for mode in [None, Some("posix"), Some("strict")] {
        for how in CALLS {
            for program in [&musl, &own] {
                let mut command = place.command(&own, mode);
                let said = run(command.arg(how).arg(program).arg("locked")).stdout;
                let said = String::from_utf8_lossy(&said).into_owned();
                let preloaded = match mode {
                    Some(_) if program == &own => "preloaded, locked, LD_PRELOAD ours",
                    _ => "alone, locked, LD_PRELOAD unset",
                };
                let first = said.lines().next();
                assert_eq!(first, Some(preloaded), "{mode:?}, {how}, {program:?}");
            }
        }
    }
}

/// Other libraries stay, wherever they stand.
#[test]
fn other_libraries_stay_for_strangers() {
    let Some(place) = Place::new("stay") else {
        return;
    };
    let own = place.compile("stranger");
    let go = build(&place, "go", &["-DGO"]);
    let other = place.dir.join("other.so");
    let source = place.dir.join("other.c");
    fs::write(&source, "int other;\n").expect("a source");
    let built = Command::new("cc")
        .args(["-shared", "-o"])
        .arg(&other)
        .arg(&source)
        .status();
    assert!(built.expect("cc").success());
    let ours = place.library.display().to_string();
    let other = other.display().to_string();
    for list in [format!("{other}:{ours}"), format!("{ours} {other}")] {
        let mut command = place.command(&own, Some("strict"));
        let words: Vec<_> = command.get_args().map(|word| word.to_owned()).collect();
        command = Command::new("timeout");
        for word in words {
            let preload = word
                .to_str()
                .is_some_and(|word| word.starts_with("LD_PRELOAD="));
            if preload {
                command.arg(format!("LD_PRELOAD={list}"));
            } else {
                command.arg(word);
            }
        }
        let said = run(command.arg("vfork").arg(&go)).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        let first = said.lines().next().unwrap_or_default().trim();
        assert_eq!(first, format!("alone, LD_PRELOAD {other}"), "{list}");
        assert!(
            said.lines()
                .nth(1)
                .is_some_and(|line| line.contains(" ours")),
            "{said}"
        );
    }
}
