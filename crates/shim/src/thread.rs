//! Objects that each thread has of its own, which a handler may look at whatever it interrupts.
//!
//! Rust's own kinds of thread-local storage may allocate at a thread's first look. These lie in the library's initial
//! block, at a fixed distance from the thread pointer, and are all zero at first.
//!
//! # Safety
//! What the macro defines is safe where all zero is a valid object of the type, which is made of atomics: a handler
//! interrupts whoever changes it.

/// Defines `thread()`, the calling thread's object of a type, under a symbol of its own.
macro_rules! thread_object {
    ($symbol:literal, $type:ty) => {
        core::arch::global_asm!(
            ".pushsection .tbss,\"awT\",@nobits",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ",@tls_object"),
            concat!(".size ", $symbol, ",{size}"),
            ".p2align 3",
            concat!($symbol, ":"),
            ".zero {size}",
            ".popsection",
            size = const size_of::<$type>(),
        );

        #[inline]
        fn thread<'a>() -> &'a $type {
            let at: *const $type;
            // SAFETY: adds the object's fixed distance to the thread pointer, which fs:0 holds.
            unsafe {
                core::arch::asm!(
                    "mov {at}, qword ptr fs:[0]",
                    concat!("add {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    at = out(reg) at, options(nostack, readonly),
                );
            }
            // SAFETY: the calling thread's own object, which lives as long as the thread.
            unsafe { &*at }
        }
    };
}
pub(crate) use thread_object;
