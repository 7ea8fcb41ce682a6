//! What becomes of the parts of rings, in whatever order they come.

use super::{Fate, Link, Rings, fates};

/// So many parts may be there, and two are not: one of a file that was retired, and one that is missing.
const PARTS: u64 = 4;
const RETIRED: u64 = PARTS;
const CHOICES: u64 = PARTS + 2;

/// The parts of one case: where each leads to, which of them are sound, and which of an older boot.
fn rings(mut nexts: u64, sound: u64, old: u64) -> Rings {
    let mut rings = Rings::new();
    for part in 0..PARTS {
        let link = Link {
            boot: 1 + u32::from(old >> part & 1 == 0),
            next: (nexts % CHOICES, 7),
            next_covers: 6,
            sound: sound >> part & 1 == 1,
        };
        rings.insert((part, 7), link);
        nexts /= CHOICES;
    }
    rings
}

/// The same by going from this part alone until one is back.
fn by_itself(part: (u64, u64), rings: &Rings) -> Option<Fate> {
    let mut link = rings.get(&part).filter(|link| link.sound)?;
    for _ in 0..PARTS {
        let Some(next) = rings.get(&link.next) else {
            let is_retired = link.next.0 == RETIRED;
            return Some(if is_retired {
                Fate::Retired
            } else {
                Fate::Broken
            });
        };
        if !next.sound || next.boot != link.boot {
            return Some(Fate::Broken);
        }
        if link.next == part {
            return Some(Fate::Whole);
        }
        link = next;
    }
    Some(Fate::Broken)
}

#[test]
fn what_becomes_of_a_part_does_not_depend_on_where_the_walk_begins() {
    let mut seen = [0; 4];
    for nexts in 0..CHOICES.pow(PARTS as u32) {
        for sound in 0..1 << PARTS {
            for old in 0..1 << PARTS {
                let rings = rings(nexts, sound, old);
                let found = fates(&rings, |link| Ok(link.next.0 == RETIRED)).expect("fates");
                for part in rings.keys() {
                    let fate = by_itself(*part, &rings);
                    assert_eq!(found.get(part).copied(), fate, "{part:?} of {rings:?}");
                    seen[fate.map_or(3, |fate| fate as usize)] += 1;
                }
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 1000), "{seen:?}");
}
