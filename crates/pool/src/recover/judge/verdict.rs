//! What becomes of the sound records of one file, by nothing but what they say.
//!
//! Whoever can write the pool chooses how they hang together: hundreds of thousands of commits may all lead down the same
//! chain, to a record that is missing. So nothing here walks twice where it has been. What a record's chain comes to is
//! found out from that of the record before, and only what is found whole is walked, once.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::Range;

use super::super::{AT_A_TIME, Item, State};
use crate::layout::{Record, RecordKind};

/// What became of the records of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) states: Vec<State>,
    pub(super) committed: Vec<bool>,
    pub(super) end_seqs: Vec<u64>,
    pub(super) unclosed: u64,
    pub(super) uncommitted: u64,
    /// Commit records whose chain is broken: which, and the missing sequence number.
    pub(super) chains_broken: Vec<(usize, u64)>,
}

impl Verdict {
    /// The fate of each sound record of one file, given in order, in this boot.
    pub(super) fn of(items: &[Item], retired: u64, boot: u32) -> Self {
        let mut verdict = Self::default();
        let groups = Groups::of(items);
        for (end, missing) in groups.torn {
            // After a crash of the system, a group cut short is what was to be expected.
            if items[end].boot == boot || missing <= retired {
                verdict.chains_broken.push((end, missing));
            }
        }
        let mut committed = committed(items, retired, boot, &mut verdict.chains_broken);
        // A group is committed with its end.
        for i in 0..items.len() {
            committed[i] |= groups.ends[i].is_some_and(|end| committed[end]);
        }
        for (i, item) in items.iter().enumerate() {
            let in_group = item.is_member() || item.is_group_end();
            verdict.states.push(
                if (in_group && groups.ends[i].is_none()) || (item.broken && !committed[i]) {
                    verdict.unclosed += 1;
                    State::Dropped
                } else if item.boot != boot && !committed[i] && !item.is_commit() {
                    verdict.uncommitted += 1;
                    State::Dropped
                } else {
                    State::Live
                },
            );
            let end = groups.ends[i].map_or(item, |end| &items[end]);
            verdict.end_seqs.push(end.seq);
        }
        verdict.committed = committed;
        verdict
    }
}

/// Which records are committed, by themselves or by a later one. Commits that lack what they cover are added to `broken`,
/// each with the number of what is missing.
fn committed(items: &[Item], retired: u64, boot: u32, broken: &mut Vec<(usize, u64)>) -> Vec<bool> {
    let stands = standing(items, retired);
    let lacks = lacking(items, retired);
    let behind = LazyCell::new(|| Behind::of(items));
    let mut committed: Vec<bool> = items
        .iter()
        .zip(&stands)
        .map(|(item, stands)| item.flags & Record::COMMITTED != 0 && *stands)
        .collect();
    let mut walked = vec![false; items.len()];
    let commits = items.iter().enumerate();
    for (at, commit) in commits.filter(|(_, item)| item.is_commit() && !item.broken) {
        match lacks[at] {
            // It is chained to a commit that is missing, or broken.
            None if !stands[at] => {}
            None => {
                for i in covered(at, items, retired, &walked) {
                    walked[i] = true;
                    committed[i] = true;
                }
            }
            // In this boot a record that was written while we walked may be missing here only.
            Some(_) if commit.boot == boot => {}
            // After a crash of the system the last commit may be there without all that it covers.
            Some(_) if behind.may_be_cut_off(at) => {}
            Some(missing) => broken.push((at, missing)),
        }
    }
    committed
}

/// The place of the record `seq` among those before place `before`. They are in order, without
/// duplicates, and a chain mostly leads to the neighbour.
fn before(items: &[Item], before: usize, seq: u64) -> Option<usize> {
    step();
    let last = before.checked_sub(1)?;
    if items[last].seq == seq {
        return Some(last);
    }
    items[..last]
        .binary_search_by_key(&seq, |item| item.seq)
        .ok()
}

/// The groups among the records of a file.
struct Groups {
    /// For members and ends of complete groups: the group's end.
    ends: Vec<Option<usize>>,
    /// The ends of the others, each with the sequence number of a member that is missing.
    torn: Vec<(usize, u64)>,
}

impl Groups {
    fn of(items: &[Item]) -> Self {
        let mut groups = Self {
            ends: vec![None; items.len()],
            torn: Vec::new(),
        };
        if !items.iter().any(Item::is_group_end) {
            return groups;
        }
        let places = places(items);
        let mut taken = Taken::none_of(items.len());
        let ends = items.iter().enumerate();
        for (end, closing) in ends.filter(|(_, item)| item.is_group_end()) {
            let place = &places[end];
            let last = taken.last(place.nth);
            // A record is a member of one group only.
            let (members, missing) = last.map_or((place.depth, place.missing), |last| {
                (place.depth - places[last].depth - 1, items[last].seq)
            });
            if closing.count as usize > members {
                groups.torn.push((end, missing));
                continue;
            }
            groups.ends[end] = Some(end);
            let mut at = end;
            for _ in 0..closing.count {
                let Some(member) = member_before(items, at) else {
                    break;
                };
                groups.ends[member] = Some(end);
                taken.take(&places[member], member);
                at = member;
            }
        }
        groups
    }
}

/// The record that one is chained to, if that is a member that one group of them may have.
fn member_before(items: &[Item], at: usize) -> Option<usize> {
    let prev = before(items, at, items[at].prev)?;
    (items[prev].is_member() && items[prev].boot == items[at].boot).then_some(prev)
}

/// Where a record is among all that members before them lead to: these are trees, as several records may be chained to one
/// member.
struct InTree {
    /// How many members there are down its chain.
    depth: usize,
    /// What would have to be the next one.
    missing: u64,
    /// Its number when all records are counted such that those whose chains lead to one follow it at once.
    nth: usize,
    /// How many these are, with itself.
    size: usize,
}

fn places(items: &[Item]) -> Vec<InTree> {
    let mut places: Vec<InTree> = Vec::with_capacity(items.len());
    let mut prevs = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let prev = member_before(items, at);
        let (depth, missing) = prev.map_or((0, item.prev), |prev| {
            (places[prev].depth + 1, places[prev].missing)
        });
        prevs.push(prev);
        places.push(InTree {
            depth,
            missing,
            nth: 0,
            size: 1,
        });
    }
    for at in (0..items.len()).rev() {
        if let Some(prev) = prevs[at] {
            places[prev].size += places[at].size;
        }
    }
    let mut free = 0;
    let mut free_behind = vec![0; items.len()];
    for at in 0..items.len() {
        let next = prevs[at].map_or(&mut free, |prev| &mut free_behind[prev]);
        places[at].nth = *next;
        *next += places[at].size;
        free_behind[at] = places[at].nth + 1;
    }
    places
}

/// Which members a group has already. A chain may lead through members of many groups, and the last of them is found without
/// going down it: a tree of ranges knows, of all records whose chains lead to a member, that it is taken.
struct Taken {
    ranges: Vec<Option<usize>>,
}

impl Taken {
    fn none_of(records: usize) -> Self {
        Self {
            ranges: vec![None; 2 * records],
        }
    }

    fn take(&mut self, place: &InTree, member: usize) {
        let records = self.ranges.len() / 2;
        let Range { mut start, mut end } = place.nth + records..place.nth + place.size + records;
        while start < end {
            step();
            if start % 2 == 1 {
                self.ranges[start] = self.ranges[start].max(Some(member));
                start += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                self.ranges[end] = self.ranges[end].max(Some(member));
            }
            (start, end) = (start / 2, end / 2);
        }
    }

    /// The last member taken down the chain of the record counted as `nth`. What a chain leads to lies before it, so that is
    /// the one nearest to it.
    fn last(&self, nth: usize) -> Option<usize> {
        let mut at = nth + self.ranges.len() / 2;
        let mut last = None;
        while at > 0 {
            step();
            last = last.max(self.ranges[at]);
            at /= 2;
        }
        last
    }
}

/// Which of the records have all that they are chained to: down the chain everything is there, up to one
/// that was written when all before it was durable.
pub(super) fn standing(items: &[Item], retired: u64) -> Vec<bool> {
    let mut stands = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let free = item.flags & Record::CHAINED == 0 || item.prev <= retired;
        let prev = |stands: &[bool]| before(items, at, item.prev).is_some_and(|prev| stands[prev]);
        stands.push(free || prev(&stands));
    }
    stands
}

/// Of each record what is missing of all that it would cover as a commit: the first sequence number that is not there.
pub(super) fn lacking(items: &[Item], retired: u64) -> Vec<Option<u64>> {
    let mut lacks: Vec<Option<u64>> = Vec::with_capacity(items.len());
    for at in 0..items.len() {
        lacks.push(match next_covered(at, items, retired) {
            Ok(next) => next.and_then(|next| lacks[next]),
            Err(missing) => Some(missing),
        });
    }
    lacks
}

/// The records that the commit at `commit` covers, of which none is missing, up to where another commit's walk came by. The
/// chain falls with every step, so it ends.
fn covered(commit: usize, items: &[Item], retired: u64, walked: &[bool]) -> Vec<usize> {
    let mut members = Vec::new();
    let mut at = commit;
    while let Ok(Some(next)) = next_covered(at, items, retired)
        && !walked[next]
    {
        members.push(next);
        at = next;
    }
    members
}

/// The next record down the chain that is covered by the same commit as the one at `at`, or the sequence number of that, if
/// it is missing. The chain of a commit leads to the commit before it.
fn next_covered(at: usize, items: &[Item], retired: u64) -> Result<Option<usize>, u64> {
    let Item { prev, boot, .. } = items[at];
    if prev <= retired {
        return Ok(None);
    }
    let next = before(items, at, prev).ok_or(prev)?;
    let commits = items[next].is_commit() && !items[next].broken;
    Ok((!commits && items[next].boot == boot).then_some(next))
}

/// What lies behind the records of a file: it says whether a loss of power may have kept a record without what it names.
pub(super) struct Behind<'a> {
    items: &'a [Item],
    /// Those that tell of a sync.
    telling: Vec<usize>,
    /// Whether a record is the last of its boot.
    last: Vec<bool>,
}

impl<'a> Behind<'a> {
    pub(super) fn of(items: &'a [Item]) -> Self {
        let telling = (0..items.len()).filter(|at| tells_of_a_sync(&items[*at]));
        Self {
            items,
            telling: telling.collect(),
            last: last_of_their_boots(items),
        }
    }

    /// Whether the power may have been cut before the record at `at` was durable with what it names.
    pub(super) fn may_be_cut_off(&self, at: usize) -> bool {
        let item = &self.items[at];
        if item.flags & Record::PAGED != 0 {
            // Where it was written a fence is a kernel sync.
            self.may_wait_for_a_sync(at)
        } else {
            // It shares one fence with its bytes, as short ones do in memory, and was written just before the loss.
            item.flags & Record::DATA_CRC != 0 && self.last[at]
        }
    }

    /// Whether a record written where a fence is a kernel sync, which it says itself, as the pool may lie on another medium
    /// by now, is followed by none that says that it was durable. What commits says so of all before it, unless it is chained
    /// to the record before; but a record's own commit became durable with it.
    fn may_wait_for_a_sync(&self, at: usize) -> bool {
        let own = usize::from(!tells_of_a_sync(&self.items[at]));
        let behind = self.telling.partition_point(|telling| *telling <= at);
        let mut later = self.telling[behind..].iter().skip(own);
        let mut seen = 0;
        later.all(|later| {
            step();
            seen += 1;
            seen <= AT_A_TIME && self.items[*later].flags & Record::CHAINED != 0
        })
    }
}

/// Whether it says that what was logged before it is durable.
fn tells_of_a_sync(item: &Item) -> bool {
    item.flags & Record::COMMITTED != 0 || item.kind == RecordKind::Commit
}

/// Of each record whether it is the last of its boot that was written with its fence: who writes the next one of the file
/// holds its lock, which is not given up before the fence. The members of a group have theirs in common with its end.
fn last_of_their_boots(items: &[Item]) -> Vec<bool> {
    /// What was seen of a boot, from its last record on backwards.
    #[derive(Clone, Copy)]
    struct Seen {
        nothing: bool,
        /// No record that is not a member, or none behind the first of these.
        nothing_behind_an_end: bool,
    }
    let mut boots = BTreeMap::new();
    let mut last = vec![false; items.len()];
    for (at, item) in items.iter().enumerate().rev() {
        step();
        let seen = boots.entry(item.boot).or_insert(Seen {
            nothing: true,
            nothing_behind_an_end: true,
        });
        if item.is_member() {
            last[at] = seen.nothing_behind_an_end;
        } else {
            last[at] = seen.nothing;
            seen.nothing_behind_an_end = seen.nothing;
        }
        seen.nothing = false;
    }
    last
}

/// One step of the work, as tests count it.
#[inline(always)]
fn step() {
    #[cfg(test)]
    tests::count();
}

#[cfg(test)]
mod tests;
