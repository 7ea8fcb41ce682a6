//! What is decided without walking anywhere twice is what was decided by walks from each record.

use std::cell::Cell;

use adit_sim::Rng;

use super::*;
use crate::log::Place;

thread_local! {
    /// Steps so far, and how many are too many.
    static STEPS: Cell<(usize, usize)> = const { Cell::new((0, usize::MAX)) };
}

pub(super) fn count() {
    let (steps, most) = STEPS.get();
    // Or who walks quadratically would be waited for.
    assert!(steps < most, "more than {most} steps");
    STEPS.set((steps + 1, most));
}

/// How many steps some work takes, which must not be more than so many.
fn steps_of<T>(most: usize, work: impl FnOnce() -> T) -> usize {
    STEPS.set((0, most));
    work();
    STEPS.replace((0, usize::MAX)).0
}

/// What counts, by its definition: each walk goes from record to record, wherever others have been.
mod by_walking {
    use super::*;

    pub(super) fn verdict(items: &[Item], retired: u64, boot: u32) -> Verdict {
        let mut verdict = Verdict::default();
        let mut ends: Vec<Option<usize>> = vec![None; items.len()];
        for (at, end) in items.iter().enumerate() {
            if !end.is_group_end() {
                continue;
            }
            match group_of(at, items, &ends) {
                Ok(members) => {
                    ends[at] = Some(at);
                    members
                        .into_iter()
                        .for_each(|member| ends[member] = Some(at));
                }
                Err(missing) if end.boot == boot || missing <= retired => {
                    verdict.chains_broken.push((at, missing));
                }
                Err(_) => {}
            }
        }
        let mut committed = committed(items, retired, boot, &mut verdict.chains_broken);
        for at in 0..items.len() {
            committed[at] |= ends[at].is_some_and(|end| committed[end]);
        }
        for (at, item) in items.iter().enumerate() {
            let in_group = item.is_member() || item.is_group_end();
            let unclosed = (in_group && ends[at].is_none()) || (item.broken && !committed[at]);
            let uncommitted = !unclosed && item.boot != boot && !committed[at] && !item.is_commit();
            verdict.unclosed += u64::from(unclosed);
            verdict.uncommitted += u64::from(uncommitted);
            verdict.states.push(match unclosed || uncommitted {
                true => State::Dropped,
                false => State::Live,
            });
            let end = ends[at].map_or(item, |end| &items[end]);
            verdict.end_seqs.push(end.seq);
        }
        verdict.committed = committed;
        verdict
    }

    fn group_of(end: usize, items: &[Item], ends: &[Option<usize>]) -> Result<Vec<usize>, u64> {
        let mut members = Vec::new();
        let closing = &items[end];
        let mut next = closing.prev;
        let mut at = end;
        for _ in 0..closing.count {
            at = before(items, at, next).ok_or(next)?;
            if !items[at].is_member() || items[at].boot != closing.boot || ends[at].is_some() {
                return Err(next);
            }
            members.push(at);
            next = items[at].prev;
        }
        Ok(members)
    }

    fn committed(
        items: &[Item],
        retired: u64,
        boot: u32,
        broken: &mut Vec<(usize, u64)>,
    ) -> Vec<bool> {
        let stands = standing(items, retired);
        let marked = |at: usize| items[at].flags & Record::COMMITTED != 0 && stands[at];
        let mut committed: Vec<bool> = (0..items.len()).map(marked).collect();
        let mut walked = vec![false; items.len()];
        for (at, commit) in items.iter().enumerate() {
            if !commit.is_commit() || commit.broken {
                continue;
            }
            match covered(at, items, retired, &walked) {
                Ok(_) if !stands[at] => {}
                Ok(covered) => {
                    for i in covered {
                        walked[i] = true;
                        committed[i] = true;
                    }
                }
                Err(_) if commit.boot == boot || may_be_cut_off(at, items) => {}
                Err(missing) => broken.push((at, missing)),
            }
        }
        committed
    }

    fn covered(
        commit: usize,
        items: &[Item],
        retired: u64,
        walked: &[bool],
    ) -> Result<Vec<usize>, u64> {
        let mut members = Vec::new();
        let mut next = items[commit].prev;
        let mut at = commit;
        while next > retired {
            at = before(items, at, next).ok_or(next)?;
            let commits = items[at].is_commit() && !items[at].broken;
            if commits || items[at].boot != items[commit].boot || walked[at] {
                break;
            }
            members.push(at);
            next = items[at].prev;
        }
        Ok(members)
    }

    pub(super) fn lacking(items: &[Item], retired: u64) -> Vec<Option<u64>> {
        let walked = vec![false; items.len()];
        let lacks = |at| covered(at, items, retired, &walked).err();
        (0..items.len()).map(lacks).collect()
    }

    pub(super) fn may_be_cut_off(at: usize, items: &[Item]) -> bool {
        let item = &items[at];
        let rest = items[at + 1..].iter().inspect(|_| count());
        if item.flags & Record::PAGED != 0 {
            let own = usize::from(!tells_of_a_sync(item));
            let mut later = rest.filter(|later| tells_of_a_sync(later)).skip(own);
            let mut seen = 0;
            later.all(|later| {
                seen += 1;
                seen <= AT_A_TIME && later.flags & Record::CHAINED != 0
            })
        } else {
            let mut later = rest.filter(|later| later.boot == item.boot);
            if item.is_member() {
                later.find(|later| !later.is_member());
            }
            item.flags & Record::DATA_CRC != 0 && later.next().is_none()
        }
    }
}

/// The boot in which all is judged.
const NOW: u32 = 3;

fn record(seq: u64, kind: RecordKind, flags: u8, boot: u32) -> Item {
    Item {
        file_id: 1,
        seq,
        prev: seq - 1,
        place: Place {
            chunk: 0,
            position: 0,
        },
        count: 0,
        kind,
        flags,
        boot,
        state: State::Retired,
        committed: false,
        broken: false,
        linked: false,
        end_seq: 0,
    }
}

/// Records of which every word but their order is made up, though often what it might be.
fn forged(rng: &mut Rng) -> Vec<Item> {
    const FLAGS: [u8; 6] = [
        Record::COMMITTED,
        Record::GROUP,
        Record::DATA_CRC,
        Record::CHAINED,
        Record::TOGETHER,
        Record::PAGED,
    ];
    let (grouped, gaps, boots) = (rng.below(10), rng.below(3), 1 + rng.below(3));
    let most = if rng.chance(1) { 120 } else { 24 };
    let records = rng.below(most);
    let mut seq = 0;
    let mut forge = |_| {
        seq += 1 + u64::from(rng.chance(gaps));
        let kind = match rng.below(4) {
            0 | 1 => RecordKind::Write,
            2 => RecordKind::Truncate,
            _ => RecordKind::Commit,
        };
        let some = |flags: u8, flag: &u8| match *flag {
            Record::GROUP => flags | if rng.chance(grouped) { *flag } else { 0 },
            _ => flags | if rng.chance(4) { *flag } else { 0 },
        };
        let flags = FLAGS.iter().fold(0, some);
        let boot = NOW + 1 - rng.below(boots) as u32;
        let mut item = record(seq, kind, flags, boot);
        if rng.chance(4) {
            item.prev = rng.below(seq + 2);
        }
        item.count = rng.below(6) as u32;
        item.broken = item.is_together() && rng.chance(3);
        item
    };
    (0..records).map(&mut forge).collect()
}

#[test]
fn forged_records_get_what_walks_from_each_of_them_decide() {
    let (mut whole, mut torn, mut broken, mut committed, mut cut_off) = (0, 0, 0, 0, 0);
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let items = forged(&mut rng);
        let retired = rng.below(4);
        let first = items.partition_point(|item| item.seq <= retired);
        let items = &items[first..];
        let verdict = Verdict::of(items, retired, NOW);
        let wanted = by_walking::verdict(items, retired, NOW);
        assert!(verdict == wanted, "seed {seed}");
        let lacks = lacking(items, retired);
        assert_eq!(
            lacks,
            by_walking::lacking(items, retired),
            "seed {seed}: what is lacking"
        );
        let behind = Behind::of(items);
        for at in 0..items.len() {
            let may_be = behind.may_be_cut_off(at);
            let wanted = by_walking::may_be_cut_off(at, items);
            assert_eq!(may_be, wanted, "seed {seed}: record {at}");
            cut_off += u64::from(may_be);
            let in_group = verdict.end_seqs[at] != items[at].seq;
            whole += u64::from(in_group);
            committed += u64::from(verdict.committed[at]);
        }
        torn += verdict.unclosed;
        broken += verdict.chains_broken.len() as u64;
    }
    let seen = [whole, torn, broken, committed, cut_off];
    assert!(seen.iter().all(|seen| *seen > 1000), "{seen:?}");
}

/// Records that lead walks down the same ways again and again, about so many.
fn traps(records: u64) -> Vec<(&'static str, Vec<Item>)> {
    let (half, third) = (records / 2, records / 3);
    let chain = |from: u64, to: u64, flags, boot| {
        (from..to).map(move |seq| record(seq, RecordKind::Write, flags, boot))
    };
    let at_tip = |tip: u64, flags, boot, count: u64| {
        (tip + 1..tip + 1 + half).map(move |seq| Item {
            prev: tip,
            count: count as u32,
            ..record(seq, RecordKind::Commit, flags, boot)
        })
    };
    let too_many =
        chain(2, half, Record::GROUP, NOW).chain(at_tip(half - 1, Record::GROUP, NOW, records));
    // Each time one member less is free when all are wanted.
    let taken = (0..2 * third).map(|nth| {
        let (by_one, lost) = (nth % 2 == 0, nth / 2);
        Item {
            prev: if by_one { 1 + lost } else { third },
            count: if by_one { 1 } else { (third - lost) as u32 },
            ..record(third + 1 + nth, RecordKind::Commit, Record::GROUP, NOW)
        }
    });
    let taken = chain(1, third + 1, Record::GROUP, NOW).chain(taken);
    let covered = chain(1, half, 0, 1).chain(at_tip(half - 1, 0, 1, 0));
    let lacking = chain(2, half, 0, 1).chain(at_tip(half - 1, 0, 1, 0));
    let chained = Record::CHAINED;
    let hanging = chain(2, 3, chained, 1)
        .chain(chain(3, half, chained, 2))
        .chain(at_tip(half - 1, chained, 2, 0));
    let each_of_a_boot = (1..records).map(|nth| Item {
        prev: 2 * nth - 1,
        ..record(
            2 * nth,
            RecordKind::Commit,
            Record::DATA_CRC,
            100 + nth as u32,
        )
    });
    let members = chain(1, records, Record::GROUP | Record::DATA_CRC, 1);
    let paged = (1..records).map(|nth| Item {
        prev: 2 * nth - 1,
        ..record(2 * nth, RecordKind::Commit, Record::PAGED | chained, 1)
    });
    vec![
        ("groups of more than there are", too_many.collect()),
        ("groups of what others have", taken.collect()),
        ("commits of what others commit", covered.collect()),
        ("commits of what is missing", lacking.collect()),
        ("commits that hang on what is missing", hanging.collect()),
        ("commits of a boot each", each_of_a_boot.collect()),
        ("members without an end", members.collect()),
        ("commits behind a page cache", paged.collect()),
    ]
}

/// Steps for a record: a search through ranges, for groups, or a look, twice, at as many as may be under way at a time.
const EACH: usize = 150;

#[test]
fn forged_records_cost_no_more_than_others() {
    for (what, items) in traps(300_000) {
        let steps = steps_of(EACH * items.len(), || {
            let behind = Behind::of(&items);
            let cut_off = (0..items.len()).filter(|at| behind.may_be_cut_off(*at));
            (Verdict::of(&items, 0, NOW), cut_off.count())
        });
        assert!(steps >= items.len(), "{what}: {steps} steps");
    }
}

/// So the numbers say what they are to say: all but two of these are traps for who walks from each.
#[test]
fn walks_from_each_record_go_into_the_traps() {
    let none = [
        "commits of what others commit",
        "commits behind a page cache",
    ];
    for (what, items) in traps(4_000) {
        let steps = steps_of(usize::MAX, || {
            let cut_off = (0..items.len()).filter(|at| by_walking::may_be_cut_off(*at, &items));
            (by_walking::verdict(&items, 0, NOW), cut_off.count())
        });
        let walks = steps > EACH * items.len();
        assert_eq!(walks, !none.contains(&what), "{what}: {steps} steps");
        let verdict = Verdict::of(&items, 0, NOW);
        assert!(verdict == by_walking::verdict(&items, 0, NOW), "{what}");
    }
}
