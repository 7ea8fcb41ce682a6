//! `adit run` must be as transparent as `env`: what the program does is what its caller sees.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]
#![allow(unsafe_code, reason = "the terminal test makes its own terminal")]

mod common;
#[path = "../../../tests/monitors.rs"]
mod monitors;

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_store::monitor::{client::Refused, join};
use adit_store::registry::RuntimeDir;
use common::{Scratch, adit, finish, library, staged_of};
use monitors::monitor_of;

#[test]
fn exit_status_is_the_programs() {
    for code in [0, 1, 7, 255] {
        let done = finish(&mut adit([
            "run",
            "--",
            "sh",
            "-c",
            &format!("exit {code}"),
        ]));
        assert_eq!(done.code(), Some(code), "{done:?}");
        assert_eq!(done.err, "");
    }
}

#[test]
fn a_signal_is_the_programs() {
    let done = finish(&mut adit(["run", "sh", "-c", "kill -9 $$"]));
    assert_eq!(done.status.signal(), Some(9), "{done:?}");

    let script = format!(
        "{} run -- sh -c 'kill -9 $$'; echo $?",
        env!("CARGO_BIN_EXE_adit")
    );
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(script)
        .env("ADIT_LIB", library())
        .env("ADIT_NO_MONITOR", "1");
    assert_eq!(finish(&mut shell).out.trim(), "137");
}

#[test]
fn it_becomes_the_program_instead_of_waiting_for_it() {
    let mut command = adit(["run", "sh", "-c", "echo $$"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        pid.to_string()
    );
}

#[test]
fn nothing_to_run_and_unknown_options() {
    for arguments in [
        vec!["run"],
        vec!["run", "--"],
        vec!["run", "--nonsense", "true"],
    ] {
        let mut command = adit([]);
        let done = finish(command.args(&arguments));
        assert_eq!(done.code(), Some(125), "{arguments:?}: {done:?}");
        assert!(done.err.contains("Usage"), "{done:?}");
    }
    assert_eq!(finish(&mut adit(["nonsense"])).code(), Some(2));
    assert_eq!(finish(&mut adit(["--version"])).code(), Some(0));
    assert_eq!(finish(&mut adit(["run", "--help"])).code(), Some(0));
}

/// Who asks for it believes that several files are committed together. What a program in another mode was started with it
/// hands on.
#[test]
fn nothing_is_committed_together_in_another_mode() {
    let together = ["run", "--commit", "together"];
    let done = finish(adit(together).args(["--mode", "strict", "true"]));
    let advised = done.err.contains("--mode atomic");
    assert!(done.code() == Some(125) && advised, "{done:?}");
    let done = finish(adit(together).args(["--mode", "atomic", "true"]));
    assert_eq!(done.code(), Some(0), "{done:?}");
    let done = finish(adit(["run", "true"]).env("ADIT_COMMIT", "together"));
    assert_eq!(done.code(), Some(0), "{done:?}");
}

#[test]
fn a_variable_that_is_set_to_nothing_says_nothing() {
    for name in [
        "ADIT_MODE",
        "ADIT_COMMIT",
        "ADIT_CLOSED",
        "ADIT_APPENDS",
        "ADIT_REQUIRE",
        "ADIT_POOL",
        "ADIT_POOL_SIZE",
        "ADIT_LOG_SIZE",
        "ADIT_MAP_SIZE",
        "ADIT_PUBLISH_AFTER",
        "ADIT_GIVE_BACK_AFTER",
        "ADIT_PATH",
        "ADIT_RUNTIME_DIR",
        "ADIT_VERBOSE",
    ] {
        let done = finish(adit(["run", "sh", "-c", "exit 7"]).env(name, ""));
        assert_eq!((done.code(), &*done.err), (Some(7), ""), "{name}");
    }
    // What somebody gives must be something.
    let done = finish(&mut adit(["run", "--pool", "", "true"]));
    assert_eq!(done.code(), Some(125), "{done:?}");
}

#[test]
fn the_programs_options_are_not_ours() {
    let done = finish(&mut adit(["run", "echo", "--mode", "x", "--help"]));
    assert_eq!(
        (done.code(), done.out.as_str()),
        (Some(0), "--mode x --help\n")
    );
}

#[test]
fn not_found_and_not_executable() {
    let scratch = Scratch::new();
    let done = finish(&mut adit(["run", "--", "surely-no-such-program"]));
    assert_eq!(done.code(), Some(127), "{done:?}");
    assert!(done.err.contains("surely-no-such-program") && done.err.contains("next:"));
    assert_eq!(finish(&mut adit(["run", "--", ""])).code(), Some(127));

    let script = scratch.file("script", b"#!/bin/sh\nexit 0\n", 0o644);
    let done = finish(&mut adit(["run", "--", script.to_str().unwrap()]));
    assert_eq!(done.code(), Some(126), "{done:?}");
    let done = finish(&mut adit(["run", "--", scratch.0.to_str().unwrap()]));
    assert_eq!(done.code(), Some(126), "{done:?}");

    let script = scratch.file("bad", b"#!/no/such/interpreter\n", 0o755);
    let done = finish(&mut adit(["run", "--", script.to_str().unwrap()]));
    assert_eq!(done.code(), Some(127), "{done:?}");
    assert!(done.err.contains("interpreter"), "{done:?}");
}

#[test]
fn the_search_skips_what_cannot_be_executed() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.0.join("1"), scratch.0.join("2"));
    std::fs::create_dir(&first).unwrap();
    std::fs::create_dir(&second).unwrap();
    scratch.file("1/tool", b"#!/bin/sh\necho first\n", 0o644);
    let path = format!("{}:{}:/usr/bin:/bin", first.display(), second.display());
    let done = finish(adit(["run", "tool"]).env("PATH", &path));
    assert_eq!(done.code(), Some(126), "{done:?}");
    scratch.file("2/tool", b"#!/bin/sh\necho second\n", 0o755);
    let done = finish(adit(["run", "tool"]).env("PATH", &path));
    assert_eq!(done.out, "second\n", "{done:?}");
}

#[test]
fn text_without_an_interpreter_line_is_the_shells() {
    let scratch = Scratch::new();
    let script = scratch.file("plain", b"echo \"plain $1\"\n", 0o755);
    let done = finish(&mut adit(["run", script.to_str().unwrap(), "text"]));
    assert_eq!((done.code(), done.out.as_str()), (Some(0), "plain text\n"));
}

#[test]
fn a_missing_library_is_an_error_that_says_what_to_do() {
    let done = finish(adit(["run", "true"]).env("ADIT_LIB", "/no/such/libadit.so"));
    assert_eq!(done.code(), Some(125));
    assert!(
        done.err.contains("/no/such/libadit.so") && done.err.contains("next:"),
        "{done:?}"
    );
}

#[test]
fn the_library_is_preloaded_behind_what_is_there() {
    let library = library().display().to_string();
    let print = ["run", "sh", "-c", "echo $LD_PRELOAD $ADIT_MODE"];
    let done = finish(&mut adit(print));
    assert_eq!(done.out.trim(), format!("{library} posix"));

    let other = "/usr/lib/x86_64-linux-gnu/libdl.so.2";
    if Path::new(other).exists() {
        let done = finish(adit(print).env("LD_PRELOAD", other));
        assert_eq!(done.out.trim(), format!("{other}:{library} posix"));
    }
}

/// AddressSanitizer refuses to start behind another library, unless it is told not to.
#[test]
fn what_the_address_sanitizer_watches_starts_anywhere() {
    let scratch = Scratch::new();
    let source = scratch.file("program.c", b"int main(void) { return 7; }", 0o600);
    let program = scratch.0.join("program");
    let mut gcc = Command::new("gcc");
    gcc.arg("-fsanitize=address")
        .arg(source)
        .arg("-o")
        .arg(&program);
    if !gcc.output().expect("gcc").status.success() {
        println!("skipped: gcc has no AddressSanitizer here");
        return;
    }
    let program = program.display().to_string();
    for words in [["run", "--", &program], ["run", "env", &program]] {
        let done = finish(&mut adit(words));
        assert_eq!(done.code(), Some(7), "{words:?}: {done:?}");
    }
}

/// Valgrind takes the kernel's clock out of the program's memory, and leaves the kernel's word that it is there. Nothing is
/// staged under it, for want of addresses.
#[test]
fn what_valgrind_watches_runs_as_always() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.file(
        "program.c",
        br#"#include <fcntl.h>
            #include <string.h>
            #include <unistd.h>
            int main(int count, char **words) {
                int fd = open(words[1], O_RDWR | O_CREAT, 0600);
                char back[8];
                for (int i = 0; i < 100; i++)
                    if (write(fd, "written", 8) != 8) return 1;
                if (fsync(fd) || pread(fd, back, 8, 400) != 8) return 2;
                return strcmp(back, "written") || close(fd) ? 3 : 0;
            }"#,
        0o600,
    );
    let program = scratch.0.join("program");
    let mut gcc = Command::new("gcc");
    gcc.arg(source).arg("-o").arg(&program);
    assert!(gcc.status().expect("gcc").success());
    let program = program.display().to_string();
    for mode in ["posix", "atomic", "strict"] {
        let file = scratch.0.join(mode);
        let path = file.display().to_string();
        let valgrind = ["valgrind", "-q", "--error-exitcode=9"];
        let done = finish(
            adit(["run", "--mode", mode])
                .args(valgrind)
                .args([&program, &path])
                .env_remove("ADIT_NO_MONITOR")
                .env("ADIT_KERNEL_BLOCKS", "0")
                .env("XDG_STATE_HOME", &scratch.0)
                .env("ADIT_RUNTIME_DIR", scratch.0.join("runtime")),
        );
        assert_eq!((done.code(), &*done.err), (Some(0), ""), "{mode}: {done:?}");
        let written = std::fs::read(&file).expect("the file");
        assert_eq!(written, b"written\0".repeat(100), "{mode}");
    }
}

#[test]
fn the_library_is_really_loaded() {
    let done = finish(&mut adit(["run", "sh", "-c", "cat /proc/self/maps"]));
    assert!(done.out.contains("libadit.so"), "{done:?}");
}

#[test]
fn every_mode_reaches_the_program_with_a_monitor_that_answers() {
    let scratch = Scratch::new();
    let print = "echo $ADIT_MODE ${ADIT_REQUIRE-no}; \
                 test -S $ADIT_RUNTIME_DIR/monitor.sock && echo answers";
    for mode in ["sync", "atomic", "strict"] {
        let runtime = scratch.0.join(mode);
        let with_monitor = |command: &mut Command| {
            finish(
                command
                    .env_remove("ADIT_NO_MONITOR")
                    .env("XDG_STATE_HOME", &scratch.0)
                    .env("ADIT_RUNTIME_DIR", &runtime),
            )
        };
        let run = ["run", "--mode", mode, "--require", "sh", "-c", print];
        let done = with_monitor(&mut adit(run));
        assert_eq!(done.code(), Some(0), "{done:?}");
        assert_eq!(done.out, format!("{mode} 1\nanswers\n"), "{done:?}");
        let done = with_monitor(adit(["run", "sh", "-c", print]).env("ADIT_MODE", mode));
        assert_eq!(done.out, format!("{mode} no\nanswers\n"), "{done:?}");
    }
    assert_eq!(
        finish(&mut adit(["run", "--mode", "quick", "true"])).code(),
        Some(125)
    );
}

#[test]
fn the_monitor_is_not_held_to_the_limits_of_a_program() {
    let own = env!("CARGO_BIN_EXE_adit");
    let under = |limit: &str| {
        // Of its own, or the monitor of the one before would answer.
        let scratch = Scratch::new();
        let inner = "test -S $ADIT_RUNTIME_DIR/monitor.sock && echo answers";
        let outer = format!("ulimit {limit}; exec {own} run --mode strict -- sh -c '{inner}'");
        let mut command = Command::new("sh");
        command.args(["-c", &outer]);
        command
            .env("ADIT_LIB", library())
            .env("XDG_STATE_HOME", &scratch.0)
            .env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
        finish(&mut command)
    };
    for (limit, said) in [
        ("-v 9000000", "ulimit -v"),
        ("-d 9000000", "ulimit -d"),
        ("-n 20", "ulimit -n"),
        // Shells do not agree on the letter.
        ("-u 100 2>/dev/null || ulimit -p 100", "ulimit -u"),
        ("-t 5", "ulimit -t"),
    ] {
        let done = under(limit);
        assert_eq!(done.out, "", "{limit}: {done:?}");
        assert!(done.err.contains(said), "{limit}: {done:?}");
        assert!(done.err.contains("not atomic"), "{limit}: {done:?}");
    }
    // A limit that may be lifted is none, and one that leaves enough is no obstacle.
    for limit in ["-S -v 9000000", "-S -n 20", "-n 1024", "-S -t 5", "-t 600"] {
        let done = under(limit);
        assert_eq!(done.out, "answers\n", "{limit}: {done:?}");
    }
}

#[test]
fn neither_limits_nor_masks_keep_it_from_starting_a_program() {
    let own = env!("CARGO_BIN_EXE_adit");
    for before in ["ulimit -f 1", "umask 0777"] {
        let scratch = Scratch::new();
        let run = scratch.0.join("run");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before}; {own} run echo ran")]);
        command
            .env("ADIT_LIB", library())
            .env("XDG_STATE_HOME", &scratch.0)
            .env("ADIT_RUNTIME_DIR", &run);
        let done = finish(&mut command);
        assert_eq!(done.out, "ran\n", "{before}: {done:?}");
        // What programs share is open to all of this user's.
        for entry in std::fs::read_dir(&run).into_iter().flatten().flatten() {
            let mode = entry.metadata().unwrap().permissions().mode();
            let is_filter = entry.file_name().to_string_lossy().starts_with("staged");
            assert!(
                !is_filter || mode & 0o777 == 0o600,
                "{before}: {entry:?} {mode:o}"
            );
        }
    }
}

#[test]
fn a_promise_without_a_monitor_is_refused_or_told() {
    let require = ["run", "--mode", "atomic", "--require", "echo", "ran"];
    let done = finish(&mut adit(require));
    assert_eq!(
        (done.code(), done.out.as_str()),
        (Some(125), ""),
        "{done:?}"
    );
    assert!(done.err.contains("needs the monitor"), "{done:?}");
    let done = finish(&mut adit(["run", "--mode", "atomic", "echo", "ran"]));
    assert_eq!((done.code(), done.out.as_str()), (Some(0), "ran\n"));
    assert!(done.err.contains("not atomic"), "{done:?}");
    let done = finish(&mut adit(["run", "--require", "echo", "ran"]));
    assert_eq!((done.code(), done.err.as_str()), (Some(0), ""), "{done:?}");
}

/// It is no monitor's business whether a program may begin.
#[test]
fn a_program_begins_where_the_monitor_has_no_room_to_stay_for_it() {
    let scratch = Scratch::new();
    let runtime = scratch.0.join("runtime");
    let few = "ulimit -n 64; exec \"$0\" monitor --runtime-dir \"$1\"";
    let mut monitor = Command::new("sh")
        .args(["-c", few, env!("CARGO_BIN_EXE_adit")])
        .arg(&runtime)
        .env("XDG_STATE_HOME", &scratch.0)
        .spawn()
        .expect("it starts");
    let dir = RuntimeDir::at(runtime.as_os_str().as_encoded_bytes()).unwrap();
    let begun = Instant::now();
    let done = loop {
        while join(&dir, std::process::id()) != Err(Refused::TooMany) {
            assert!(begun.elapsed() < common::limit());
        }
        let mut run = adit(["run", "--mode", "strict", "--require", "echo", "ran"]);
        let done = finish(
            run.env_remove("ADIT_NO_MONITOR")
                .env("XDG_STATE_HOME", &scratch.0)
                .env("ADIT_RUNTIME_DIR", &runtime),
        );
        assert_eq!((done.code(), done.out.as_str()), (Some(0), "ran\n"));
        // Some of its descriptors were others for a while: connections, pools that it looked into. Then it had room.
        if !done.err.is_empty() {
            break done;
        }
        assert!(begun.elapsed() < common::limit(), "it always had room");
    };
    assert!(done.err.contains("as many programs as it can"), "{done:?}");
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}

#[test]
fn declared_directories_and_pools_must_exist() {
    for flag in ["--path", "--pool"] {
        let done = finish(&mut adit(["run", flag, "/no/such/thing", "true"]));
        assert_eq!(done.code(), Some(125), "{done:?}");
        assert!(done.err.contains("/no/such/thing"), "{done:?}");
    }
    // Whoever names something else is not told to change its mode.
    let done = finish(&mut adit(["run", "--pool", "/etc/passwd", "true"]));
    assert_eq!(done.code(), Some(125), "{done:?}");
    assert!(done.err.contains("not a pool"), "{done:?}");
    assert!(done.err.contains("adit pool create FILE"), "{done:?}");
    assert!(!done.err.contains("chmod"), "{done:?}");
    let done = finish(&mut adit([
        "run",
        "--path",
        "/tmp/..",
        "sh",
        "-c",
        "echo $ADIT_PATH",
    ]));
    assert_eq!(done.out, "/\n");
    let done = finish(&mut adit(["run", "--pool", "/tmp", "true"]));
    assert!(
        done.code() == Some(125) && done.err.contains("a directory"),
        "{done:?}"
    );
}

#[test]
fn an_unusable_runtime_directory_is_told_in_words() {
    let done = finish(&mut adit(["run", "--runtime-dir", "/proc/none", "true"]));
    assert_eq!(done.code(), Some(125), "{done:?}");
    assert!(
        done.err.contains("No such file") && !done.err.contains("os error"),
        "{done:?}"
    );
}

/// Three monitors were started, which all refused it unheard: it took nine seconds, and nobody said why.
#[test]
fn why_a_runtime_directory_serves_no_monitor_is_told() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let scratch = Scratch::new();
    // Not asked for: one that was is refused before anything else.
    let runtime = scratch.0.join("adit");
    std::fs::create_dir(&runtime).unwrap();
    let run = |flags: &[&str]| {
        let mut command = adit(["run", "--mode", "strict"]);
        command.args(flags).args(["echo", "ran"]);
        finish(
            command
                .env_remove("ADIT_NO_MONITOR")
                .env("XDG_STATE_HOME", &scratch.0)
                .env("XDG_RUNTIME_DIR", &scratch.0),
        )
    };
    let told = |reason: &str| {
        let done = run(&[]);
        assert_eq!((done.code(), done.out.as_str()), (Some(0), "ran\n"));
        for word in [reason, runtime.to_str().unwrap(), "not atomic"] {
            assert!(done.err.contains(word), "{word}: {done:?}");
        }
        let done = run(&["--require"]);
        assert_eq!((done.code(), done.out.as_str()), (Some(125), ""));
        assert!(done.err.contains(reason), "{done:?}");
        assert!(done.err.contains("--runtime-dir"), "{done:?}");
    };
    std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o755)).unwrap();
    told("open to other users");
    std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&runtime, Some(1234), None).unwrap();
        told("belongs to user 1234");
    }
}

#[test]
fn an_emptied_environment_is_the_programs_wish() {
    let done = finish(&mut adit([
        "run",
        "env",
        "-i",
        "sh",
        "-c",
        "echo ${HOME-none}; exit 3",
    ]));
    assert_eq!(
        (done.code(), done.out.as_str()),
        (Some(3), "none\n"),
        "{done:?}"
    );
}

#[test]
fn input_is_the_programs() {
    use std::io::Write;
    let mut command = adit(["run", "cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\n");
}

#[test]
fn a_closed_input_stays_closed() {
    let script = format!("{} run -- ls /proc/self/fd <&-", env!("CARGO_BIN_EXE_adit"));
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(script)
        .env("ADIT_LIB", library())
        .env("ADIT_NO_MONITOR", "1");
    let with = finish(&mut shell);
    let without = finish(Command::new("sh").args(["-c", "ls /proc/self/fd <&-"]));
    assert_eq!(with.out, without.out);
}

#[test]
fn an_ignored_signal_stays_ignored_and_a_default_one_default() {
    for (setting, bit) in [("trap '' PIPE BUS SEGV;", true), ("", false)] {
        let script = format!(
            "{setting} exec {} run -- sed -n /SigIgn/p /proc/self/status",
            env!("CARGO_BIN_EXE_adit")
        );
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(script)
            .env("ADIT_LIB", library())
            .env("ADIT_NO_MONITOR", "1");
        // SAFETY: between fork and exec only one system call is made. The test runner ignores
        // SIGPIPE, the shell would pass that on.
        unsafe {
            shell.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                Ok(())
            })
        };
        let done = finish(&mut shell);
        let mask = done
            .out
            .trim()
            .rsplit('\t')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mask = u64::from_str_radix(&mask, 16).expect("a mask");
        // The command has handlers of its own for the last two.
        for signal in [libc::SIGPIPE, libc::SIGBUS, libc::SIGSEGV] {
            assert_eq!(mask & (1 << (signal - 1)) != 0, bit, "{signal}: {done:?}");
        }
    }
}

#[test]
fn the_terminal_is_the_programs() {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: two places for descriptors; no name, settings or size are asked for.
    let made = unsafe {
        libc::openpty(
            &mut master,
            &mut slave,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    assert_eq!(made, 0);
    let mut command = adit([
        "run",
        "sh",
        "-c",
        "test -t 0 && test -t 2 && : </dev/tty && echo tty",
    ]);
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            libc::ioctl(slave, libc::TIOCSCTTY, 0);
            libc::dup2(slave, 0);
            Ok(())
        })
    };
    let out = command.stdout(Stdio::piped());
    // SAFETY: the descriptor was just opened and belongs to this value from here on.
    let error = unsafe { <std::process::Stdio as std::os::fd::FromRawFd>::from_raw_fd(slave) };
    let output = out
        .stderr(error)
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    // SAFETY: closes the descriptor that `openpty` gave.
    unsafe { libc::close(master) };
    assert_eq!(output.stdout, b"tty\n", "{output:?}");
}

/// A static program that exits with 42, as an assembler would write it.
#[cfg(target_arch = "x86_64")]
fn static_program() -> Vec<u8> {
    let code: [u8; 12] = [0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let base = 0x40_0000u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    elf.extend((base + 120).to_le_bytes());
    elf.extend(64u64.to_le_bytes());
    elf.extend([0; 12]);
    elf.extend([64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, base, base, 132, 132, 4096] {
        elf.extend(u64::to_le_bytes(word));
    }
    elf.extend(code);
    elf
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_static_program_runs_without_the_library() {
    let scratch = Scratch::new();
    let program = scratch.file("static", &static_program(), 0o755);
    let program = program.to_str().unwrap();
    let done = finish(&mut adit(["run", program]));
    assert_eq!((done.code(), done.err.as_str()), (Some(42), ""), "{done:?}");
    let done = finish(&mut adit(["run", "--verbose", program]));
    assert!(
        done.code() == Some(42) && done.err.contains("statically"),
        "{done:?}"
    );
    let done = finish(&mut adit(["run", "--require", program]));
    assert!(
        done.code() == Some(125) && done.err.contains("statically"),
        "{done:?}"
    );

    // A script is judged by its interpreter.
    let script = scratch.file("script", format!("#!{program}\n").as_bytes(), 0o755);
    let done = finish(&mut adit(["run", "--require", script.to_str().unwrap()]));
    assert_eq!(done.code(), Some(125), "{done:?}");
}

/// A file with the headers of a dynamic 64-bit program and nothing to run.
#[cfg(target_arch = "x86_64")]
fn headers(interpreter: &[u8], note: &[u8]) -> Vec<u8> {
    let mut elf = static_program();
    elf.truncate(64);
    elf[56] = 2;
    let mut data = Vec::new();
    for (kind, bytes) in [(3u32, interpreter), (4, note)] {
        let offset = 64 + 2 * 56 + data.len() as u64;
        elf.extend(kind.to_le_bytes());
        elf.extend(4u32.to_le_bytes());
        for word in [offset, 0, 0, bytes.len() as u64, bytes.len() as u64, 1] {
            elf.extend(word.to_le_bytes());
        }
        data.extend_from_slice(bytes);
    }
    elf.extend(data);
    elf
}

#[cfg(target_arch = "x86_64")]
#[test]
fn programs_of_other_worlds_are_named() {
    let scratch = Scratch::new();
    let glibc = b"/lib64/ld-linux-x86-64.so.2\0".as_slice();
    let go_note = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0id..".as_slice();
    let gnu_note = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0....".as_slice();
    let with_byte = |at: usize, value: u8| {
        let mut bytes = headers(glibc, gnu_note);
        bytes[at] = value;
        bytes
    };
    for (name, bytes, expected) in [
        (
            "musl",
            headers(b"/lib/ld-musl-x86_64.so.1\0", gnu_note),
            "another C library",
        ),
        ("go", headers(glibc, go_note), "Go program"),
        ("32-bit", with_byte(4, 1), "32-bit"),
        ("arm", with_byte(18, 183), "another processor"),
        (
            "cut",
            headers(glibc, gnu_note)[..90].to_vec(),
            "format is unknown",
        ),
    ] {
        let program = scratch.file(name, &bytes, 0o755);
        let done = finish(&mut adit(["run", "--require", program.to_str().unwrap()]));
        assert_eq!(done.code(), Some(125), "{name}: {done:?}");
        assert!(done.err.contains(expected), "{name}: {done:?}");
    }
    // Nothing speaks against this one: only the kernel finds out that there is nothing to run.
    let program = scratch.file("plain", &headers(glibc, gnu_note), 0o755);
    let done = finish(&mut adit(["run", "--require", program.to_str().unwrap()]));
    assert!(!done.err.contains("cannot run with Adit"), "{done:?}");
}

#[test]
fn a_runtime_directory_that_cannot_be_trusted_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"", 0o600);
    for bad in ["/tmp", file.to_str().unwrap(), "/no/such/place/at/all"] {
        let done = finish(&mut adit(["run", "--runtime-dir", bad, "true"]));
        assert_eq!(done.code(), Some(125), "{bad}: {done:?}");
        assert!(done.err.contains("next:"), "{bad}: {done:?}");
    }
    let good = scratch.0.join("runtime");
    let done = finish(&mut adit([
        "run",
        "--runtime-dir",
        good.to_str().unwrap(),
        "true",
    ]));
    assert_eq!(done.code(), Some(0), "{done:?}");
}

#[test]
fn programs_that_gain_rights_run_without_the_library() {
    let scratch = Scratch::new();
    let bytes = std::fs::read("/bin/sh").unwrap();
    let program = scratch.file("shell", &bytes, 0o4755);
    let program = program.to_str().unwrap();
    let done = finish(&mut adit(["run", program, "-c", "echo ${LD_PRELOAD-none}"]));
    assert_eq!(done.out, "none\n", "{done:?}");
    let done = finish(&mut adit(["run", "--require", program, "-c", "exit 0"]));
    assert!(
        done.code() == Some(125) && done.err.contains("set-user-id"),
        "{done:?}"
    );
}

#[test]
fn require_lets_ordinary_programs_run() {
    let done = finish(&mut adit([
        "run",
        "--require",
        "sh",
        "-c",
        "echo $ADIT_REQUIRE",
    ]));
    assert_eq!(
        (done.code(), done.out.as_str()),
        (Some(0), "1\n"),
        "{done:?}"
    );
}

#[test]
fn the_monitor_is_no_child_and_holds_nothing() {
    let scratch = Scratch::new();
    let runtime = scratch.0.join("runtime");
    // `finish` waits for the end of the output: a monitor that kept it open would be noticed.
    let mut command = adit(["run", "cat", "/proc/thread-self/children"]);
    let done = finish(
        command
            .env_remove("ADIT_NO_MONITOR")
            .env("ADIT_RUNTIME_DIR", &runtime),
    );
    assert_eq!(
        (done.code(), done.out.as_str(), done.err.as_str()),
        (Some(0), "", ""),
        "{done:?}"
    );
}

/// A program that has staged `staged` in a file of this name, and goes on until its input ends.
fn stages(scratch: &Scratch, name: &str, options: &[&str]) -> Child {
    let mut child = adit(["run", "--mode", "strict"])
        .args(options)
        .args(["tee", name])
        .current_dir(&scratch.0)
        .env_remove("ADIT_NO_MONITOR")
        .env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"))
        .env("ADIT_KERNEL_BLOCKS", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut said = [0; 6];
    child.stdin.as_mut().unwrap().write_all(b"staged").unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut said).unwrap();
    // It says so before it has written to the file.
    let begun = Instant::now();
    while !was_staged(scratch, name) {
        assert!(begun.elapsed() < common::limit(), "nothing is staged");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// Whether something of the file is staged, or was and is published.
fn was_staged(scratch: &Scratch, name: &str) -> bool {
    let told = finish(adit(["stat", "--json"]).env("ADIT_RUNTIME_DIR", scratch.0.join("runtime")));
    let staged = staged_of(&told, &scratch.0.join(name));
    let all = staged.as_array().expect("a list").iter();
    all.filter_map(|of| Some(of["records"].as_u64()? + of["publishes"].as_u64()?))
        .any(|writes| writes > 0)
}

/// Whoever asks for the size is no opener, who would have everything at once.
#[test]
fn what_is_staged_is_published_when_that_is_due() {
    let scratch = Scratch::new();
    let size = || std::fs::metadata(scratch.0.join("staged")).unwrap().len();
    let mut child = stages(&scratch, "staged", &["--publish-after", "3600"]);
    // By default it had been published by now, several times.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(size(), 0);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(size(), 6);

    let scratch = Scratch::new();
    let size = || std::fs::metadata(scratch.0.join("staged")).unwrap().len();
    let mut child = stages(&scratch, "staged", &["--publish-after", "0.1"]);
    let begun = Instant::now();
    while size() == 0 && begun.elapsed() < common::limit() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(size(), 6);
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// It was killed by the first store to what was gone, and so was each standby after it, as fast as one could start.
#[test]
fn a_pool_that_is_cut_short_does_not_kill_its_monitor() {
    let begun = Instant::now();
    let (scratch, mut child) = loop {
        let scratch = Scratch::new();
        let pool = scratch.0.join("pool");
        let made = finish(adit(["pool", "create", "--size", "16M"]).arg(&pool));
        assert_eq!(made.code(), Some(0), "{made:?}");
        let mut child = stages(&scratch, "staged", &["--pool", "pool"]);
        let opened = OpenOptions::new().write(true).open(&pool).unwrap();
        opened.set_len(0).unwrap();
        // Or it had been published by then, and nobody has anything to do with the pool.
        if scratch.0.join("staged").metadata().unwrap().len() == 0 {
            break (scratch, child);
        }
        assert!(begun.elapsed() < common::limit(), "it is never in time");
        drop(child.stdin.take());
        child.wait().unwrap();
    };
    let runtime = scratch.0.join("runtime");
    let monitor = monitor_of(&runtime).expect("a monitor");
    // What has lain for half a second is published, or tried to: after the other one this is, which is younger.
    let mut later = stages(&scratch, "later", &[]);
    let size = |name: &str| scratch.0.join(name).metadata().unwrap().len();
    while size("later") == 0 {
        assert!(begun.elapsed() < common::limit(), "it is not published");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(size("staged"), 0);
    assert_eq!(monitor_of(&runtime), Some(monitor));
    for child in [&mut child, &mut later] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

/// It serves programs that are in more of a hurry than the one that came first.
#[test]
fn the_monitor_has_its_turn_as_usual() {
    let scratch = Scratch::new();
    let turn = |pid: u32| {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let (stat, status) = (read("stat"), read("status"));
        let processors = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
        let disk = finish(Command::new("ionice").args(["-p", &pid.to_string()])).out;
        // After the name the third field is number 1.
        let (nice, policy) = (fields[17].to_owned(), fields[39].to_owned());
        (processors.unwrap().to_owned(), disk, nice, policy)
    };
    let idle = [
        "-c", "0", "ionice", "-c", "3", "chrt", "-i", "0", "nice", "-n", "5",
    ];
    let run = adit(["run", "--mode", "strict", "cat"]);
    let mut command = Command::new("taskset");
    command
        .args(idle)
        .arg(run.get_program())
        .args(run.get_args());
    command
        .env("ADIT_LIB", library())
        .env("XDG_STATE_HOME", &scratch.0);
    command.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = child.expect("util-linux is there");
    let begun = Instant::now();
    let monitor = loop {
        match monitor_of(&scratch.0.join("runtime")) {
            Some(monitor) => break monitor,
            None => assert!(begun.elapsed() < common::limit()),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (processors, disk, nice, policy) = turn(monitor);
    assert_eq!(processors, turn(1).0);
    assert!(!disk.contains("idle"), "{disk}");
    if rustix::process::geteuid().is_root() {
        assert_eq!((nice.as_str(), policy.as_str()), ("0", "0"));
    } else {
        println!("skipped: only root may be less nice again");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Reads one page of a file many times, and says what of the file is mapped.
const READS_ONE_PAGE: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(1000): os.pread(file, 4096, 20 << 20)
for line in open('/proc/self/maps'):
    if sys.argv[1] in line:
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        print((end - start) >> 20, int(line.split()[2], 16) >> 20, start % (2 << 20))
";

/// What is mapped at once is as large as it was asked for, and lies in memory as it does in the file, so that one huge
/// page may serve it where the medium has such.
#[test]
fn as_much_of_a_file_is_mapped_as_was_asked_for() {
    let scratch = Scratch::new();
    let file = scratch.file("large", &vec![b'l'; 32 << 20], 0o600);
    for (size, megabytes, from) in [("2M", 2, 20), ("4M", 4, 20), ("16M", 16, 16)] {
        let mut run = adit(["run", "--map-size", size, "python3", "-c", READS_ONE_PAGE]);
        run.env("ADIT_ADOPT_BYTES", "0")
            .env("ADIT_ADOPT_PERCENT", "0");
        run.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
        let done = finish(run.arg(&file));
        let expected = format!("{megabytes} {from} 0\n");
        assert_eq!(
            (done.code(), &*done.out),
            (Some(0), &*expected),
            "{size}: {done:?}"
        );
    }
}

/// Mounts a tmpfs with huge pages where nobody else sees it, says what `adit doctor` does of it, and has a program stage
/// there what takes huge pages of a pool.
const ON_HUGE_PAGES: &str = r#"
mount -t tmpfs -o huge=always,size=128M tmpfs "$1" 2>/dev/null || { echo none; exit; }
"$2" doctor "$1" | grep '^posix'
"$2" pool create --size 32M "$1/pool" >/dev/null
"$2" run --mode strict --pool "$1/pool" python3 -c "$3" "$1"
"#;

/// Writes to a file, and says how much of the pool it has in memory, and how much of that in huge pages.
const STAGES_AND_LOOKS: &str = "
import os, re, sys
file = os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT)
for _ in range(1024): os.write(file, bytes(8192))
pool = re.search('[^\\n]*rw-s[^\\n]*' + sys.argv[1] + '/pool\\n(.*?VmFlags)', open('/proc/self/smaps').read(), re.S)
size = lambda name: int(re.search('^' + name + ': +([0-9]+)', pool[1], re.M)[1])
print(size('Rss') >= 8192, size('Rss') == size('ShmemPmdMapped'))
";

/// Stages in memory while the runtime directory has no room for a pool.
const IN_A_SMALL_DIRECTORY: &str = r#"
mount -t tmpfs -o size=4m none "$1" || exit
{ echo staged; sleep 2; } | "$2" run --mode strict tee "$3" >"$3.told" &
until [ -s "$3.told" ]; do sleep 0.1; done
sleep 0.5
"$2" stat --json
wait
"#;

/// Runtime directories are small in many places; the pool for files in memory is made in another one then.
#[test]
fn a_small_runtime_directory_is_no_obstacle() {
    let memory = Path::new("/dev/shm");
    if !rustix::process::geteuid().is_root() || !memory.is_dir() {
        println!("skipped: only root mounts what is to be small");
        return;
    }
    let scratch = Scratch::beside(memory);
    let (small, file) = (scratch.0.join("small"), scratch.0.join("file"));
    std::fs::create_dir(&small).unwrap();
    let mut inner = adit([]);
    inner.env_remove("ADIT_NO_MONITOR");
    inner.env("XDG_STATE_HOME", scratch.0.join("state"));
    inner.env("ADIT_RUNTIME_DIR", small.join("runtime"));
    inner.env("ADIT_KERNEL_BLOCKS", "0");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", IN_A_SMALL_DIRECTORY, "sh"]);
    command
        .arg(&small)
        .arg(inner.get_program())
        .arg(file.as_os_str());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let done = finish(&mut command);
    if done.out.is_empty() {
        println!("skipped: nothing is mounted here: {}", done.err);
        return;
    }
    let seen = staged_of(&done, &file);
    assert_eq!(seen.as_array().unwrap().len(), 1, "{done:?}");
    let pool = seen[0]["pool"].as_str().unwrap();
    assert!(!pool.starts_with(small.to_str().unwrap()), "{seen}");
}

/// A pool on a tmpfs with huge pages is mapped with them alone.
#[test]
fn a_pool_gets_huge_pages_where_memory_has_them() {
    let scratch = Scratch::new();
    let mounted = scratch.0.join("huge");
    std::fs::create_dir(&mounted).unwrap();
    let inner = adit([]);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    command.arg(ON_HUGE_PAGES).arg("sh").arg(&mounted);
    command.arg(inner.get_program()).arg(STAGES_AND_LOOKS);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("ADIT_NO_MONITOR");
    command.env("XDG_STATE_HOME", scratch.0.join("state"));
    let done = finish(command.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime")));
    if done.out.is_empty() || done.out == "none\n" {
        println!(
            "skipped: nobody may mount memory with huge pages here: {}",
            done.err
        );
        return;
    }
    let (doctor, program) = done.out.split_once('\n').unwrap();
    assert!(doctor.contains("this tmpfs has huge pages"), "{done:?}");
    assert_eq!(program, "True True\n", "{done:?}");
}
