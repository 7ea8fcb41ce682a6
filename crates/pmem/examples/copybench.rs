//! Times the copy routines beside libc's `memcpy`: `cargo run --release --example copybench`.
//!
//! Rounds of all routines alternate, so that a disturbance of the machine hits all of them; the
//! table shows the median over rounds of nanoseconds per copy, and the ratio to libc.
//! The buffers: `hot` copies between two fixed places (everything in cache); `spread` takes both
//! sides from random places of 256 MB buffers (neither is in cache); `cold side` takes the source
//! (a read of a mapped file) or the destination (a write to one) from there, the other is fixed.
#![allow(unsafe_code)]

use adit_pmem::copy::{Routine, guarded_copy, guarded_copy_with};
use adit_pmem::copy::{guarded_copy_streaming, guarded_copy_streaming_with};
use adit_pmem::flush::fence;
use adit_pmem::map::{Access, HUGE, Mapping};
use adit_pmem::{MappedMedium, Medium, Persistence};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::hint::black_box;
use std::time::Instant;

const SPREAD: usize = 256 << 20;
const ROUNDS: usize = 11;

type Copy = Box<dyn Fn(*mut u8, *const u8, usize)>;

fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the benchmark passes ranges inside its buffers; black_box keeps it a call to libc.
    unsafe { libc::memcpy(dst.cast(), src.cast(), black_box(len)) };
}

fn contenders() -> Vec<(String, Copy)> {
    let mut all: Vec<(String, Copy)> = vec![
        ("libc".into(), Box::new(memcpy)),
        (
            "chosen".into(),
            // SAFETY: ranges inside the buffers.
            Box::new(|dst, src, len| assert!(unsafe { guarded_copy(dst, src, len) }.is_ok())),
        ),
        (
            "chosen stream+fence".into(),
            Box::new(|dst, src, len| {
                // SAFETY: ranges inside the buffers.
                assert!(unsafe { guarded_copy_streaming(dst, src, len) }.is_ok());
                fence();
            }),
        ),
    ];
    for routine in Routine::ALL
        .into_iter()
        .filter(|routine| routine.is_available())
    {
        all.push((
            routine.name().into(),
            Box::new(move |dst, src, len| {
                // SAFETY: ranges inside the buffers.
                let _ = black_box(unsafe { guarded_copy_with(routine, dst, src, len) });
            }),
        ));
        if !matches!(
            routine,
            Routine::Portable | Routine::RepMovsb | Routine::Evex256
        ) {
            all.push((
                format!("{} stream+fence", routine.name()),
                Box::new(move |dst, src, len| {
                    // SAFETY: ranges inside the buffers.
                    let _ = black_box(unsafe {
                        guarded_copy_streaming_with(routine, dst, src, len, true)
                    });
                    fence();
                }),
            ));
        }
    }
    all
}

/// Where a case's copies lie.
#[derive(Clone, Copy, PartialEq)]
enum Places {
    Hot(usize),
    Spread,
    ColdSource,
    ColdTarget,
}

impl Places {
    /// Offsets (destination, source). The generator runs on from call to call, so that nobody finds
    /// in the cache what the one before left there.
    fn choose(self, random: &mut u64, len: usize, copies: usize) -> Vec<(usize, usize)> {
        let slot = (len + 128).next_multiple_of(4096);
        let slots = (SPREAD / slot) as u64;
        let mut pick = || {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (*random % slots) as usize * slot
        };
        let one = |_| match self {
            Places::Hot(skew) => (skew, skew * 3 % 64),
            Places::Spread => (pick(), pick()),
            Places::ColdSource => (0, pick()),
            Places::ColdTarget => (pick(), 0),
        };
        (0..copies).map(one).collect()
    }
}

fn time(copy: &Copy, dst: *mut u8, src: *const u8, places: &[(usize, usize)], len: usize) -> f64 {
    let start = Instant::now();
    for (to, from) in places {
        copy(dst.wrapping_add(*to), src.wrapping_add(*from), len);
    }
    start.elapsed().as_nanos() as f64 / places.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The medium's operations, hot, as the log uses them.
fn time_media(file: &OwnedFd) {
    const PLACES: u64 = 512;
    println!(
        "\nmedium, hot, ns per operation: 64 B write + fence, 4 KB write + fence, load, store"
    );
    let ram = MappedMedium::new(file, Persistence::Ram, SPREAD * 4).expect("medium");
    let dax = MappedMedium::emulating_dax(file, SPREAD * 4).expect("medium");
    for (name, medium) in [("ram", ram), ("dax instructions", dax)] {
        let each = |operation: &dyn Fn(u64)| {
            let rounds = (0..ROUNDS).map(|_| {
                let start = Instant::now();
                for round in 0..20 * PLACES {
                    operation(round % PLACES * 4096);
                }
                start.elapsed().as_nanos() as f64 / (20 * PLACES) as f64
            });
            median(rounds.collect())
        };
        let write = |bytes: &[u8], at| {
            medium.write_streaming(at, bytes).expect("inside");
            medium.fence();
        };
        println!(
            "{name}: {:.1} {:.1} {:.1} {:.1}",
            each(&|at| write(&[1; 64], at)),
            each(&|at| write(&[1; 4096], at)),
            each(&|at| assert!(black_box(medium.load(at)).is_ok())),
            each(&|at| medium.store(at, at).expect("inside")),
        );
    }
}

fn main() {
    let file = memfd_create("copybench", MemfdFlags::CLOEXEC).expect("memfd");
    let whole = 2 * SPREAD + 2 * HUGE;
    ftruncate(&file, whole as u64).expect("grow");
    let mapping = Mapping::new(&file, 0, whole, Access::ReadWrite, false).expect("map");
    let (dst, src) = (mapping.base(), mapping.base().wrapping_add(SPREAD + HUGE));
    // SAFETY: the whole mapping lies inside the file.
    unsafe { libc::memset(mapping.base().cast(), 1, whole) };
    time_media(&file);
    let contenders = contenders();
    let mut random = 88_172_645_463_325_252_u64;
    for (name, places) in [
        ("hot, aligned", Places::Hot(0)),
        ("hot, skewed", Places::Hot(5)),
        ("spread", Places::Spread),
        ("cold source", Places::ColdSource),
        ("cold target", Places::ColdTarget),
    ] {
        println!("\n{name}: median ns per copy (ratio to libc)");
        for len in [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20] {
            let copies = ((8 << 20) / (len + 400)).clamp(16, 20_000);
            let mut times = vec![Vec::new(); contenders.len()];
            for _ in 0..ROUNDS {
                for (times, (_, copy)) in times.iter_mut().zip(&contenders) {
                    let chosen = places.choose(&mut random, len, copies);
                    times.push(time(copy, dst, src, &chosen, len));
                }
            }
            let medians: Vec<f64> = times.into_iter().map(median).collect();
            print!("{len:>8}");
            for ((name, _), ns) in contenders.iter().zip(&medians) {
                print!(" | {name} {ns:.0} ({:.2})", ns / medians[0]);
            }
            println!();
        }
    }
}
