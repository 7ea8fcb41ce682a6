//! The pool: format, allocation, log, locks, recovery and check.
