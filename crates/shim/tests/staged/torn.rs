//! No reader in any process sees a part of a write that its mode makes whole (`ADIT_REQUIRE`, modes `atomic` and
//! `strict`; without it the kernel writes while somebody reads).

use super::*;

/// Different versions that a reader has to see before the promise counts as kept.
const VERSIONS: usize = 20;
/// Bytes of each.
const LEN: usize = 20_000;

/// Who knows nothing of Adit.
fn outsider(file: &Path) -> Vec<u8> {
    fs::read(file).unwrap_or_default()
}

/// Reads a file while a program writes it, until so many versions were seen; the first that is torn.
fn first_torn(
    place: &Place,
    program: &Path,
    [words, how]: [&str; 2],
    read: impl Fn(&Path) -> Vec<u8>,
) -> Option<String> {
    let file = place.file();
    let _ = fs::remove_file(&file);
    let mut command = place.command(program, Some(words));
    let writer = command.arg(&file).arg(how).stdin(Stdio::piped());
    let mut writer = writer.stdout(Stdio::piped()).spawn().expect("timeout(1)");
    wait_for("the file", || file.exists());
    let (mut seen, mut last, mut torn) = (0, 0, None);
    wait_for("versions", || {
        let bytes = read(&file);
        if let Some(&first) = bytes.first() {
            seen += usize::from(first != last);
            last = first;
            let same = bytes.iter().take_while(|&&byte| byte == first).count();
            torn = (same != LEN).then(|| format!("{words} {how}: {same} of {} bytes", bytes.len()));
        }
        seen >= VERSIONS || torn.is_some()
    });
    drop(writer.stdin.take());
    let output = writer.wait_with_output().expect("its end");
    assert!(output.status.success(), "{words} {how}: {output:?}");
    torn
}

#[test]
fn nobody_reads_a_part_of_a_write() {
    let Some(place) = Place::new("torn") else {
        return;
    };
    let program = place.compile("versions");
    for mode in ["atomic", "strict"] {
        let words = format!("{mode} ADIT_REQUIRE=1");
        for how in ["one", "parts"] {
            assert_eq!(first_torn(&place, &program, [&words, how], outsider), None);
        }
        // Who runs under Adit, too, opens a file as any other.
        let insider =
            |file: &Path| run(place.command(Path::new("/bin/cat"), Some(&words)).arg(file)).stdout;
        assert_eq!(first_torn(&place, &program, [&words, "one"], insider), None);
        let halves = first_torn(&place, &program, [&words, "halves"], outsider);
        assert!(halves.is_some(), "{mode}: a torn one is noticed");
    }
}
