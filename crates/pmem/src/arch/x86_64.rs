//! The guarded routines for x86-64, in assembly, and their fault table.
//!
//! Every routine here is a leaf that never moves the stack pointer. So wherever inside it a load or
//! store faults, continuing at the fixup address is exactly an early return to the caller with a
//! non-zero result; nothing has to be unwound and nothing was saved. The routines lie in two
//! contiguous ranges with one fixup each: the AVX2 ones need `vzeroupper` on their way out, the
//! others must not execute it, because the processor may lack it. The AVX-512 routines use registers
//! 16 to 31 only, whose upper halves slow nobody down, and so need no `vzeroupper` either.
//!
//! Accesses to single words are so many, and so short, that they stand in the middle of Rust code. Each
//! copy of such an instruction has an item in a table that the linker puts together, as the kernel's
//! exception table has.
//!
//! The copies are assembly not for speed alone: the bytes may change under the copy (another process
//! stores to them, another thread of the program reuses its buffer), which no Rust or compiler
//! builtin copy is allowed to meet.
//!
//! # Safety
//!
//! The unsafe code declares the assembly below with the C calling convention it is written for
//! (arguments in `rdi`, `rsi`, `rdx`, result in `eax`, only caller-saved registers changed) and the
//! labels that bound it, and reads the table between the marks that the linker sets.
#![allow(unsafe_code)]

use core::arch::global_asm;

/// A copy routine: destination, source, length; zero when all bytes were copied.
pub(crate) type CopyFn = unsafe extern "C" fn(*mut u8, *const u8, usize) -> u32;
/// A streaming routine: destination aligned to 64, source, number of 64-byte lines.
pub(crate) type StreamFn = unsafe extern "C" fn(*mut u8, *const u8, usize) -> u32;
/// A write-back routine: address of a line, number of lines.
pub(crate) type FlushFn = unsafe extern "C" fn(*const u8, usize) -> u32;

/// Head of a routine: a hidden, cache-line aligned function symbol.
macro_rules! routine {
    ($name:literal) => {
        concat!(
            ".p2align 6\n",
            ".globl ",
            $name,
            "\n",
            ".hidden ",
            $name,
            "\n",
            ".type ",
            $name,
            ",@function\n",
            $name,
            ":\n",
        )
    };
}

/// One aligned line, word by word: what was just put together of words is not yet one piece that a wider
/// load could take from the store buffer.
macro_rules! words_of_a_line {
    ($store:literal) => {
        words_of_a_line!($store, "0", "8", "16", "24", "32", "40", "48", "56")
    };
    ($store:literal, $($at:literal),*) => {
        concat!($(
            "mov rax, qword ptr [rsi + ", $at, "]\n",
            $store, " qword ptr [rdi + ", $at, "], rax\n",
        )*)
    };
}

/// Copies of less than 16 bytes, by two overlapping moves of the greatest power of two that fits.
macro_rules! copy_under_16 {
    ($name:literal) => {
        concat!(
            ".L",
            $name,
            "_under_16:\n",
            "cmp edx, 8\n",
            "jae .L",
            $name,
            "_8\n",
            "cmp edx, 4\n",
            "jae .L",
            $name,
            "_4\n",
            "cmp edx, 1\n",
            "ja .L",
            $name,
            "_2\n",
            "jb .L",
            $name,
            "_none\n",
            "movzx eax, byte ptr [rsi]\n",
            "mov byte ptr [rdi], al\n",
            ".L",
            $name,
            "_none:\n",
            "xor eax, eax\n",
            "ret\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_2:\n",
            "movzx eax, word ptr [rsi]\n",
            "movzx ecx, word ptr [rsi + rdx - 2]\n",
            "mov word ptr [rdi], ax\n",
            "mov word ptr [rdi + rdx - 2], cx\n",
            "xor eax, eax\n",
            "ret\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_4:\n",
            "mov eax, dword ptr [rsi]\n",
            "mov ecx, dword ptr [rsi + rdx - 4]\n",
            "mov dword ptr [rdi], eax\n",
            "mov dword ptr [rdi + rdx - 4], ecx\n",
            "xor eax, eax\n",
            "ret\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_8:\n",
            "mov rax, qword ptr [rsi]\n",
            "mov rcx, qword ptr [rsi + rdx - 8]\n",
            "mov qword ptr [rdi], rax\n",
            "mov qword ptr [rdi + rdx - 8], rcx\n",
            "xor eax, eax\n",
            "ret\n",
        )
    };
}

/// A copy of `$size..=2 * $size` bytes by two overlapping vectors.
macro_rules! copy_pair {
    ($size:literal, $mov:literal, $a:literal, $b:literal, $leave:literal) => {
        concat!(
            $mov,
            " ",
            $a,
            ", [rsi]\n",
            $mov,
            " ",
            $b,
            ", [rsi + rdx - ",
            $size,
            "]\n",
            $mov,
            " [rdi], ",
            $a,
            "\n",
            $mov,
            " [rdi + rdx - ",
            $size,
            "], ",
            $b,
            "\n",
            $leave,
            "xor eax, eax\n",
            "ret\n",
        )
    };
}

/// A copy with vectors of `$v` bytes: up to eight vectors without a loop, more with one of four
/// vectors on an aligned destination; the last four vectors are loaded first and stored last.
macro_rules! vector_copy {
    (
        $name:literal, $mov:literal, $leave:literal, $short:expr,
        $v1:literal, $v2:literal, $v3:literal, $v4:literal, $v8:literal,
        $r0:literal, $r1:literal, $r2:literal, $r3:literal,
        $r4:literal, $r5:literal, $r6:literal, $r7:literal
    ) => {
        concat!(
            routine!($name),
            "cmp rdx, ",
            $v1,
            "\n",
            "jb .L",
            $name,
            "_short\n",
            "cmp rdx, ",
            $v2,
            "\n",
            "ja .L",
            $name,
            "_over_2\n",
            copy_pair!($v1, $mov, $r0, $r1, $leave),
            ".p2align 4\n",
            ".L",
            $name,
            "_over_2:\n",
            "cmp rdx, ",
            $v4,
            "\n",
            "ja .L",
            $name,
            "_over_4\n",
            $mov,
            " ",
            $r0,
            ", [rsi]\n",
            $mov,
            " ",
            $r1,
            ", [rsi + ",
            $v1,
            "]\n",
            $mov,
            " ",
            $r2,
            ", [rsi + rdx - ",
            $v2,
            "]\n",
            $mov,
            " ",
            $r3,
            ", [rsi + rdx - ",
            $v1,
            "]\n",
            $mov,
            " [rdi], ",
            $r0,
            "\n",
            $mov,
            " [rdi + ",
            $v1,
            "], ",
            $r1,
            "\n",
            $mov,
            " [rdi + rdx - ",
            $v2,
            "], ",
            $r2,
            "\n",
            $mov,
            " [rdi + rdx - ",
            $v1,
            "], ",
            $r3,
            "\n",
            $leave,
            "xor eax, eax\n",
            "ret\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_over_4:\n",
            $mov,
            " ",
            $r4,
            ", [rsi + rdx - ",
            $v4,
            "]\n",
            $mov,
            " ",
            $r5,
            ", [rsi + rdx - ",
            $v3,
            "]\n",
            $mov,
            " ",
            $r6,
            ", [rsi + rdx - ",
            $v2,
            "]\n",
            $mov,
            " ",
            $r7,
            ", [rsi + rdx - ",
            $v1,
            "]\n",
            "cmp rdx, ",
            $v8,
            "\n",
            "ja .L",
            $name,
            "_over_8\n",
            $mov,
            " ",
            $r0,
            ", [rsi]\n",
            $mov,
            " ",
            $r1,
            ", [rsi + ",
            $v1,
            "]\n",
            $mov,
            " ",
            $r2,
            ", [rsi + ",
            $v2,
            "]\n",
            $mov,
            " ",
            $r3,
            ", [rsi + ",
            $v3,
            "]\n",
            $mov,
            " [rdi], ",
            $r0,
            "\n",
            $mov,
            " [rdi + ",
            $v1,
            "], ",
            $r1,
            "\n",
            $mov,
            " [rdi + ",
            $v2,
            "], ",
            $r2,
            "\n",
            $mov,
            " [rdi + ",
            $v3,
            "], ",
            $r3,
            "\n",
            "lea rcx, [rdi + rdx - ",
            $v4,
            "]\n",
            "jmp .L",
            $name,
            "_tail\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_over_8:\n",
            // rcx: where the last four vectors go. rsi becomes the source of the first aligned
            // vector of the destination; the head before it is covered by one unaligned vector.
            $mov,
            " ",
            $r0,
            ", [rsi]\n",
            "lea rcx, [rdi + rdx - ",
            $v4,
            "]\n",
            "sub rsi, rdi\n",
            $mov,
            " [rdi], ",
            $r0,
            "\n",
            "add rdi, ",
            $v1,
            "\n",
            "and rdi, -",
            $v1,
            "\n",
            "add rsi, rdi\n",
            ".p2align 5\n",
            ".L",
            $name,
            "_loop:\n",
            $mov,
            " ",
            $r0,
            ", [rsi]\n",
            $mov,
            " ",
            $r1,
            ", [rsi + ",
            $v1,
            "]\n",
            $mov,
            " ",
            $r2,
            ", [rsi + ",
            $v2,
            "]\n",
            $mov,
            " ",
            $r3,
            ", [rsi + ",
            $v3,
            "]\n",
            "add rsi, ",
            $v4,
            "\n",
            $mov,
            " [rdi], ",
            $r0,
            "\n",
            $mov,
            " [rdi + ",
            $v1,
            "], ",
            $r1,
            "\n",
            $mov,
            " [rdi + ",
            $v2,
            "], ",
            $r2,
            "\n",
            $mov,
            " [rdi + ",
            $v3,
            "], ",
            $r3,
            "\n",
            "add rdi, ",
            $v4,
            "\n",
            "cmp rdi, rcx\n",
            "jb .L",
            $name,
            "_loop\n",
            ".L",
            $name,
            "_tail:\n",
            $mov,
            " [rcx], ",
            $r4,
            "\n",
            $mov,
            " [rcx + ",
            $v1,
            "], ",
            $r5,
            "\n",
            $mov,
            " [rcx + ",
            $v2,
            "], ",
            $r6,
            "\n",
            $mov,
            " [rcx + ",
            $v3,
            "], ",
            $r7,
            "\n",
            $leave,
            "xor eax, eax\n",
            "ret\n",
            ".p2align 4\n",
            ".L",
            $name,
            "_short:\n",
            $short,
            copy_under_16!($name),
        )
    };
}

/// A streaming loop: four lines at a time, then one. `$line` loads the line at `rsi + {}` and
/// streams it to `rdi + {}`.
macro_rules! streaming {
    ($name:literal, $leave:literal, $four:expr, $one:expr) => {
        concat!(
            routine!($name),
            "cmp rdx, 4\n",
            "jb .L",
            $name,
            "_rest\n",
            ".p2align 5\n",
            ".L",
            $name,
            "_four:\n",
            $four,
            "add rsi, 256\n",
            "add rdi, 256\n",
            "sub rdx, 4\n",
            "cmp rdx, 4\n",
            "jae .L",
            $name,
            "_four\n",
            ".L",
            $name,
            "_rest:\n",
            "test rdx, rdx\n",
            "jz .L",
            $name,
            "_done\n",
            ".L",
            $name,
            "_one:\n",
            $one,
            "add rsi, 64\n",
            "add rdi, 64\n",
            "dec rdx\n",
            "jnz .L",
            $name,
            "_one\n",
            ".L",
            $name,
            "_done:\n",
            $leave,
            "xor eax, eax\n",
            "ret\n",
        )
    };
}

/// A loop that applies one write-back instruction to each of `rsi` lines from `rdi` on.
macro_rules! write_back {
    ($name:literal, $insn:literal) => {
        concat!(
            routine!($name),
            "test rsi, rsi\n",
            "jz .L",
            $name,
            "_done\n",
            ".L",
            $name,
            "_loop:\n",
            $insn,
            " [rdi]\n",
            "add rdi, 64\n",
            "dec rsi\n",
            "jnz .L",
            $name,
            "_loop\n",
            ".L",
            $name,
            "_done:\n",
            "xor eax, eax\n",
            "ret\n",
        )
    };
}

#[rustfmt::skip]
global_asm!(concat!(
    ".pushsection .text.adit_pmem_guarded,\"ax\",@progbits\n",
    ".p2align 6\n",
    ".globl adit_pmem_plain_start\n.hidden adit_pmem_plain_start\n",
    "adit_pmem_plain_start:\n",

    vector_copy!("adit_pmem_copy_sse2", "movups", "", "",
        "16", "32", "48", "64", "128",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7"),

    vector_copy!("adit_pmem_copy_avx512", "vmovdqu64", "",
        concat!(
            "cmp edx, 32\n",
            "jb .Ladit_pmem_copy_avx512_under_32\n",
            copy_pair!("32", "vmovdqu64", "ymm16", "ymm17", ""),
            ".p2align 4\n",
            ".Ladit_pmem_copy_avx512_under_32:\n",
            "cmp edx, 16\n",
            "jb .Ladit_pmem_copy_avx512_under_16\n",
            copy_pair!("16", "vmovdqu64", "xmm16", "xmm17", ""),
            ".p2align 4\n",
        ),
        "64", "128", "192", "256", "512",
        "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23"),

    vector_copy!("adit_pmem_copy_evex256", "vmovdqu64", "",
        concat!(
            "cmp edx, 16\n",
            "jb .Ladit_pmem_copy_evex256_under_16\n",
            copy_pair!("16", "vmovdqu64", "xmm16", "xmm17", ""),
            ".p2align 4\n",
        ),
        "32", "64", "96", "128", "256",
        "ymm16", "ymm17", "ymm18", "ymm19", "ymm20", "ymm21", "ymm22", "ymm23"),

    routine!("adit_pmem_copy_rep"),
    "mov rcx, rdx\n",
    "rep movsb\n",
    "xor eax, eax\n",
    "ret\n",

    streaming!("adit_pmem_stream_sse2", "",
        concat!(
            "movups xmm0, [rsi]\n", "movups xmm1, [rsi + 16]\n",
            "movups xmm2, [rsi + 32]\n", "movups xmm3, [rsi + 48]\n",
            "movups xmm4, [rsi + 64]\n", "movups xmm5, [rsi + 80]\n",
            "movups xmm6, [rsi + 96]\n", "movups xmm7, [rsi + 112]\n",
            "movups xmm8, [rsi + 128]\n", "movups xmm9, [rsi + 144]\n",
            "movups xmm10, [rsi + 160]\n", "movups xmm11, [rsi + 176]\n",
            "movups xmm12, [rsi + 192]\n", "movups xmm13, [rsi + 208]\n",
            "movups xmm14, [rsi + 224]\n", "movups xmm15, [rsi + 240]\n",
            "movntps [rdi], xmm0\n", "movntps [rdi + 16], xmm1\n",
            "movntps [rdi + 32], xmm2\n", "movntps [rdi + 48], xmm3\n",
            "movntps [rdi + 64], xmm4\n", "movntps [rdi + 80], xmm5\n",
            "movntps [rdi + 96], xmm6\n", "movntps [rdi + 112], xmm7\n",
            "movntps [rdi + 128], xmm8\n", "movntps [rdi + 144], xmm9\n",
            "movntps [rdi + 160], xmm10\n", "movntps [rdi + 176], xmm11\n",
            "movntps [rdi + 192], xmm12\n", "movntps [rdi + 208], xmm13\n",
            "movntps [rdi + 224], xmm14\n", "movntps [rdi + 240], xmm15\n",
        ),
        concat!(
            "movups xmm0, [rsi]\n", "movups xmm1, [rsi + 16]\n",
            "movups xmm2, [rsi + 32]\n", "movups xmm3, [rsi + 48]\n",
            "movntps [rdi], xmm0\n", "movntps [rdi + 16], xmm1\n",
            "movntps [rdi + 32], xmm2\n", "movntps [rdi + 48], xmm3\n",
        )),

    streaming!("adit_pmem_stream_avx512", "",
        concat!(
            "vmovdqu64 zmm16, [rsi]\n", "vmovdqu64 zmm17, [rsi + 64]\n",
            "vmovdqu64 zmm18, [rsi + 128]\n", "vmovdqu64 zmm19, [rsi + 192]\n",
            "vmovntdq [rdi], zmm16\n", "vmovntdq [rdi + 64], zmm17\n",
            "vmovntdq [rdi + 128], zmm18\n", "vmovntdq [rdi + 192], zmm19\n",
        ),
        concat!("vmovdqu64 zmm16, [rsi]\n", "vmovntdq [rdi], zmm16\n")),

    write_back!("adit_pmem_clflush", "clflush"),
    write_back!("adit_pmem_clflushopt", "clflushopt"),
    write_back!("adit_pmem_clwb", "clwb"),

    routine!("adit_pmem_copy_line"),
    words_of_a_line!("mov"),
    "xor eax, eax\n",
    "ret\n",

    routine!("adit_pmem_stream_line"),
    words_of_a_line!("movnti"),
    "xor eax, eax\n",
    "ret\n",

    routine!("adit_pmem_probe"),
    "movzx eax, byte ptr [rdi]\n",
    "ret\n",

    ".globl adit_pmem_plain_end\n.hidden adit_pmem_plain_end\n",
    "adit_pmem_plain_end:\n",
    ".globl adit_pmem_plain_fixup\n.hidden adit_pmem_plain_fixup\n",
    "adit_pmem_plain_fixup:\n",
    "mov eax, -1\n",
    "ret\n",

    ".p2align 6\n",
    ".globl adit_pmem_avx_start\n.hidden adit_pmem_avx_start\n",
    "adit_pmem_avx_start:\n",

    vector_copy!("adit_pmem_copy_avx2", "vmovdqu", "vzeroupper\n",
        concat!(
            "cmp edx, 16\n",
            "jb .Ladit_pmem_copy_avx2_under_16\n",
            copy_pair!("16", "movups", "xmm0", "xmm1", ""),
            ".p2align 4\n",
        ),
        "32", "64", "96", "128", "256",
        "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7"),

    streaming!("adit_pmem_stream_avx2", "vzeroupper\n",
        concat!(
            "vmovdqu ymm0, [rsi]\n", "vmovdqu ymm1, [rsi + 32]\n",
            "vmovdqu ymm2, [rsi + 64]\n", "vmovdqu ymm3, [rsi + 96]\n",
            "vmovdqu ymm4, [rsi + 128]\n", "vmovdqu ymm5, [rsi + 160]\n",
            "vmovdqu ymm6, [rsi + 192]\n", "vmovdqu ymm7, [rsi + 224]\n",
            "vmovntdq [rdi], ymm0\n", "vmovntdq [rdi + 32], ymm1\n",
            "vmovntdq [rdi + 64], ymm2\n", "vmovntdq [rdi + 96], ymm3\n",
            "vmovntdq [rdi + 128], ymm4\n", "vmovntdq [rdi + 160], ymm5\n",
            "vmovntdq [rdi + 192], ymm6\n", "vmovntdq [rdi + 224], ymm7\n",
        ),
        concat!(
            "vmovdqu ymm0, [rsi]\n", "vmovdqu ymm1, [rsi + 32]\n",
            "vmovntdq [rdi], ymm0\n", "vmovntdq [rdi + 32], ymm1\n",
        )),

    ".globl adit_pmem_avx_end\n.hidden adit_pmem_avx_end\n",
    "adit_pmem_avx_end:\n",
    ".globl adit_pmem_avx_fixup\n.hidden adit_pmem_avx_fixup\n",
    "adit_pmem_avx_fixup:\n",
    "vzeroupper\n",
    "mov eax, -1\n",
    "ret\n",
    ".popsection\n",

    // An item that no instruction is at: in a program that has no other the linker would set no marks. These are ours
    // alone: another library may have such a table, too.
    ".hidden __start_adit_pmem_words\n",
    ".hidden __stop_adit_pmem_words\n",
    ".pushsection adit_pmem_words,\"aR\",@progbits\n",
    ".long 0, 0\n",
    ".popsection\n",
));

unsafe extern "C" {
    pub(crate) fn adit_pmem_copy_sse2(dst: *mut u8, src: *const u8, len: usize) -> u32;
    pub(crate) fn adit_pmem_copy_avx2(dst: *mut u8, src: *const u8, len: usize) -> u32;
    pub(crate) fn adit_pmem_copy_avx512(dst: *mut u8, src: *const u8, len: usize) -> u32;
    pub(crate) fn adit_pmem_copy_evex256(dst: *mut u8, src: *const u8, len: usize) -> u32;
    pub(crate) fn adit_pmem_copy_rep(dst: *mut u8, src: *const u8, len: usize) -> u32;
    pub(crate) fn adit_pmem_stream_sse2(dst: *mut u8, src: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_stream_avx2(dst: *mut u8, src: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_stream_avx512(dst: *mut u8, src: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_clflush(line: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_clflushopt(line: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_clwb(line: *const u8, lines: usize) -> u32;
    pub(crate) fn adit_pmem_copy_line(dst: *mut u8, src: *const u8) -> u32;
    pub(crate) fn adit_pmem_stream_line(dst: *mut u8, src: *const u8) -> u32;
    pub(crate) fn adit_pmem_probe(at: *const u8) -> u32;

    static adit_pmem_plain_start: u8;
    static adit_pmem_plain_end: u8;
    static adit_pmem_plain_fixup: u8;
    static adit_pmem_avx_start: u8;
    static adit_pmem_avx_end: u8;
    static adit_pmem_avx_fixup: u8;

    // Of a section with such a name the linker says where it begins and where it stops.
    static __start_adit_pmem_words: [i32; 2];
    static __stop_adit_pmem_words: [i32; 2];
}

/// One guarded instruction in the middle of Rust code, as an item of the table `adit_pmem_words`: the distances from
/// each number of the item to the instruction and to where it goes on when that faults. There `fault`, which is zero
/// before, gets another value, and the code behind the instruction runs. The section is to be retained (`R`): a linker
/// that throws away what nobody refers to sees no reference to an item.
macro_rules! guarded_instruction {
    ($instruction:literal) => {
        concat!(
            "xor {fault:e}, {fault:e}\n",
            "2:\n",
            $instruction,
            "\n",
            "3:\n",
            ".pushsection .text.adit_pmem_words_fixup,\"ax\",@progbits\n",
            "4:\n",
            "inc {fault:e}\n",
            "jmp 3b\n",
            ".popsection\n",
            ".pushsection adit_pmem_words,\"aR\",@progbits\n",
            ".long 2b - .\n",
            ".long 4b - .\n",
            ".popsection\n",
        )
    };
}

/// Loads a word: the word, and whether that faulted.
///
/// # Safety
///
/// `at` is aligned to 8, and memory of the caller or an address that faults.
#[inline(always)]
pub(crate) unsafe fn load(at: *const u64) -> (u64, u32) {
    let (value, fault);
    // SAFETY: the caller vouches for the address; a fault is in the table.
    unsafe {
        core::arch::asm!(
            guarded_instruction!("mov {value}, qword ptr [{at}]"),
            at = in(reg) at,
            value = out(reg) value,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    (value, fault)
}

/// Stores a word; whether that faulted.
///
/// # Safety
///
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn store(at: *mut u64, value: u64) -> u32 {
    let fault;
    // SAFETY: the caller vouches for the address; a fault is in the table.
    unsafe {
        core::arch::asm!(
            guarded_instruction!("mov qword ptr [{at}], {value}"),
            at = in(reg) at,
            value = in(reg) value,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    fault
}

/// Stores `new` if the word is `current`: the word that was there, and whether that faulted.
///
/// # Safety
///
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange(at: *mut u64, current: u64, new: u64) -> (u64, u32) {
    let (seen, fault);
    // SAFETY: the caller vouches for the address; a fault is in the table.
    unsafe {
        core::arch::asm!(
            guarded_instruction!("lock cmpxchg qword ptr [{at}], {new}"),
            at = in(reg) at,
            new = in(reg) new,
            fault = out(reg) fault,
            inout("rax") current => seen,
            options(nostack),
        );
    }
    (seen, fault)
}

/// One guarded instruction range and where to continue when it faults.
struct Guarded {
    start: *const u8,
    end: *const u8,
    fixup: *const u8,
}

// SAFETY: the pointers are addresses of code, never dereferenced, and the table never changes.
unsafe impl Sync for Guarded {}

static TABLE: [Guarded; 2] = [
    Guarded {
        start: &raw const adit_pmem_plain_start,
        end: &raw const adit_pmem_plain_end,
        fixup: &raw const adit_pmem_plain_fixup,
    },
    Guarded {
        start: &raw const adit_pmem_avx_start,
        end: &raw const adit_pmem_avx_end,
        fixup: &raw const adit_pmem_avx_fixup,
    },
];

/// Looks an instruction address up in the fault tables.
pub(crate) fn fixup_for(ip: usize) -> Option<usize> {
    let range = TABLE
        .iter()
        .find(|range| (range.start.addr()..range.end.addr()).contains(&ip));
    match range {
        Some(range) => Some(range.fixup.addr()),
        None => fixup_of_word(ip),
    }
}

fn fixup_of_word(ip: usize) -> Option<usize> {
    let (start, end) = (
        &raw const __start_adit_pmem_words,
        &raw const __stop_adit_pmem_words,
    );
    let count = (end.addr() - start.addr()) / size_of::<[i32; 2]>();
    (0..count).find_map(|nth| {
        let item = start.wrapping_add(nth);
        // SAFETY: the item lies between the marks that the linker made, and never changes.
        let [instruction, fixup] = unsafe { item.read() };
        let target = |at: usize, distance: i32| at.wrapping_add_signed(distance as isize);
        let ours = target(item.addr(), instruction) == ip;
        ours.then(|| target(item.addr() + size_of::<i32>(), fixup))
    })
}

/// Orders every streaming store and write-back before the stores that follow.
pub(crate) fn store_fence() {
    // SAFETY: `sfence` is part of SSE2, which every x86-64 processor has; it touches no register.
    unsafe { core::arch::asm!("sfence", options(nostack, preserves_flags)) }
}
