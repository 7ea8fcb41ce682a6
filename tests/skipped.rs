//! Tests that cannot be made where they run, or a part of one. Included by path in the tests of several crates.

/// What is skipped for what a medium is, and not for what is missing on a machine, begins with one of these, as in
/// `lab/suite`.
const OF_THE_MEDIUM: [&str; 2] = ["it concerns ", "the lab says "];

/// Says that something is skipped, in the words that `lab/suite` looks for. In continuous integration nothing may be
/// missing: there it is a failure, since what a test that passes has printed is seen by nobody.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    println!("skipped: {reason}");
    let integration = std::env::var("CI").is_ok_and(|value| value == "true");
    let excused = OF_THE_MEDIUM.iter().any(|words| reason.starts_with(words));
    assert!(excused || !integration, "skipped: {reason}");
}
