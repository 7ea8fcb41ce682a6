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
    if !has_strace() {
        return;
    }
    // The sync of a whole file system may take longer than a fork waits.
    let dir = place.file().with_file_name("cuts");
    fs::create_dir(&dir).expect("a directory");
    let mut command = place.traced(&program, "strict", Some("syncfs:retval=0"));
    let output = run(command.arg("cuts").arg(place.file()).arg(dir));
    assert_eq!(output.stdout, b"0 0\n", "a file that is cut by its path");
}

/// A handler that jumps would leave the directory of a changed name open, and each fork would wait for its being closed.
#[test]
fn no_handler_leaves_the_directory_of_a_changed_name_open() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("leaves") else {
        return;
    };
    let program = place.compile("leaves");
    let mut command = place.traced(&program, "strict", Some("fsync:signal=USR1"));
    let dir = place.file().parent().expect("its directory").to_owned();
    let output = run(command.arg(place.file()).arg(dir));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "left 1, open 0\n",
        "{output:?}"
    );
}

/// Whoever looks at a file again and again takes it away long before its program writes next, which finds that out then:
/// how long it was staged is not how long that took.
#[test]
fn a_file_that_is_always_taken_away_at_once_becomes_the_kernels_however_rarely_it_is_written() {
    let Some(place) = Place::new("rarely") else {
        return;
    };
    let program = place.compile("sharer");
    let mut one = Told::of(&mut place.command(&program, Some("strict")));
    one.all_well(&[&format!("o0 rwc {}", place.file().display())]);
    let mut stagings = 0;
    for _ in 0..18 {
        one.all_well(&["w0 x"]);
        if !place.is_leased() {
            break;
        }
        stagings += 1;
        assert_eq!(place.content().len(), stagings);
        std::thread::sleep(Duration::from_millis(1050));
    }
    one.end();
    assert_eq!(stagings, 17);
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
