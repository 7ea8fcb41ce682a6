//! Reads the few facts of a program file that decide whether the library can be preloaded into it.
//!
//! The file belongs to somebody else and may be anything, so every offset is checked against what
//! was read, tables are read with an upper bound on their size, and nothing here can loop on what
//! the file says.

/// A program file that can be read at any offset.
pub(crate) trait Bytes {
    /// Fills `into` from `offset`; `None` when the file does not have these bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()>;
}

/// What the headers say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 64-bit and little-endian.
    pub(crate) is_64: bool,
    /// The processor (`e_machine`).
    pub(crate) machine: u16,
    /// The dynamic linker it asks for; none in a static program.
    pub(crate) interpreter: Option<Vec<u8>>,
    /// Built by the Go tool chain.
    pub(crate) is_go: bool,
}

/// The processor this build runs on.
pub(crate) const OUR_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

const MAX_SEGMENTS: u16 = 512;
const MAX_NOTES: u64 = 64 << 10;
const MAX_STRING: u64 = 4096;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// The type of the note that holds the Go build id; its owner is "Go".
const GO_BUILD_ID: u32 = 4;

/// One program header of a 64-bit file.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    len: u64,
}

/// Reads the headers of an ELF file; `None` when it is not one, or is cut off inside them.
pub(crate) fn inspect(file: &impl Bytes) -> Option<Elf> {
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
    if !is_64 {
        return Some(elf);
    }
    let segments = segments(file)?;
    for segment in &segments {
        match segment.kind {
            PT_INTERP => elf.interpreter = Some(interpreter(file, segment)?),
            PT_NOTE => elf.is_go |= has_go_note(file, segment),
            _ => {}
        }
    }
    Some(elf)
}

fn segments(file: &impl Bytes) -> Option<Vec<Segment>> {
    let mut header = [0u8; 64];
    file.read_at(0, &mut header)?;
    let table = u64_at(&header, 32)?;
    let size = u16_at(&header, 54)?;
    let count = u16_at(&header, 56)?.min(MAX_SEGMENTS);
    if size < 56 {
        return None;
    }
    (0..count)
        .map(|index| {
            let mut entry = [0u8; 56];
            let offset = table.checked_add(u64::from(index) * u64::from(size))?;
            file.read_at(offset, &mut entry)?;
            Some(Segment {
                kind: u32_at(&entry, 0)?,
                offset: u64_at(&entry, 8)?,
                len: u64_at(&entry, 32)?,
            })
        })
        .collect()
}

fn interpreter(file: &impl Bytes, segment: &Segment) -> Option<Vec<u8>> {
    let mut text = vec![0u8; segment.len.min(MAX_STRING) as usize];
    file.read_at(segment.offset, &mut text)?;
    Some(until_zero(&text))
}

fn has_go_note(file: &impl Bytes, segment: &Segment) -> bool {
    let mut notes = vec![0u8; segment.len.min(MAX_NOTES) as usize];
    if file.read_at(segment.offset, &mut notes).is_none() {
        return false;
    }
    let mut rest = notes.as_slice();
    while let (Some(owner_len), Some(desc_len), Some(kind)) =
        (u32_at(rest, 0), u32_at(rest, 4), u32_at(rest, 8))
    {
        let owner_len = owner_len as usize;
        if kind == GO_BUILD_ID
            && rest
                .get(12..)
                .is_some_and(|name| name.starts_with(b"Go\0\0"))
        {
            return true;
        }
        // Each note advances by at least its header, so this ends.
        let Some(step) = owner_len
            .checked_next_multiple_of(4)
            .and_then(|n| n.checked_add((desc_len as usize).checked_next_multiple_of(4)?))
            .and_then(|n| n.checked_add(12))
        else {
            return false;
        };
        let Some(next) = rest.get(step..) else {
            return false;
        };
        rest = next;
    }
    false
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|b| *b != 0).collect()
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
        assert!(elf.interpreter.unwrap().starts_with(b"/lib"));
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
        assert!(has_go_note(&notes, &segment));
        let first = Segment { len: 32, ..segment };
        assert!(!has_go_note(&notes, &first));
    }
}
