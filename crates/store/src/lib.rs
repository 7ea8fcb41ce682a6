//! The engine: direct files, staging, publishing, monitor.
