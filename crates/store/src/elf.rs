//! Reads the few facts of a program file that decide whether the library can be preloaded into it.
//!
//! The file belongs to somebody else and may be anything, so every offset is checked against what
//! was read, tables are read with an upper bound on their size, and nothing here can loop on what
//! the file says. Nothing is allocated: a child of `vfork` looks, too.

/// A program file that can be read at any offset.
pub trait Bytes {
    /// Fills `into` from `offset`; `None` when the file does not have these bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()>;
}

/// What the headers say.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Elf {
    /// 64-bit and little-endian.
    pub is_64: bool,
    /// The processor (`e_machine`).
    pub machine: u16,
    /// The dynamic linker it asks for; none in a static program.
    pub linker: Option<Linker>,
    /// Built by the Go tool chain.
    pub is_go: bool,
}

/// Whose dynamic linker a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linker {
    /// glibc's, which the library is made for.
    Glibc,
    /// Another C library's.
    Other,
}

impl Elf {
    /// Whether the dynamic linker would load a library that the program must run without: for another C library or
    /// processor, or beside a Go runtime, which calls the kernel itself.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        let ours = self.is_64 && self.machine == OUR_MACHINE;
        !ours || (self.linker.is_some() && (self.is_go || self.linker == Some(Linker::Other)))
    }
}

/// The processor this build runs on.
pub const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

const MAX_SEGMENTS: u16 = 512;
/// Notes that are looked at in all segments together: each is a read.
const MAX_NOTES: u32 = 256;
const MAX_STRING: usize = 1024;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// The type of the note that holds the Go build id; its owner is "Go".
const GO_BUILD_ID: u64 = 4;

/// One program header of a 64-bit file.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    len: u64,
}

/// The kernel gives up on scripts whose interpreter is a script after this many, too.
pub const MAX_SCRIPTS: u32 = 5;
/// The kernel reads this much of a script's first line.
pub const SCRIPT_LINE: usize = 256;

/// The interpreter that the first line of a script names; `None` of what is no script, or names none.
pub fn interpreter(start: &[u8]) -> Option<&[u8]> {
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    line.split(|byte| matches!(byte, b' ' | b'\t'))
        .find(|word| !word.is_empty())
}

/// Reads the headers of an ELF file; `None` when it is not one, or is cut off inside them.
pub fn inspect(file: &impl Bytes) -> Option<Elf> {
    let mut ident = [0u8; 20];
    file.read_at(0, &mut ident)?;
    if ident[..4] != *b"\x7fELF" {
        return None;
    }
    let is_64 = ident[4] == 2 && ident[5] == 1;
    let machine = u16_at(&ident, 18)?;
    let mut elf = Elf {
        is_64,
        machine,
        ..Elf::default()
    };
    let mut notes = MAX_NOTES;
    if !is_64 {
        return Some(elf);
    }
    let mut header = [0u8; 64];
    file.read_at(0, &mut header)?;
    let table = u64_at(&header, 32)?;
    let size = u16_at(&header, 54)?;
    let count = u16_at(&header, 56)?.min(MAX_SEGMENTS);
    if size < 56 {
        return None;
    }
    for index in 0..count {
        let offset = table.checked_add(u64::from(index) * u64::from(size))?;
        let segment = segment(file, offset)?;
        match segment.kind {
            PT_INTERP => elf.linker = Some(linker(file, &segment)?),
            PT_NOTE => elf.is_go |= has_go_note(file, &segment, &mut notes),
            _ => {}
        }
    }
    Some(elf)
}

fn segment(file: &impl Bytes, offset: u64) -> Option<Segment> {
    let mut entry = [0u8; 56];
    file.read_at(offset, &mut entry)?;
    Some(Segment {
        kind: u32_at(&entry, 0)?,
        offset: u64_at(&entry, 8)?,
        len: u64_at(&entry, 32)?,
    })
}

/// glibc names its dynamic linker ld-linux-…, wherever it is installed (NixOS, Guix, /lib64).
fn linker(file: &impl Bytes, segment: &Segment) -> Option<Linker> {
    let mut text = [0u8; MAX_STRING];
    let text = &mut text[..segment.len.min(MAX_STRING as u64) as usize];
    file.read_at(segment.offset, text)?;
    let path = text.split(|byte| *byte == 0).next()?;
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let glibc = name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.");
    Some(if glibc { Linker::Glibc } else { Linker::Other })
}

fn has_go_note(file: &impl Bytes, segment: &Segment, left: &mut u32) -> bool {
    let mut at = 0;
    while at < segment.len && *left > 0 {
        *left -= 1;
        let mut head = [0u8; 16];
        let Some(offset) = segment.offset.checked_add(at) else {
            return false;
        };
        if file.read_at(offset, &mut head).is_none() {
            return false;
        }
        let word = |at| u32_at(&head, at).map_or(0, u64::from);
        if word(8) == GO_BUILD_ID && head[12..] == *b"Go\0\0" {
            return true;
        }
        at += 12 + word(0).next_multiple_of(4) + word(4).next_multiple_of(4);
    }
    false
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for Vec<u8> {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
            let start = usize::try_from(offset).ok()?;
            into.copy_from_slice(self.get(start..start.checked_add(into.len())?)?);
            Some(())
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a test runs without the library")]
    fn own_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn our_own_program() {
        let elf = inspect(&own_program()).unwrap();
        assert!(elf.is_64 && !elf.is_go);
        assert_eq!(elf.machine, OUR_MACHINE);
        assert_eq!(elf.linker, Some(Linker::Glibc));
        assert!(!elf.is_foreign());
    }

    #[test]
    fn every_cut_and_every_flip_in_the_headers_is_survived() {
        let whole = own_program();
        for len in 0..2048 {
            let _ = inspect(&whole[..len].to_vec());
        }
        let mut flipped = whole[..whole.len().min(1 << 20)].to_vec();
        for at in 0..1024 {
            for value in [0, 0x7f, 0xff] {
                let before = std::mem::replace(&mut flipped[at], value);
                let _ = inspect(&flipped);
                flipped[at] = before;
            }
        }
    }

    #[test]
    fn text_is_not_a_program() {
        assert_eq!(inspect(&b"#!/bin/sh\necho this is not it\n".to_vec()), None);
        assert_eq!(inspect(&Vec::new()), None);
    }

    #[test]
    fn a_program_of_nothing_but_notes_is_read_to_a_bound() {
        struct Counted(Vec<u8>, std::cell::Cell<u32>);
        impl Bytes for Counted {
            fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
                self.1.set(self.1.get() + 1);
                self.0.read_at(offset, into)
            }
        }
        // Every segment is the same long run of empty notes.
        let notes = 64 + 56 * usize::from(MAX_SEGMENTS);
        let mut file = vec![0; notes + (64 << 10)];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&MAX_SEGMENTS.to_le_bytes());
        for segment in file[64..notes].chunks_exact_mut(56) {
            segment[..4].copy_from_slice(&PT_NOTE.to_le_bytes());
            segment[8..16].copy_from_slice(&(notes as u64).to_le_bytes());
            segment[32..40].copy_from_slice(&(60_u64 << 10).to_le_bytes());
        }
        let file = Counted(file, std::cell::Cell::new(0));
        assert!(inspect(&file).is_some());
        assert_eq!(file.1.get(), 2 + u32::from(MAX_SEGMENTS) + MAX_NOTES);
    }

    #[test]
    fn interpreters() {
        assert_eq!(interpreter(b"#!/bin/sh\necho"), Some(&b"/bin/sh"[..]));
        assert_eq!(
            interpreter(b"#! \t/usr/bin/env -S a b\n"),
            Some(&b"/usr/bin/env"[..])
        );
        assert_eq!(interpreter(b"#!/cut/off"), Some(&b"/cut/off"[..]));
        for none in [&b"#!"[..], b"#! \n/bin/sh", b"# !/bin/sh", b""] {
            assert_eq!(interpreter(none), None);
        }
    }

    #[test]
    fn linkers() {
        let of = |path: &[u8]| {
            let segment = Segment {
                kind: PT_INTERP,
                offset: 0,
                len: path.len() as u64,
            };
            linker(&path.to_vec(), &segment)
        };
        assert_eq!(of(b"/lib64/ld-linux-x86-64.so.2\0"), Some(Linker::Glibc));
        assert_eq!(
            of(b"/gnu/store/abc-glibc/lib/ld-linux-x86-64.so.2"),
            Some(Linker::Glibc)
        );
        assert_eq!(of(b"/lib/ld-musl-x86_64.so.1\0"), Some(Linker::Other));
        assert_eq!(of(b"/system/bin/linker64"), Some(Linker::Other));
    }

    #[test]
    fn go_notes_are_found_behind_others() {
        let mut notes = Vec::new();
        for (owner, kind, desc) in [(b"GNU\0", 1u32, [0u8; 16]), (b"Go\0\0", 4, [7; 16])] {
            notes.extend((owner.len() as u32).to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(owner);
            notes.extend(desc);
        }
        let len = notes.len() as u64;
        let segment = Segment {
            kind: PT_NOTE,
            offset: 0,
            len,
        };
        let has =
            |notes: &[u8], segment, mut left| has_go_note(&notes.to_vec(), segment, &mut left);
        assert!(has(&notes, &segment, 2));
        let first = Segment { len: 32, ..segment };
        assert!(!has(&notes[..40], &segment, 2), "cut off");
        assert!(!has(&notes, &first, 2));
        assert!(!has(&notes, &segment, 1), "one too many");
    }
}
