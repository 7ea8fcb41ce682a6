//! Programs that have very many files open at once: nothing breaks, memory has a bound, and whatever is not staged is
//! told.

use super::*;

/// What a process may take for a file that is staged, and for one that is not, in kilobytes.
const PER_FILE: u64 = 24;
const AND: u64 = 64 << 10;

struct Crowd {
    child: Child,
    files: u64,
    mappings: u64,
}

/// Starts the program, with so many descriptors, several for each file; what it says of itself.
fn crowd(place: &Place, mode: &str, count: u32, share: u32, own: u64) -> Crowd {
    let program = place.compile("crowd");
    let work = place.dir.join("files");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir(&work).expect("a directory");
    let mut child = place
        .command(&program, Some(mode))
        .arg(&work)
        .args([count.to_string(), share.to_string(), own.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("timeout(1)");
    let mut line = Vec::new();
    let output = child.stdout.as_mut().expect("a pipe");
    for byte in std::io::Read::bytes(output) {
        match byte.expect("its output") {
            b'\n' => break,
            byte => line.push(byte),
        }
    }
    let line = String::from_utf8(line).expect("text");
    let numbers: Vec<u64> = line.split(' ').flat_map(str::parse).collect();
    let [files, bad, memory, mappings] = numbers[..] else {
        panic!("mode {mode}: it said {line:?}")
    };
    assert_eq!(bad, 0, "mode {mode}: wrong answers");
    assert!(
        memory < AND + PER_FILE * files,
        "{memory} KB for {files} files"
    );
    Crowd {
        child,
        files,
        mappings,
    }
}

fn end(mut child: Child, mode: &str) {
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"\n")
        .expect("its input");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "mode {mode}: {output:?}");
    assert_eq!(output.stdout, b"0\n", "mode {mode}: wrong afterwards");
}

/// 60,000, or as many as the limit on descriptors allows, in a program that needs most of the mappings that the
/// kernel allows for itself, and after all that some more.
#[test]
fn tens_of_thousands_of_files_are_served() {
    let Some(place) = Place::new("crowd") else {
        return;
    };
    let mode = "posix ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0";
    let crowd = crowd(&place, mode, 60_000, 200, 40_000);
    let (files, mappings) = (crowd.files, crowd.mappings);
    if files < 60_000 {
        println!("only {files}: the limit on descriptors cannot be raised");
    }
    // Some of them are served, and the program keeps most of the kernel's 65,530 for itself.
    let wanted = 40_000 + files.min(8_000);
    assert!(
        (wanted..62_000).contains(&mappings),
        "{mappings} mappings for {files} files"
    );
    end(crowd.child, mode);
}

/// Of as many that are written in a mode that stages, those that find no place in the pool are the kernel's.
#[test]
fn more_files_than_can_be_staged_are_written() {
    if !scratch::is_memory() {
        println!(
            "skipped: it concerns memory; on a disk the names of so many files take minutes to be durable"
        );
        return;
    }
    let Some(place) = Place::new("more") else {
        return;
    };
    let crowd = crowd(&place, "strict", 20_000, 1, 0);
    let locks = fs::read_to_string("/proc/locks").expect("locks");
    let staged = locks.matches(" LEASE ").count();
    assert!(staged > 850, "only {staged} files are staged");
    // What is not staged is listed as such as far as there is room, and then told by its number.
    let (_, command) = built().expect("built");
    let stat = Command::new(command)
        .arg("stat")
        .env("ADIT_RUNTIME_DIR", place.dir.join("run"))
        .env("XDG_STATE_HOME", place.dir.join("run"))
        .output()
        .expect("adit stat");
    let said = String::from_utf8(stat.stdout).expect("text");
    assert!(said.matches("weaker promise").count() > 100, "{said:.2000}");
    assert!(
        said.contains("more files than this list has room for"),
        "{said:.2000}"
    );
    end(crowd.child, "strict");
}
