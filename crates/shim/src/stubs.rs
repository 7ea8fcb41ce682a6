//! The shapes of interposed entries, as assembly.
//!
//! | shape | what it does |
//! |---|---|
//! | `data` | foreign: tail-jump to libc. Candidate: pay credit, tail-jump. Promoted: tail-jump to the Rust function |
//! | `served` | promoted: tail-jump to the Rust function, else to libc |
//! | `live` | any entry in the table: tail-jump to the Rust function, else to libc |
//! | `before` | call the hook with the arguments, then tail-jump to libc |
//! | `before_served` | as `before`, but only for a promoted descriptor |
//! | `before_live` | as `before`, but only for a descriptor with any entry |
//! | `asks` | as `before`, but the hook may refuse: of an error the second function makes the answer |
//! | `asks_seven` | as `asks`, for a hook that is given the first argument on the stack as well |
//! | `asks_served`, `asks_live`, `asks_mapped` | as `asks`, but only for a promoted descriptor, one with any entry, or a promoted one in the fifth argument |
//! | `offered` | for a promoted descriptor, or while stores await their times: the hook's answer or, if it has none, libc's |
//! | `answered` | as `offered`, of what is no cancellation point |
//! | `after` | call libc, then the hook with the first three arguments and a non-negative result; what it returns is returned |
//! | `opens` | as `after`; in the modes that stage a first hook looks before, and may change the arguments, and a last one ends what it began; one that the kernel refused is looked at before |
//! | `opens_how` | as `opens`, with room for a changed copy of what the third argument points to |
//! | `creates` | jump to the stub of `open`, with the flags of `creat` |
//! | `listed` | call the Rust function with the first argument and a list of all others, as they lie in memory |
//! | `looks` | while anything is staged anywhere or awaits its times: jump to the Rust function, else to libc |
//! | `watched` | in the modes that stage: jump to the Rust function, else to libc |
//! | `before_watched` | as `before`, but only while anything is staged or awaits its times |
//! | `around` | for a descriptor with any entry: hook, which may refuse, libc with the first four arguments, then as `after` |
//! | `formats` | for a promoted descriptor: as `around`, with libc's function that takes a list, of the arguments behind the named ones |
//! | `copies` | hook with the arguments in memory, which may refuse or answer, libc, then a last hook with them and the result; what that returns is returned |
//! | `copies_served` | as `copies`, but only for a promoted descriptor, or while anything is staged |
//! | `masks` | forget what the thread knows of its mask, call libc, forget again; tail-jump to libc if the named argument is null |
//! | `forgets` | forget what the thread knows of its mask, then tail-jump to libc; only that if the comparison says equal |
//! | `replace` | jump to the Rust function, which calls libc itself; never for a cancellation point |
//! | `alias` | as `replace`, for a second name of what libc has once |
//! | `stream` | while streams are served: hook with the first three arguments, which may make the stream; libc, hook with those and the stream it returned; what that returns is returned |
//! | `streams` | while streams are served: jump to the Rust function, which calls libc itself, else to libc |
//! | `shallow` | `dlopen` without `RTLD_DEEPBIND` |
//! | `by_handle` | `dlsym`: of a handle, tail-jump to the Rust function, with who calls; where libc asks that, to libc |
//! | `slot_data`, `slot_served`, `slot_live` | as the shapes without `slot_`, for a slot of libc's streams: the first argument is the stream, and libc's own slot stands in for its function |
//!
//! No Rust frame is on the stack while libc's function runs, except under `replace`, `streams` and `live`, so
//! `pthread_cancel` unwinds what it expects (PROTOCOLS F4); `after` has a frame of its own that
//! describes itself to the unwinder.
//!
//! # Safety
//! `before` keeps the vector registers too: `dprintf` passes numbers in them.
//! Scratch registers are r10, r11 and (where nothing is variadic) rax, which carry no argument.
//! Descriptors are compared unsigned with the table's length before they index it.

/// Expands one row of the table.
macro_rules! stub {
    (@common $name:ident) => {
        /// libc's function of this name.
        pub(crate) static REAL: $crate::real::Real = $crate::real::Real::new(resolve_me);

        const TEXT: &str = concat!(stringify!($name), "\0");
        static NAME: [u8; TEXT.len()] = $crate::real::name(TEXT);

        /// Looks it up before it is called.
        pub(super) fn resolve_ahead() {
            if REAL.get() == resolve_me as *const () {
                REAL.resolve_ahead(core::ffi::CStr::from_bytes_with_nul(&NAME).unwrap_or_default());
            }
        }

        #[unsafe(naked)]
        unsafe extern "C" fn resolve_me() {
            core::arch::naked_asm!(
                "lea r11, [rip + {slot}]",
                "lea r10, [rip + {name}]",
                "jmp {resolve}",
                slot = sym REAL,
                name = sym NAME,
                resolve = sym $crate::real::resolve_and_jump,
            )
        }
    };

    // Behind these names is no function of libc's of their own.
    (@none) => {
        pub(super) const fn resolve_ahead() {}
    };

    (data $name:ident $hook:path, $amount:literal) => {
        stub!(@common $name);
        stub!(@data [#[unsafe(no_mangle)]] $name REAL, $hook, $amount, "mov r11d, edi", "", "", "");
    };
    (slot_data $name:ident $libc:path, $hook:path) => {
        stub!(@data [] $name $libc, $hook, "rdx",
            "mov r11d, dword ptr [rdi + {fileno}]",
            "mov edi, dword ptr [rdi + {fileno}]",
            "push rdi\npush rdi\n.cfi_adjust_cfa_offset 16",
            "pop rdi\npop rdi\n.cfi_adjust_cfa_offset -16");
    };
    (@data [$(#[$export:meta])?] $name:ident $libc:path, $hook:path, $amount:literal,
        $descriptor:literal, $to_descriptor:literal, $keep:literal, $back:literal) => {
        #[unsafe(naked)]
        $(#[$export])?
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "/* {fileno} */",
                $descriptor,
                "cmp r11d, {max}",
                "jae 2f",
                "lea r10, [rip + {table}]",
                "lea r10, [r10 + r11*8]",
                "mov rax, qword ptr [r10]",
                "test rax, rax",
                "je 2f",
                "test al, {candidate}",
                "je 3f",
                concat!("lea r11, [", $amount, " + {call}]"),
                "shl r11, {credit_shift}",
                "neg r11",
                "add r11, rax",
                "jnc 4f",
                "lock cmpxchg qword ptr [r10], r11",
                "2:",
                "jmp qword ptr [rip + {real}]",
                "3:",
                // Known to survive a fault, and nobody to be cancelled by: straight on.
                "mov r11, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
                "cmp dword ptr fs:[r11], {open}",
                "jne 5f",
                "mov r11, qword ptr [rip + {single}@GOTPCREL]",
                "cmp byte ptr [r11], 0",
                "je 5f",
                "6:",
                "jmp {hook}",
                "5:",
                $keep,
                $to_descriptor,
                "call {checkpoint}",
                $back,
                "test eax, eax",
                "jne 6b",
                "jmp qword ptr [rip + {real}]",
                "4:",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push r10",
                ".cfi_adjust_cfa_offset 56",
                $to_descriptor,
                "call {consider}",
                "pop r10",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -56",
                "mov rax, qword ptr [r10]",
                "test rax, rax",
                "je 2b",
                "test al, {candidate}",
                "jne 2b",
                "jmp 3b",
                ".cfi_endproc",
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                candidate = const $crate::fds::CANDIDATE,
                credit_shift = const $crate::fds::CREDIT_SHIFT,
                call = const $crate::fds::CALL,
                consider = sym $crate::descriptors::consider,
                open = const $crate::signal::mask::OPEN,
                single = sym $crate::init::__libc_single_threaded,
                checkpoint = sym $crate::signal::mask::checkpoint,
                fileno = const $crate::stdio::FILENO,
                real = sym $libc,
                hook = sym $hook,
            )
        }
    };

    (served $name:ident $hook:path) => {
        stub!(@common $name);
        stub!(@byfd [#[unsafe(no_mangle)]] $name REAL, $hook, "mov r11d, edi", "je 2f", "test al, 1", "jne 2f");
    };
    (slot_served $name:ident $libc:path, $hook:path) => {
        stub!(@byfd [] $name $libc, $hook, "mov r11d, dword ptr [rdi + {fileno}]", "je 2f", "test al, 1", "jne 2f");
    };
    (live $name:ident $hook:path) => {
        stub!(@common $name);
        stub!(@byfd [#[unsafe(no_mangle)]] $name REAL, $hook, "mov r11d, edi", "je 2f", "", "");
    };
    // As `live`, of what is a cancellation point: the descriptor is as it was, as with libc's function.
    (closes $name:ident $hook:path) => {
        stub!(@common $name);
        stub!(@byfd [#[unsafe(no_mangle)]] $name REAL, $hook, "mov r11d, edi", "je 2f",
            "push rdi\n.cfi_adjust_cfa_offset 8\ncall {testcancel}",
            "pop rdi\n.cfi_adjust_cfa_offset -8");
    };
    (slot_live $name:ident $libc:path, $hook:path) => {
        stub!(@byfd [] $name $libc, $hook, "mov r11d, dword ptr [rdi + {fileno}]", "je 2f", "", "");
    };
    (@byfd [$(#[$export:meta])?] $name:ident $libc:path, $hook:path, $descriptor:literal,
        $a:literal, $b:literal, $c:literal) => {
        #[unsafe(naked)]
        $(#[$export])?
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "/* {fileno} {testcancel} */",
                $descriptor,
                "cmp r11d, {max}",
                "jae 2f",
                "lea r10, [rip + {table}]",
                "mov rax, qword ptr [r10 + r11*8]",
                "test rax, rax",
                $a, $b, $c,
                "jmp {hook}",
                "2:",
                "jmp qword ptr [rip + {real}]",
                ".cfi_endproc",
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                testcancel = sym $crate::signal::mask::testcancel,
                fileno = const $crate::stdio::FILENO,
                real = sym $libc,
                hook = sym $hook,
            )
        }
    };

    // A library that looks for its names in itself and what it needs first would find libc's own, and never call us. The
    // caller is still who called: where libraries are looked for depends on that.
    (shallow $name:ident $hook:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp byte ptr [rip + {asked}], 0",
                "je 2f",
                "and esi, {shallow}",
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 24",
                "call {hook}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -24",
                "2:",
                "jmp qword ptr [rip + {real}]",
                ".cfi_endproc",
                asked = sym $crate::init::ASKED,
                hook = sym $hook,
                shallow = const !libc::RTLD_DEEPBIND,
                real = sym REAL,
            )
        }
    };
    (by_handle $name:ident $hook:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp byte ptr [rip + {asked}], 0",
                "je 2f",
                // RTLD_NEXT is -1, RTLD_DEFAULT 0.
                "lea rax, [rdi + 1]",
                "cmp rax, 1",
                "jbe 2f",
                "mov rdx, qword ptr [rsp]",
                "jmp {hook}",
                "2:",
                "jmp qword ptr [rip + {real}]",
                asked = sym $crate::init::ASKED,
                hook = sym $hook,
                real = sym REAL,
            )
        }
    };
    (before $name:ident $hook:path) => {
        stub!(@before $name $hook, "", $crate::times::PENDING, "", $crate::descriptors::minus_one);
    };
    (asks $name:ident $hook:path, $refused:path) => {
        stub!(@before $name $hook, "", $crate::times::PENDING, "test eax, eax\njne 4f", $refused);
    };
    // Above the frame lie the return address and what the program has passed on its stack; the hook's own argument there
    // is a copy, below.
    (asks_seven $name:ident $hook:path, $refused:path) => {
        stub!(@calling $name $hook, "", $crate::times::PENDING,
            "sub rsp, 8\npush qword ptr [rsp + 200]\n.cfi_adjust_cfa_offset 16",
            "add rsp, 16\n.cfi_adjust_cfa_offset -16\ntest eax, eax\njne 4f", $refused);
    };
    (before_watched $name:ident $hook:path) => {
        stub!(@before $name $hook,
            "mov r11d, dword ptr [rip + {gate}]\nor r11d, dword ptr [rip + {staged}]\nje 2f",
            $crate::times::PENDING, "", $crate::descriptors::minus_one);
    };
    (before_served $name:ident $hook:path) => {
        stub!(@before $name $hook, "mov r11d, edi\ncmp r11d, {max}\njae 2f\nlea r10, [rip + {gate}]\nmov r11, qword ptr [r10 + r11*8]\ntest r11, r11\nje 2f\ntest r11b, 1\njne 2f",
            $crate::fds::TABLE, "", $crate::descriptors::minus_one);
    };
    (asks_served $name:ident $hook:path, $refused:path) => {
        stub!(@before $name $hook, "mov r11d, edi\ncmp r11d, {max}\njae 2f\nlea r10, [rip + {gate}]\nmov r11, qword ptr [r10 + r11*8]\ntest r11, r11\nje 2f\ntest r11b, 1\njne 2f",
            $crate::fds::TABLE, "test eax, eax\njne 4f", $refused);
    };
    (asks_mapped $name:ident $hook:path, $refused:path) => {
        stub!(@before $name $hook, "cmp r8d, {max}\njae 2f\nlea r10, [rip + {gate}]\nmov r11d, r8d\nmov r11, qword ptr [r10 + r11*8]\ntest r11, r11\nje 2f\ntest r11b, 1\njne 2f",
            $crate::fds::TABLE, "test eax, eax\njne 4f", $refused);
    };
    (asks_live $name:ident $hook:path, $refused:path) => {
        stub!(@before $name $hook, "mov r11d, edi\ncmp r11d, {max}\njae 2f\nlea r10, [rip + {gate}]\nmov r11, qword ptr [r10 + r11*8]\ntest r11, r11\nje 2f",
            $crate::fds::TABLE, "test eax, eax\njne 4f", $refused);
    };
    (@before $name:ident $hook:path, $check:literal, $gate:path, $verdict:literal, $refused:path) => {
        stub!(@calling $name $hook, $check, $gate, "", $verdict, $refused);
    };
    (@calling $name:ident $hook:path, $check:literal, $gate:path, $more:literal, $verdict:literal, $refused:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "/* {max} {gate} {staged} */",
                $check,
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                ".cfi_adjust_cfa_offset 184",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                $more,
                "call {hook}",
                $verdict,
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -184",
                "2:",
                "jmp qword ptr [rip + {real}]",
                "4:",
                ".cfi_adjust_cfa_offset 184",
                "add rsp, 184",
                ".cfi_adjust_cfa_offset -184",
                "mov edi, eax",
                "jmp {refused}",
                ".cfi_endproc",
                refused = sym $refused,
                max = const $crate::fds::LIMIT,
                gate = sym $gate,
                staged = sym $crate::stage::STAGED,
                hook = sym $hook,
                real = sym REAL,
            )
        }
    };

    (looks $name:ident $hook:path) => {
        stub!(@gated $name $hook, $crate::stage::STAGED, $crate::times::PENDING,
            "mov r10, qword ptr [rip + {elsewhere}]\nor r11d, dword ptr [r10]");
    };
    (watched $name:ident $hook:path) => {
        stub!(@gated $name $hook, $crate::names::WATCHED, $crate::names::WATCHED, "");
    };
    (streams $name:ident $hook:path) => {
        stub!(@gated $name $hook, $crate::stdio::WANTED, $crate::stdio::WANTED, "");
    };
    (@gated $name:ident $hook:path, $one:path, $other:path, $more:literal) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11d, dword ptr [rip + {one}]",
                "or r11d, dword ptr [rip + {other}]",
                concat!("/* {elsewhere} */\n", $more),
                "test r11d, r11d",
                "je 2f",
                "jmp {hook}",
                "2:",
                "jmp qword ptr [rip + {real}]",
                one = sym $one,
                other = sym $other,
                elsewhere = sym $crate::elsewhere::ANY,
                hook = sym $hook,
                real = sym REAL,
            )
        }
    };

    (opens $name:ident $before:path, $refused:path, $hook:path) => {
        stub!(@opens $name $before, $refused, $hook, "", "");
    };
    // The room lies above what a hook before finds of the arguments.
    (opens_how $name:ident $before:path, $refused:path, $hook:path) => {
        stub!(@opens $name $before, $refused, $hook,
            "sub rsp, {room}\n.cfi_adjust_cfa_offset {room}",
            "add rsp, {room}\n.cfi_adjust_cfa_offset -{room}");
    };
    (@opens $name:ident $before:path, $refused:path, $hook:path, $more:literal, $less:literal) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "/* {room} */",
                $more,
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push 0",
                ".cfi_adjust_cfa_offset 40",
                "cmp dword ptr [rip + {watched}], 0",
                "je 2f",
                "mov rdi, rsp",
                "call {before}",
                "mov qword ptr [rsp], rax",
                "mov rcx, qword ptr [rsp + 8]",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "2:",
                "xor eax, eax",
                "call qword ptr [rip + {real}]",
                "test eax, eax",
                "jns 4f",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "call {refused}",
                "test eax, eax",
                "js 3f",
                "4:",
                "mov ecx, eax",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "call {hook}",
                "test eax, eax",
                "js 3f",
                "cmp qword ptr [rsp], 0",
                "je 3f",
                "mov rdi, qword ptr [rsp]",
                "mov esi, eax",
                "call {opened}",
                "3:",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                $less,
                "ret",
                ".cfi_endproc",
                room = const size_of::<[u64; $crate::numbers::How::MOST]>(),
                watched = sym $crate::names::WATCHED,
                before = sym $before,
                opened = sym $crate::names::opened,
                real = sym REAL,
                refused = sym $refused,
                hook = sym $hook,
            )
        }
    };

    (after $name:ident $hook:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                "push rsi",
                "push rdx",
                ".cfi_adjust_cfa_offset 24",
                "call qword ptr [rip + {real}]",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -24",
                "test eax, eax",
                "js 2f",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "mov ecx, eax",
                "call {hook}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "2:",
                "ret",
                ".cfi_endproc",
                real = sym REAL,
                hook = sym $hook,
            )
        }
    };

    (around $name:ident $before:path, $after:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11d, edi",
                "cmp r11d, {max}",
                "jae 2f",
                "lea r10, [rip + {table}]",
                "cmp qword ptr [r10 + r11*8], 0",
                "jne 3f",
                "2:",
                "jmp qword ptr [rip + {real}]",
                "3:",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 40",
                "call {before}",
                "test eax, eax",
                "jne 5f",
                "mov rcx, qword ptr [rsp + 8]",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "xor eax, eax",
                "call qword ptr [rip + {real}]",
                "test eax, eax",
                "js 4f",
                "mov ecx, eax",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "call {after}",
                "4:",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                "5:",
                ".cfi_adjust_cfa_offset 40",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "mov edi, eax",
                "jmp {refused}",
                ".cfi_endproc",
                refused = sym $crate::descriptors::minus_one,
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                before = sym $before,
                after = sym $after,
                real = sym REAL,
            )
        }
    };

    // On the stack lies a `va_list`: how many bytes of registers of either kind are taken, where the arguments that came on
    // the stack are, and where those that came in registers were put. `listed` says where libc's function takes it.
    (formats $name:ident $list:path, $listed:literal, $named:literal, $before:path, $after:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11d, edi",
                "cmp r11d, {max}",
                "jae 2f",
                "lea r10, [rip + {table}]",
                "mov r11, qword ptr [r10 + r11*8]",
                "test r11, r11",
                "je 2f",
                "test r11b, 1",
                "je 3f",
                "2:",
                "jmp qword ptr [rip + {real}]",
                "3:",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 208",
                "mov qword ptr [rsp + 32], rdi",
                "mov qword ptr [rsp + 40], rsi",
                "mov qword ptr [rsp + 48], rdx",
                "mov qword ptr [rsp + 56], rcx",
                "mov qword ptr [rsp + 64], r8",
                "mov qword ptr [rsp + 72], r9",
                "movups [rsp + 80], xmm0",
                "movups [rsp + 96], xmm1",
                "movups [rsp + 112], xmm2",
                "movups [rsp + 128], xmm3",
                "movups [rsp + 144], xmm4",
                "movups [rsp + 160], xmm5",
                "movups [rsp + 176], xmm6",
                "movups [rsp + 192], xmm7",
                concat!("mov dword ptr [rsp], 8 * ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rbp + 16]",
                "mov qword ptr [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov qword ptr [rsp + 16], rax",
                "call {before}",
                "test eax, eax",
                "jne 4f",
                "mov rdi, qword ptr [rsp + 32]",
                "mov rsi, qword ptr [rsp + 40]",
                "mov rdx, qword ptr [rsp + 48]",
                concat!("mov ", $listed, ", rsp"),
                "xor eax, eax",
                "call qword ptr [rip + {list}]",
                "test eax, eax",
                "js 5f",
                "mov ecx, eax",
                "mov rdi, qword ptr [rsp + 32]",
                "call {after}",
                "5:",
                ".cfi_remember_state",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
                "4:",
                ".cfi_restore_state",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "mov edi, eax",
                "jmp {refused}",
                ".cfi_endproc",
                refused = sym $crate::descriptors::minus_one,
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                before = sym $before,
                after = sym $after,
                list = sym $list,
                real = sym REAL,
            )
        }
    };

    (copies $name:ident $before:path) => {
        stub!(@copies $name $before, "");
    };
    (copies_served $name:ident $before:path) => {
        stub!(@copies $name $before,
            "cmp dword ptr [rip + {staged}], 0\njne 3f\nmov r11d, edi\ncmp r11d, {max}\njae 2f\nlea r10, [rip + {table}]\nmov r11, qword ptr [r10 + r11*8]\ntest r11, r11\nje 2f\ntest r11b, 1\njne 2f\njmp 3f\n2:\njmp qword ptr [rip + {real}]");
    };
    // The frame is a `copies::Call`.
    (@copies $name:ident $before:path, $check:literal) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "/* {max} {table} {staged} */",
                $check,
                "3:",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push 0",
                "push 0",
                "push 0",
                ".cfi_adjust_cfa_offset 72",
                "mov rdi, rsp",
                "call {before}",
                "test eax, eax",
                "jne 4f",
                "mov r9, qword ptr [rsp + 24]",
                "mov r8, qword ptr [rsp + 32]",
                "mov rcx, qword ptr [rsp + 40]",
                "mov rdx, qword ptr [rsp + 48]",
                "mov rsi, qword ptr [rsp + 56]",
                "mov rdi, qword ptr [rsp + 64]",
                "xor eax, eax",
                "call qword ptr [rip + {real}]",
                "mov rdi, rsp",
                "mov rsi, rax",
                "call {after}",
                "add rsp, 72",
                ".cfi_adjust_cfa_offset -72",
                "ret",
                "4:",
                ".cfi_adjust_cfa_offset 72",
                "add rsp, 72",
                ".cfi_adjust_cfa_offset -72",
                "mov edi, eax",
                "jmp {answer}",
                ".cfi_endproc",
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                staged = sym $crate::stage::STAGED,
                before = sym $before,
                after = sym $crate::copies::after,
                answer = sym $crate::numbers::answer,
                real = sym REAL,
            )
        }
    };

    (stream $name:ident $before:path, $after:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp dword ptr [rip + {wanted}], 0",
                "jne 3f",
                "jmp qword ptr [rip + {real}]",
                "3:",
                "push rdi",
                "push rsi",
                "push rdx",
                ".cfi_adjust_cfa_offset 24",
                "call {before}",
                "test rax, rax",
                "jne 5f",
                "mov rdx, qword ptr [rsp]",
                "mov rsi, qword ptr [rsp + 8]",
                "mov rdi, qword ptr [rsp + 16]",
                "call qword ptr [rip + {real}]",
                "test rax, rax",
                "je 4f",
                "mov rdx, qword ptr [rsp]",
                "mov rsi, qword ptr [rsp + 8]",
                "mov rdi, qword ptr [rsp + 16]",
                "mov rcx, rax",
                "call {after}",
                "4:",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_adjust_cfa_offset 24",
                "5:",
                "xor ecx, ecx",
                "cmp rax, -1",
                "cmove rax, rcx",
                "jmp 4b",
                ".cfi_endproc",
                wanted = sym $crate::stdio::WANTED,
                before = sym $before,
                after = sym $after,
                real = sym REAL,
            )
        }
    };

    (offered $name:ident $hook:path) => {
        stub!(@offered $name $hook, $crate::signal::mask::testcancel);
    };

    (answered $name:ident $hook:path) => {
        stub!(@offered $name $hook, $crate::signal::mask::no_point);
    };

    (@offered $name:ident $hook:path, $point:path) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "cmp dword ptr [rip + {pending}], 0",
                "jne 3f",
                "mov r11d, edi",
                "cmp r11d, {max}",
                "jae 2f",
                "lea r10, [rip + {table}]",
                "mov rax, qword ptr [r10 + r11*8]",
                "test rax, rax",
                "je 2f",
                "test al, {candidate}",
                "je 3f",
                "2:",
                "jmp qword ptr [rip + {real}]",
                "3:",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push rcx",
                ".cfi_adjust_cfa_offset 40",
                "call {point}",
                "mov rcx, qword ptr [rsp + 8]",
                "mov rdx, qword ptr [rsp + 16]",
                "mov rsi, qword ptr [rsp + 24]",
                "mov rdi, qword ptr [rsp + 32]",
                "call {hook}",
                "pop rcx",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_adjust_cfa_offset -40",
                "mov r11, {pass}",
                "cmp rax, r11",
                "je 2b",
                "ret",
                ".cfi_endproc",
                pending = sym $crate::times::PENDING,
                max = const $crate::fds::LIMIT,
                table = sym $crate::fds::TABLE,
                candidate = const $crate::fds::CANDIDATE,
                point = sym $point,
                pass = const $crate::data::PASS,
                hook = sym $hook,
                real = sym REAL,
            )
        }
    };

    (masks $name:ident $argument:literal) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                concat!("test ", $argument, ", ", $argument),
                "je 2f",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "mov r11, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
                "mov dword ptr fs:[r11], 0",
                "call qword ptr [rip + {real}]",
                "mov r11, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
                "mov dword ptr fs:[r11], 0",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                "2:",
                "jmp qword ptr [rip + {real}]",
                ".cfi_endproc",
                real = sym REAL,
            )
        }
    };

    (forgets $name:ident $compare:literal) => {
        stub!(@common $name);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                $compare,
                "je 2f",
                "mov r11, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
                "mov dword ptr fs:[r11], 0",
                "2:",
                "jmp qword ptr [rip + {real}]",
                real = sym REAL,
            )
        }
    };

    (replace $name:ident $hook:path) => {
        stub!(@common $name);
        stub!(@alias $name $hook);
    };

    (alias $name:ident $hook:path) => {
        stub!(@none);
        stub!(@alias $name $hook);
    };
    (@alias $name:ident $hook:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!("jmp {hook}", hook = sym $hook)
        }
    };

    (listed $name:ident $hook:path) => {
        stub!(@none);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset rip, -48",
                "call {hook}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                ".cfi_def_cfa_offset 8",
                ".cfi_offset rip, -8",
                "ret",
                ".cfi_endproc",
                hook = sym $hook,
            )
        }
    };

    (creates $name:ident $open:path) => {
        stub!(@none);
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov edx, esi",
                "mov esi, {flags}",
                "jmp {open}",
                flags = const libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
                open = sym $open,
            )
        }
    };
}
pub(crate) use stub;
