//! Which of the outstanding stores a crash keeps.
//!
//! A crash image is named by the crash point and one [`Choice`]. The choice expands to one [`Pick`]
//! for each outstanding [`Unit`] by nothing but the seed, so that its short text replays it.

use std::fmt;
use std::str::FromStr;

use crate::rng::Rng;

/// Where a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A cache line of the medium, by number.
    Line(u64),
    /// The journaled changes of all files.
    Journal,
    /// The names.
    Names,
    /// The size of a file, as writing grew it.
    Size(u64),
    /// A page of a file: file, number.
    Page(u64, u64),
}

/// Something that is durable in one of several versions when the power fails: a cache line, a page
/// of a file, a size, a journal.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    /// Where it is.
    pub(crate) place: Place,
    /// When it was last changed: units changed by one event form a group.
    pub(crate) group: u64,
    /// When each version came to be; version 0 is the one before the first of them.
    pub(crate) times: Vec<u64>,
}

/// The version of one unit that a crash keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pick {
    /// The `n`th version, 0 being the durable one.
    Version(usize),
    /// Smaller pieces (words of a line, sectors of a page) chosen one by one from this seed.
    Torn(u64),
}

/// How the versions of all units are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Choice {
    /// No outstanding store survives.
    Nothing,
    /// All of them survive.
    Everything,
    /// Not a power cut: every process is killed.
    Kill,
    /// Only the units changed last by one event (a position among the groups).
    GroupOnly(u64),
    /// Everything but those.
    GroupMissing(u64),
    /// Only one unit.
    Only(u64),
    /// Everything but one unit.
    Missing(u64),
    /// The `n`th combination of all versions of all units.
    Combination(u64),
    /// A random subset of whole units, in random versions.
    Sample(u64),
    /// A random subset with torn units.
    Torn(u64),
}

impl Choice {
    /// Whether it chooses in the same way, among the same pieces.
    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Whether parts of a line, a page or a journal may survive without the others.
    pub(crate) fn tears(self) -> bool {
        matches!(self, Self::Torn(_))
    }

    /// Expands to one pick for each unit. Positions that do not exist pick nothing.
    pub(crate) fn picks(self, units: &[Unit], seed: u64) -> Vec<Pick> {
        let newest = |unit: &Unit| Pick::Version(unit.times.len());
        let all = |keep: &dyn Fn(usize, &Unit) -> bool| {
            units
                .iter()
                .enumerate()
                .map(|(i, unit)| {
                    if keep(i, unit) {
                        newest(unit)
                    } else {
                        Pick::Version(0)
                    }
                })
                .collect()
        };
        match self {
            Self::Nothing | Self::Kill => all(&|_, _| false),
            Self::Everything => all(&|_, _| true),
            Self::GroupOnly(nth) => {
                let group = groups(units).get(nth as usize).copied();
                all(&|_, unit| Some(unit.group) == group)
            }
            Self::GroupMissing(nth) => {
                let group = groups(units).get(nth as usize).copied();
                all(&|_, unit| Some(unit.group) != group)
            }
            Self::Only(nth) => all(&|i, _| i as u64 == nth),
            Self::Missing(nth) => all(&|i, _| i as u64 != nth),
            Self::Combination(nth) => combination(units, nth),
            Self::Sample(nth) => sample(units, nth, &mut Rng::at(&[seed, 2, nth])),
            Self::Torn(nth) => torn(units, nth, &mut Rng::at(&[seed, 3, nth])),
        }
    }
}

/// The groups of the units, oldest first.
fn groups(units: &[Unit]) -> Vec<u64> {
    let mut groups: Vec<u64> = units.iter().map(|unit| unit.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Reads `nth` as a number whose digits are the versions of the units.
fn combination(units: &[Unit], nth: u64) -> Vec<Pick> {
    let mut rest = nth;
    units
        .iter()
        .map(|unit| {
            let versions = unit.times.len() as u64 + 1;
            let digit = rest % versions;
            rest /= versions;
            Pick::Version(digit as usize)
        })
        .collect()
}

/// Sparse, even and dense subsets in turn; most kept units in their newest version.
fn sample(units: &[Unit], nth: u64, rng: &mut Rng) -> Vec<Pick> {
    let density = [5, 2, 8][nth as usize % 3];
    units
        .iter()
        .map(|unit| {
            let newest = unit.times.len();
            if !rng.chance(density) {
                Pick::Version(0)
            } else if rng.chance(7) {
                Pick::Version(newest)
            } else {
                Pick::Version(rng.below(newest as u64 + 1) as usize)
            }
        })
        .collect()
}

/// One torn unit among complete ones, one among missing ones, and many torn ones, in turn.
fn torn(units: &[Unit], nth: u64, rng: &mut Rng) -> Vec<Pick> {
    let target = torn_target(units, rng);
    units
        .iter()
        .enumerate()
        .map(|(i, unit)| match nth % 3 {
            _ if i == target => Pick::Torn(rng.next_u64()),
            0 => Pick::Version(unit.times.len()),
            1 => Pick::Version(0),
            _ if rng.chance(4) => Pick::Torn(rng.next_u64()),
            _ => Pick::Version(rng.below(unit.times.len() as u64 + 1) as usize),
        })
        .collect()
}

/// Half of the time a unit of the newest group: what was being written when the power failed.
fn torn_target(units: &[Unit], rng: &mut Rng) -> usize {
    if rng.chance(5) {
        let newest = units.iter().map(|unit| unit.group).max();
        let last: Vec<usize> = (0..units.len())
            .filter(|&i| Some(units[i].group) == newest)
            .collect();
        return last
            .get(rng.below(last.len() as u64) as usize)
            .copied()
            .unwrap_or(0);
    }
    rng.below(units.len() as u64) as usize
}

/// How many images one crash point may cost, and of which kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Try all combinations when there are no more than this many.
    pub(crate) exhaustive: u64,
    /// Otherwise this many random subsets.
    pub(crate) samples: u64,
    /// And this many torn ones, in any case.
    pub(crate) torn: u64,
    /// Never more images than this.
    pub(crate) at_most: u64,
    /// Also a process death.
    pub(crate) kills: bool,
    /// Also power cuts.
    pub(crate) power_cuts: bool,
}

/// The choices worth trying at one crash point. Where they are more than it may cost, some of each kind, in an order of
/// chance: over many points with little for each, all kinds have their turn.
pub(crate) fn choices(units: &[Unit], effort: &Effort, rng: &mut Rng) -> Vec<Choice> {
    let mut found = Vec::new();
    if effort.kills {
        found.push(Choice::Kill);
    }
    if effort.power_cuts {
        power_cuts(units, effort, rng, &mut found);
    }
    if found.len() as u64 <= effort.at_most {
        return found;
    }
    some_of_each_kind(found, effort.at_most, rng)
}

/// The kinds take turns; which begins, and which of a kind comes first, is left to chance.
fn some_of_each_kind(found: Vec<Choice>, at_most: u64, rng: &mut Rng) -> Vec<Choice> {
    let mut kinds: Vec<Vec<Choice>> = Vec::new();
    for choice in found {
        let of_its_kind = kinds.iter_mut().find(|kind| kind[0].is_like(choice));
        match of_its_kind {
            Some(kind) => kind.push(choice),
            None => kinds.push(vec![choice]),
        }
    }
    shuffle(&mut kinds, rng);
    for kind in &mut kinds {
        shuffle(kind, rng);
    }
    let most = kinds.iter().map(Vec::len).max().unwrap_or(0);
    let turns = (0..most).flat_map(|turn| kinds.iter().filter_map(move |kind| kind.get(turn)));
    turns.take(at_most as usize).copied().collect()
}

fn shuffle<T>(all: &mut [T], rng: &mut Rng) {
    for last in (1..all.len()).rev() {
        all.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

fn power_cuts(units: &[Unit], effort: &Effort, rng: &mut Rng, found: &mut Vec<Choice>) {
    found.push(Choice::Nothing);
    if units.is_empty() {
        return;
    }
    found.push(Choice::Everything);
    let combinations = units
        .iter()
        .try_fold(1_u64, |product, unit| {
            product.checked_mul(unit.times.len() as u64 + 1)
        })
        .filter(|&product| product <= effort.exhaustive.min(effort.at_most));
    if let Some(combinations) = combinations {
        found.extend((0..combinations).map(Choice::Combination));
    } else {
        let groups = groups(units).len() as u64;
        singles(
            groups,
            effort.at_most / 4,
            rng,
            found,
            Choice::GroupOnly,
            Choice::GroupMissing,
        );
        let units = units.len() as u64;
        if units != groups {
            singles(
                units,
                effort.at_most / 4,
                rng,
                found,
                Choice::Only,
                Choice::Missing,
            );
        }
    }
    // Interleaved, so that a budget that cuts the list short cuts both kinds.
    let samples = if combinations.is_some() {
        0
    } else {
        effort.samples
    };
    for nth in 0..samples.max(effort.torn) {
        if nth < effort.torn {
            found.push(Choice::Torn(nth));
        }
        if nth < samples {
            found.push(Choice::Sample(nth));
        }
    }
}

/// Each position once alone and once missing; random positions when there are too many, with the
/// newest always among them.
fn singles(
    count: u64,
    at_most: u64,
    rng: &mut Rng,
    found: &mut Vec<Choice>,
    only: fn(u64) -> Choice,
    missing: fn(u64) -> Choice,
) {
    let all = count * 2 <= at_most.max(4);
    let tried = if all { count } else { at_most.max(4) / 2 };
    for nth in 0..tried {
        let position = match nth {
            _ if all => nth,
            0 => count - 1,
            _ => rng.below(count),
        };
        found.push(only(position));
        found.push(missing(position));
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nothing"),
            Self::Everything => write!(f, "everything"),
            Self::Kill => write!(f, "kill"),
            Self::GroupOnly(nth) => write!(f, "grouponly{nth}"),
            Self::GroupMissing(nth) => write!(f, "groupmissing{nth}"),
            Self::Only(nth) => write!(f, "only{nth}"),
            Self::Missing(nth) => write!(f, "missing{nth}"),
            Self::Combination(nth) => write!(f, "combination{nth}"),
            Self::Sample(nth) => write!(f, "sample{nth}"),
            Self::Torn(nth) => write!(f, "torn{nth}"),
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(text.len());
        let (name, number) = text.split_at(digits);
        let nth: u64 = if number.is_empty() {
            0
        } else {
            number
                .parse()
                .map_err(|_| format!("no number in choice {text:?}"))?
        };
        Ok(match name {
            "nothing" => Self::Nothing,
            "everything" => Self::Everything,
            "kill" => Self::Kill,
            "grouponly" => Self::GroupOnly(nth),
            "groupmissing" => Self::GroupMissing(nth),
            "only" => Self::Only(nth),
            "missing" => Self::Missing(nth),
            "combination" => Self::Combination(nth),
            "sample" => Self::Sample(nth),
            "torn" => Self::Torn(nth),
            _ => return Err(format!("unknown choice {text:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Effort = Effort {
        exhaustive: 4,
        samples: 24,
        torn: 12,
        at_most: 1,
        kills: true,
        power_cuts: true,
    };

    fn outstanding() -> Vec<Unit> {
        let unit = |nth| Unit {
            place: Place::Line(nth),
            group: nth / 2,
            times: vec![nth],
        };
        (0..6).map(unit).collect()
    }

    #[test]
    fn points_with_little_each_are_not_only_killed() {
        let chosen: Vec<Choice> = (0..200)
            .flat_map(|point| choices(&outstanding(), &LITTLE, &mut Rng::new(point)))
            .collect();
        assert_eq!(chosen.len(), 200);
        for wanted in [
            Choice::Kill,
            Choice::Nothing,
            Choice::Everything,
            Choice::GroupOnly(0),
            Choice::GroupMissing(0),
            Choice::Only(0),
            Choice::Missing(0),
            Choice::Sample(0),
            Choice::Torn(0),
        ] {
            let count = chosen.iter().filter(|one| one.is_like(wanted)).count();
            assert!(count >= 8, "{wanted}: {count} of 200");
        }
    }

    #[test]
    fn what_is_affordable_is_all_tried() {
        let effort = |at_most| Effort { at_most, ..LITTLE };
        let all = choices(&outstanding(), &effort(1000), &mut Rng::new(1));
        let as_many = choices(&outstanding(), &effort(all.len() as u64), &mut Rng::new(1));
        assert_eq!(all, as_many);
        let fewer = choices(&outstanding(), &effort(10), &mut Rng::new(1));
        let distinct: std::collections::HashSet<Choice> = fewer.iter().copied().collect();
        assert_eq!((fewer.len(), distinct.len()), (10, 10), "{fewer:?}");
    }
}
