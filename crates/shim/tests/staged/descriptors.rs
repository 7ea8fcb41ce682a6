//! What others get of a program's descriptors, and when.

use super::*;

/// On a disk each write opens the pool for a moment, and each change of a name its directory. A child would keep them, the
/// pool with its locks, and what another thread says on a standard descriptor that is closed would go into the pool.
#[test]
fn what_is_open_for_a_moment_is_nobody_elses() {
    let Some(place) = Place::on_disk("forks") else {
        return;
    };
    let program = place.compile("forks");
    for mode in ["atomic", "strict"] {
        let mut command = place.command(&program, Some(mode));
        let pool = place.named_pool().expect("a pool of its own");
        let output = run(command.arg("writes").arg(place.file()).arg(pool));
        assert_eq!(output.stdout, b"0 0\n", "mode {mode}");
        let _ = fs::remove_file(place.file());
    }
    let mut command = place.command(&program, Some("strict"));
    let dir = place.file().parent().expect("its directory").to_owned();
    let output = run(command.arg("moves").arg(place.file()).arg(dir));
    assert_eq!(output.stdout, b"0 0\n", "names that are moved");
}

/// The monitor has a duplicate of the description, and with it its locks: they end before somebody else is let in.
#[test]
fn locks_end_with_their_program() {
    let Some(place) = Place::new("locked") else {
        return;
    };
    let program = place.compile("locked");
    for round in 0..20 {
        let mut command = place.command(&program, Some("strict"));
        let child = command.arg(place.file()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("timeout(1)");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(said.next().expect("a line").expect("text"), "locked");
        signal("-KILL", &started_by(child.id()));
        child.wait().expect("wait");
        let file = fs::File::open(place.file()).expect("the file");
        assert!(file.try_lock().is_ok(), "round {round}");
        assert_eq!(place.content(), "locked\n");
        fs::remove_file(place.file()).expect("rm");
    }
}
