//! Every copy routine this processor has against a byte-wise oracle: all alignments of both sides
//! within a line, all short lengths, random long ones. Each check also proves that it can fail.
#![allow(unsafe_code)]

use adit_pmem::Fault;
use adit_pmem::copy::{
    LINE, Routine, guarded_copy, guarded_copy_streaming, guarded_copy_streaming_volatile,
    guarded_copy_streaming_with, guarded_copy_with,
};
use adit_pmem::flush::{WriteBack, fence, write_back_with};

/// Bytes kept around the destination, to see stores outside it.
const MARGIN: usize = 128;

type Copy<'a> = &'a dyn Fn(*mut u8, *const u8, usize) -> Result<(), Fault>;

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A buffer whose usable part starts at a line.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + LINE];
        let start = bytes.as_ptr().align_offset(LINE);
        Aligned { bytes, start }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// Runs one copy and says what differs from a byte-wise copy of the same range.
fn check(copy: Copy<'_>, to: usize, from: usize, len: usize) -> Result<(), String> {
    let mut source = Aligned::new(from + len);
    let mut target = Aligned::new(MARGIN + to + len + MARGIN);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (len as u64) << 16 ^ (to << 8 | from) as u64);
    for byte in source.slice() {
        // Never the filler of the target, so that a byte left out always shows.
        *byte = (random.next() as u8).saturating_sub(1);
    }
    target.slice().fill(0xff);
    let mut expected = target.slice().to_vec();
    for at in 0..len {
        expected[MARGIN + to + at] = source.slice()[from + at];
    }
    let (dst, src) = (
        target.slice()[MARGIN + to..].as_mut_ptr(),
        source.slice()[from..].as_ptr(),
    );
    let place = || format!("to {to}, from {from}, length {len}");
    copy(dst, src, len).map_err(|fault| format!("{}: {fault}", place()))?;
    fence();
    match expected
        .iter()
        .zip(target.slice().iter())
        .position(|(want, got)| want != got)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "{}: byte {} differs",
            place(),
            at as isize - MARGIN as isize
        )),
    }
}

fn check_all_short(copy: Copy<'_>) -> Result<(), String> {
    for to in 0..LINE {
        for len in 0..=300 {
            // All pairs of alignments take minutes; all of one side with several of the other, and
            // those equal modulo a word, a vector and a line, are among these.
            for from in [0, 1, 8, 31, 63, to, (to + 8) % LINE, (to * 7 + len) % LINE] {
                check(copy, to, from, len)?;
            }
        }
    }
    Ok(())
}

fn check_random_long(copy: Copy<'_>, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    for round in 0..200 {
        let limit = if round % 20 == 0 { 3 << 20 } else { 20_000 };
        check(
            copy,
            random.below(LINE),
            random.below(LINE),
            random.below(limit),
        )?;
    }
    Ok(())
}

fn check_everything(name: &str, copy: Copy<'_>) {
    if let Err(wrong) = check_all_short(copy).and_then(|()| check_random_long(copy, 42)) {
        panic!("{name}: {wrong}");
    }
}

fn available() -> impl Iterator<Item = Routine> {
    Routine::ALL
        .into_iter()
        .filter(|routine| routine.is_available())
}

#[test]
fn plain_routines_copy_exactly() {
    for routine in available() {
        check_everything(routine.name(), &|dst, src, len| {
            // SAFETY: `check` passes ranges inside its buffers.
            unsafe { guarded_copy_with(routine, dst, src, len) }
        });
    }
}

#[test]
fn streaming_routines_copy_exactly() {
    for routine in available() {
        for durable in [false, true] {
            check_everything(routine.name(), &|dst, src, len| {
                // SAFETY: `check` passes ranges inside its buffers.
                unsafe { guarded_copy_streaming_with(routine, dst, src, len, durable) }
            });
        }
    }
}

#[test]
fn the_chosen_routines_copy_exactly() {
    assert!(Routine::chosen().is_available());
    assert!(Routine::chosen_streaming().is_available());
    // SAFETY: `check` passes ranges inside its buffers.
    check_everything("plain", &|dst, src, len| unsafe {
        guarded_copy(dst, src, len)
    });
    check_everything("streaming", &|dst, src, len| {
        // SAFETY: as above.
        unsafe { guarded_copy_streaming(dst, src, len) }
    });
    check_everything("streaming, volatile", &|dst, src, len| {
        // SAFETY: as above.
        unsafe { guarded_copy_streaming_volatile(dst, src, len) }
    });
}

#[test]
fn write_back_changes_no_byte() {
    let ways = [
        WriteBack::None,
        WriteBack::Clflush,
        WriteBack::Clflushopt,
        WriteBack::Clwb,
    ];
    for how in ways.into_iter().filter(|how| how.is_available()) {
        for at in 0..LINE {
            for len in 0..=200 {
                check(
                    &|dst, src, len| {
                        // SAFETY: `check` passes ranges inside its buffers.
                        unsafe { guarded_copy(dst, src, len)? };
                        // SAFETY: as above.
                        unsafe { write_back_with(how, dst, len) }
                    },
                    at,
                    0,
                    len,
                )
                .unwrap_or_else(|wrong| panic!("{}: {wrong}", how.name()));
            }
        }
    }
}

/// Plants the mistakes copy routines make and shows that the oracle sees each.
#[test]
fn the_oracle_catches_planted_bugs() {
    // SAFETY (all closures): shorter or shifted ranges stay inside the margins of `check`.
    type Bug<'a> = (&'a str, Copy<'a>);
    let bugs: [Bug<'_>; 5] = [
        ("drops the tail", &|dst, src, len| {
            // SAFETY: a prefix of the range.
            unsafe { guarded_copy(dst, src, len - len % 16) }
        }),
        ("drops the head", &|dst, src, len| {
            let head = dst.align_offset(16).min(len);
            let (dst, src) = (dst.wrapping_add(head), src.wrapping_add(head));
            // SAFETY: a suffix of the range.
            unsafe { guarded_copy(dst, src, len - head) }
        }),
        ("writes a word too many", &|dst, src, len| {
            // SAFETY: the range itself.
            unsafe { guarded_copy(dst, src, len)? };
            // SAFETY: inside the margin behind the range.
            unsafe { guarded_copy(dst.wrapping_add(len), [0; 8].as_ptr(), 8) }
        }),
        ("writes before the start", &|dst, src, len| {
            // SAFETY: the range itself.
            unsafe { guarded_copy(dst, src, len)? };
            // SAFETY: inside the margin before the range.
            unsafe { guarded_copy(dst.wrapping_sub(1), [0; 1].as_ptr(), 1) }
        }),
        ("reports a fault", &|_, _, _| Err(Fault)),
    ];
    for (name, bug) in bugs {
        assert!(
            check_all_short(bug).is_err(),
            "short copies: nobody noticed that it {name}"
        );
        assert!(
            check_random_long(bug, 7).is_err(),
            "long copies: nobody noticed that it {name}"
        );
    }
}

#[test]
fn ranges_that_wrap_around_are_faults() {
    let mut byte = 0_u8;
    let end = std::ptr::without_provenance_mut::<u8>(usize::MAX - 10);
    // SAFETY: refused before any access.
    unsafe {
        assert_eq!(guarded_copy(end, &raw const byte, 100), Err(Fault));
        assert_eq!(guarded_copy(&raw mut byte, end, 100), Err(Fault));
        assert_eq!(
            guarded_copy(&raw mut byte, &raw const byte, usize::MAX),
            Err(Fault)
        );
        assert_eq!(
            guarded_copy_streaming(end, &raw const byte, 100),
            Err(Fault)
        );
        assert_eq!(write_back_with(WriteBack::chosen(), end, 100), Err(Fault));
    }
}
