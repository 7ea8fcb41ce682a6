//! `libadit.so`: interposed libc entries over the engine.
