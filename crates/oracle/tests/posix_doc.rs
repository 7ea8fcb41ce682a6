//! `docs/posix.md` against the built library: every interposed name has a row, every row that says
//! "served" is an interposed name, and every test that a row names exists.
// Tests start programs and read files: that is what the standard library is for.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// The names that the library defines.
fn exported() -> BTreeSet<String> {
    let said = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(common::library())
        .output()
        .expect("nm of binutils");
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    String::from_utf8_lossy(&said.stdout)
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(str::to_string)
        .collect()
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
}
