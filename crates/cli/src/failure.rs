//! What a command that could not do its work tells its user: what happened, and what to do next.

use std::fmt;

/// The exit status of a check whose answer is "no" (doctor, pool check, demo, bench goals).
pub(crate) const NO: u8 = 1;
/// The exit status for a command line that cannot be understood.
pub(crate) const USAGE: u8 = 2;
/// The exit status of every other command that could not do its work.
pub(crate) const FAILED: u8 = 3;

/// `adit run` itself failed; the program was not started. Same meaning as with `env` and `nice`.
pub(crate) const RUN_FAILED: u8 = 125;
/// The program was found and could not be executed.
pub(crate) const RUN_NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub(crate) const RUN_NOT_FOUND: u8 = 127;

/// A failure with the status to exit with and, where one is known, the next step.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit status.
    pub(crate) code: u8,
    /// What went wrong, in one sentence without a full stop.
    pub(crate) what: String,
    /// What to do about it, in one sentence without a full stop.
    pub(crate) next: Option<String>,
}

impl Failure {
    /// A failure with the general status.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            code: FAILED,
            what: what.into(),
            next: None,
        }
    }

    /// The same failure with another exit status.
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The same failure with advice.
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adit: {}", self.what)?;
        if let Some(next) = &self.next {
            write!(f, "\n  next: {next}")?;
        }
        Ok(())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(said(&error))
    }
}

/// The result of a command: the status to exit with, or why it could not work.
pub(crate) type Outcome = Result<u8, Failure>;

/// A rustix error in the words the standard library has for it.
pub(crate) fn words(errno: rustix::io::Errno) -> String {
    said(&std::io::Error::from_raw_os_error(errno.raw_os_error()))
}

/// An error without its number, which nobody can do anything with.
pub(crate) fn said(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
