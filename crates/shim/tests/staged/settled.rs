//! Times that a program sets while those of its stores are being settled.

use super::faults::Tracer;
use super::*;

fn settles(place: &Place, program: &Path, who: &str, inject: Option<&str>) -> String {
    let mut command = match inject {
        Some(inject) => place.traced(program, "posix", Some(inject)),
        None => place.command(program, Some("posix")),
    };
    let output = run(command.arg(place.file()).arg(who));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A place on tmpfs, with the program.
fn place(name: &str) -> Option<(Place, PathBuf)> {
    if !scratch::is_tmpfs() || !has_strace() {
        println!("skipped: it concerns files on tmpfs, whose times no store advances");
        return None;
    }
    let place = Place::new(name)?;
    let program = place.compile("settles");
    Some((place, program))
}

/// Another thread has begun to settle what was stored before, and its call reaches the kernel late.
#[test]
fn a_settlement_of_another_thread_does_not_come_after() {
    let Some((place, program)) = place("settled-thread") else {
        return;
    };
    let late = "utimensat:delay_enter=800000:when=1";
    let said = settles(&place, &program, "thread", Some(late));
    assert_eq!(said, "its own\n");
    assert!(place.trace().contains("DELAYED"), "nothing was held up");
}

/// The monitor has.
#[test]
fn a_settlement_of_the_monitor_does_not_come_after() {
    let Some((place, program)) = place("settled-monitor") else {
        return;
    };
    let trace = place.dir.join("trace");
    let late = "utimensat:delay_enter=1200000";
    let tracer = Tracer::of(&place.monitors_pid(), &trace, Some(late));
    let said = settles(&place, &program, "monitor", None);
    drop(tracer);
    assert_eq!(said, "its own\n");
}

/// Reserving room is a change, also where the size stays and bytes are staged that were written before.
#[test]
fn room_that_is_reserved_makes_a_file_newer() {
    let Some(place) = Place::new("reserved") else {
        return;
    };
    let program = place.compile("reserved");
    let plain = place.leaves(&program, &place.dir, "-", None, &[]);
    assert_eq!(
        plain.said.matches("later 1, closed 1").count(),
        4,
        "{plain:?}"
    );
    for mode in MODES {
        let adit = place.leaves(&program, &place.dir, "-", Some(mode), &[]);
        assert_eq!(adit, plain, "mode {mode}");
        assert!(adit.staged, "mode {mode}: nothing was staged");
    }
}
