//! `docs/posix.md` against the built library and the tests: every interposed name has a row, every row that says
//! "served" is an interposed name, every test that a row names exists, and calls the row's entry.
// Tests start programs and read files: that is what the standard library is for.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

struct Row {
    status: String,
    why: String,
    tests: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/posix.md")).expect("docs/posix.md")
}

/// The rows of the page by entry; deviations that are no entry are kept under their own words.
fn rows(page: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in page.lines().filter(|l| l.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [entry, status, why, tests] = cells[..] else {
            panic!("not four cells: {line}")
        };
        if matches!(entry, "entry" | "what") {
            continue;
        }
        let tests = tests
            .split(", ")
            .map(|t| t.trim_matches('`').to_string())
            .collect();
        let row = Row {
            status: status.into(),
            why: why.into(),
            tests,
        };
        let twice = rows.insert(entry.trim_matches('`').to_string(), row);
        assert!(twice.is_none(), "{entry} has two rows");
    }
    rows
}

/// What the page and the library disagree about.
fn drift(rows: &BTreeMap<String, Row>, exported: &BTreeSet<String>) -> Vec<String> {
    let missing = exported
        .iter()
        .filter(|name| !rows.contains_key(*name))
        .map(|name| format!("`{name}` is interposed but has no row"));
    let served = rows.iter().filter(|(_, row)| row.status == "served");
    let gone = served
        .filter(|(name, _)| !exported.contains(*name))
        .map(|(name, _)| format!("`{name}` is marked served but is not interposed"));
    let passed = rows
        .iter()
        .filter(|(name, row)| row.status == "passed through" && exported.contains(*name))
        .map(|(name, _)| format!("`{name}` is marked passed through but is interposed"));
    missing.chain(gone).chain(passed).collect()
}

/// What a program said, which must have succeeded.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("a program of the compiler's");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names that the library defines.
fn exported() -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(common::library());
    said(&mut nm)
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(str::to_string)
        .collect()
}

/// The names that a test calls. The preprocessor makes other calls of some (`read` of `__read_chk`), so what is
/// linked tells which entry was called; what is written is enough where libc has to do with it alone.
#[derive(Default)]
struct Calls {
    linked: BTreeSet<String>,
    written: BTreeSet<String>,
}

/// Source without comments.
fn code(source: &Path) -> String {
    let text = std::fs::read_to_string(source).expect("a source");
    let lines = text.lines().map(|l| l.split("//").next().unwrap_or(l));
    let text = lines.collect::<Vec<_>>().join("\n");
    let blocks = text.split("/*");
    blocks.map(|b| b.split("*/").last().unwrap_or(b)).collect()
}

/// What stands before opening parentheses: the name, and what leads to it.
fn before_arguments(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = code.match_indices('(').map(|(at, _)| &code[..at]);
    ends.map(|text| {
        let other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        text.split_at(text.rfind(other).map_or(0, |at| at + 1))
    })
}

/// The names that a program asks the dynamic linker for.
fn looked_up(code: &str) -> impl Iterator<Item = String> {
    let asked = code.split("dlsym(").skip(1);
    asked.filter_map(|text| text.split('"').nth(1).map(str::to_string))
}

/// The programs of a directory, by their names: what each calls.
fn programs(dir: &Path, flags: &[&str]) -> BTreeMap<String, Calls> {
    let mut calls = BTreeMap::<String, Calls>::new();
    let mut whole = Vec::new();
    for entry in std::fs::read_dir(dir).expect("programs").flatten() {
        let source = entry.path();
        if source.extension().is_none_or(|e| e != "c") {
            continue;
        }
        let mut found = by_source(&source);
        let text = std::fs::read_to_string(&source).expect("a source");
        if let Some(header) = common::lacks(&text) {
            let source = source.display();
            common::skip(&format!("{source} is read alone without {header}"));
            found.linked.extend(found.written.iter().cloned());
        } else {
            whole.push(source.clone());
        }
        calls.insert(stem(&source), found);
    }
    for (name, undefined) in undefined(&whole, flags, &stem(dir)) {
        calls.entry(name).or_default().linked.extend(undefined);
    }
    calls
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().expect("a name");
    stem.to_string_lossy().into_owned()
}

/// What a program's words say of its calls.
fn by_source(source: &Path) -> Calls {
    let code = code(source);
    Calls {
        linked: looked_up(&code).collect(),
        written: before_arguments(&code)
            .map(|(_, name)| name.to_string())
            .collect(),
    }
}

/// The names that programs leave to libraries. They are compiled together, which takes the least time, and not linked.
fn undefined(
    sources: &[PathBuf],
    flags: &[&str],
    what: &str,
) -> BTreeMap<String, BTreeSet<String>> {
    let objects = common::scratch(Path::new(env!("CARGO_TARGET_TMPDIR")), what);
    let mut gcc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()));
    gcc.args(flags).args(["-c", "-g0"]).args(sources);
    said(gcc.current_dir(&objects));
    let mut undefined = BTreeMap::new();
    for source in sources {
        let name = stem(source);
        let object = objects.join(format!("{name}.o"));
        let said = said(Command::new("nm").arg("-u").arg(object));
        // An old program's name has a version behind it.
        let names = said
            .lines()
            .filter_map(|l| l.split_whitespace().last()?.split('@').next());
        undefined.insert(name, names.map(str::to_string).collect());
    }
    common::remove(&objects);
    undefined
}

/// What programs that make one test call.
fn together(programs: BTreeMap<String, Calls>) -> Calls {
    programs
        .into_values()
        .fold(Calls::default(), |mut all, one| {
            all.linked.extend(one.linked);
            all.written.extend(one.written);
            all
        })
}

/// What a mode of the oracle calls: its own module, and those that no other mode has for itself. The standard library
/// calls much besides, which nothing compares.
fn oracle(mode: &str) -> Calls {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let own = |stem: &str| match stem {
        "twin" => mode == "single",
        "threads" | "procs" | "model" => mode == stem,
        _ => true,
    };
    let mut calls = Calls::default();
    for entry in std::fs::read_dir(dir).expect("sources").flatten() {
        let path = entry.path();
        if own(&stem(&path)) {
            let code = code(&path);
            let named = before_arguments(&code)
                .filter(|(before, _)| before.ends_with("libc::") || before.ends_with("ffi::"));
            calls.linked.extend(named.map(|(_, name)| name.to_string()));
        }
    }
    calls
}

/// What every test calls, by the name that rows have for it; `None` without a compiler.
fn calls() -> Option<&'static BTreeMap<String, Calls>> {
    static CALLS: OnceLock<Option<BTreeMap<String, Calls>>> = OnceLock::new();
    CALLS.get_or_init(find_calls).as_ref()
}

fn find_calls() -> Option<BTreeMap<String, Calls>> {
    if Command::new("gcc").arg("--version").output().is_err() {
        common::skip("there is no gcc");
        return None;
    }
    let shim = root().join("crates/shim/tests");
    let include = format!("-I{}", root().join("include").display());
    let own = ["staged", "signals"];
    // What compilers make of a directory takes seconds: all at once.
    let mut calls = std::thread::scope(|scope| {
        let own = own.map(|name| {
            let (dir, flags) = (shim.join(name), ["-O1", "-w", &include]);
            let programs = scope.spawn(move || together(programs(&dir, &flags)));
            (format!("shim {name}"), programs)
        });
        let mut calls = programs(&root().join("crates/oracle/c"), &common::FLAGS);
        let own = own.map(|(name, programs)| (name, programs.join().expect("its calls")));
        calls.extend(own);
        calls
    });
    for mode in ["single", "threads", "procs"] {
        calls.insert(format!("oracle {mode}"), oracle(mode));
    }
    Some(calls)
}

/// The tests that rows name and that do not call the row's entry. Of what libc answers alone, its macros are as good.
/// C++ programs call what their library calls, so no row may name them alone.
fn astray(rows: &BTreeMap<String, Row>, tests: &BTreeMap<String, Calls>) -> Vec<String> {
    let mut astray = Vec::new();
    for (entry, row) in rows.iter().filter(|(_, row)| row.status != "deviates") {
        let known: Vec<_> = row
            .tests
            .iter()
            .filter_map(|t| tests.get_key_value(t))
            .collect();
        if known.is_empty() {
            astray.push(format!("nothing is known to call `{entry}`"));
        }
        for (test, calls) in known {
            let written = row.status != "served" && calls.written.contains(entry);
            if !written && !calls.linked.contains(entry) {
                astray.push(format!("{test} does not call `{entry}`"));
            }
        }
    }
    astray
}

#[test]
fn rows_name_tests_that_call() {
    let Some(tests) = calls() else { return };
    let astray = astray(&rows(&page()), tests);
    assert!(
        astray.is_empty(),
        "docs/posix.md names tests in vain:\n{}",
        astray.join("\n")
    );
}

/// Which of some texts has a word in it.
fn has_word(text: &str, word: &str) -> bool {
    let parts = |c: char| !c.is_alphanumeric() && c != '_';
    text.split(parts).any(|part| part == word)
}

/// What the library knows by its number is called by its number, too: nothing else shows that it is recognised.
#[test]
fn numbers_are_called() {
    // It returns twice, from a function that its caller has left by the second time.
    const NEVER: [&str; 1] = ["SYS_vfork"];
    let own = root().join("crates/shim/src/numbers.rs");
    let source = std::fs::read_to_string(own).expect("its source");
    let words = source.split(|c: char| !c.is_alphanumeric() && c != '_');
    let numbers: BTreeSet<&str> = words.filter(|word| word.starts_with("SYS_")).collect();
    assert!(numbers.len() > 90, "{numbers:?}");
    let dirs = ["oracle/c", "shim/tests/staged", "shim/tests/signals"];
    let dirs = dirs.map(|dir| root().join("crates").join(dir));
    let files = dirs
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).expect("programs"));
    let paths = files.map(|entry| entry.expect("a program").path());
    let is_c = |path: &PathBuf| path.extension().is_some_and(|it| it == "c" || it == "h");
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("a program");
    let programs: String = paths.filter(is_c).map(read).collect();
    let uncalled = numbers
        .into_iter()
        .filter(|number| !has_word(&programs, number));
    assert_eq!(uncalled.collect::<Vec<_>>(), NEVER);
}

#[test]
fn rows_and_symbols_agree() {
    let exported = exported();
    assert!(
        exported.contains("read") && exported.contains("open"),
        "{exported:?}"
    );
    let drift = drift(&rows(&page()), &exported);
    assert!(
        drift.is_empty(),
        "docs/posix.md has drifted:\n{}",
        drift.join("\n")
    );
}

#[test]
fn rows_are_whole() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    for (entry, row) in rows(&page()) {
        let known = ["served", "passed through", "deviates"];
        assert!(
            known.contains(&row.status.as_str()),
            "{entry}: {}",
            row.status
        );
        assert!(!row.why.is_empty(), "{entry} does not say why");
        for test in &row.tests {
            let other = [
                "oracle single",
                "oracle threads",
                "oracle procs",
                "shim signals",
                "shim staged",
            ];
            let exists = other.contains(&test.as_str())
                || ["c", "cc"]
                    .iter()
                    .any(|kind| programs.join(format!("{test}.{kind}")).exists());
            assert!(exists, "{entry}: there is no test {test}");
        }
    }
    assert!(root().join("crates/shim/tests/signals.rs").exists());
}

/// The comparison must be able to fail in each direction.
#[test]
fn drift_is_found() {
    let exported = exported();
    let full = rows(&page());
    assert!(full.len() > 150, "only {} rows were found", full.len());
    let mut fewer = rows(&page());
    fewer.remove("read");
    assert_eq!(drift(&fewer, &exported).len(), 1);
    let mut less = exported.clone();
    less.remove("read");
    assert_eq!(drift(&full, &less).len(), 1);
    let mut more = exported;
    more.insert("posix_fadvise".into());
    assert_eq!(drift(&full, &more).len(), 1);
    let Some(tests) = calls() else { return };
    let before = astray(&full, tests).len();
    let mut others = rows(&page());
    for (entry, other) in [
        ("pread64", "jumps"),
        ("__pread_chk", "write_family"),
        ("write", "iostreams"),
    ] {
        others.get_mut(entry).expect("its row").tests = vec![other.into()];
    }
    let also = others.get_mut("fgetc").expect("its row");
    also.tests.push("seek_family".into());
    assert_eq!(astray(&others, tests).len(), before + 4);
}
