//! What is new of one file in the logs of others, without a walk over all of them.
//!
//! Several programs may write one file, each to its own log. Who follows the file remembers how far it
//! has seen each log and looks behind that. What it finds need not be believed to be all: the file's
//! sequence numbers say how many records there must be, and where one is missing, or stands for more than
//! itself, the answer is that somebody has to walk.

use adit_pmem::Medium;

use crate::error::{Result, readable};
use crate::files::FileRef;
use crate::layout::{ChunkKind, Record, RecordKind};
use crate::log::Place;
use crate::pool::Pool;
use crate::recover::{ReplayOp, op_of};

/// Lines behind the last written one that are looked at: others may have taken places and not written
/// to them yet.
const LOOK_AHEAD: u32 = 64;

/// More new records than this are found by a walk just as well.
const MOST: u64 = 1 << 16;

/// A record that a follower had not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// Its place in the file's order; of members of a group, that of the group's end.
    pub seq: u64,
    /// What it does; nothing, if it commits all before it.
    pub op: Option<ReplayOp>,
    /// Whether it counts after a crash of the system without a commit.
    pub committed: bool,
}

/// How far a follower of one file has seen the logs.
#[derive(Debug, Default)]
pub struct Tail {
    logs: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    chunk: u32,
    generation: u32,
    /// Behind the last line that was written.
    next: u32,
}

/// Records that are looked for.
struct Wanted {
    file: FileRef,
    from: u64,
    found: Vec<Option<Record>>,
    missing: usize,
}

impl Wanted {
    fn take(&mut self, record: &Record) {
        let nth = record.seq.checked_sub(self.from);
        let place = nth.and_then(|nth| self.found.get_mut(nth as usize));
        if let Some(place @ None) = place {
            *place = Some(*record);
            self.missing -= 1;
        }
    }
}

impl Tail {
    /// The records `from..to` of a file, in order. `None` where only a walk can tell. The caller has
    /// locked the file, so each of them is written, or never will be.
    pub fn news<M: Medium>(
        &mut self,
        pool: &Pool<M>,
        file: FileRef,
        from: u64,
        to: u64,
    ) -> Result<Option<Vec<News>>> {
        let count = to.saturating_sub(from);
        if count > MOST {
            return Ok(None);
        }
        let mut wanted = Wanted {
            file,
            from,
            found: vec![None; count as usize],
            missing: count as usize,
        };
        self.look_behind(pool, &mut wanted)?;
        if wanted.missing > 0 {
            self.find_logs(pool)?;
            self.look_behind(pool, &mut wanted)?;
        }
        let records: Option<Vec<Record>> = wanted.found.into_iter().collect();
        records.map_or(Ok(None), |records| news_of(pool, &records))
    }

    /// Goes on in each log that is known. The one that had something is the first to be asked next time.
    fn look_behind<M: Medium>(&mut self, pool: &Pool<M>, wanted: &mut Wanted) -> Result<()> {
        let mut nth = 0;
        while nth < self.logs.len() && wanted.missing > 0 {
            let before = wanted.missing;
            if !self.logs[nth].go_on(pool, wanted)? {
                self.logs.swap_remove(nth);
                continue;
            }
            if wanted.missing < before {
                self.logs.swap(0, nth);
            }
            nth += 1;
        }
        Ok(())
    }

    /// Adds the logs that are not known.
    fn find_logs<M: Medium>(&mut self, pool: &Pool<M>) -> Result<()> {
        for chunk in pool.geometry().header_chunks()..pool.chunk_count()? {
            let word = pool.chunk_word(chunk)?;
            let Some(word) = word.filter(|word| word.kind == ChunkKind::Log) else {
                continue;
            };
            if self.logs.iter().all(|seen| seen.chunk != chunk) {
                self.logs.push(Seen {
                    chunk,
                    generation: word.generation,
                    next: 0,
                });
            }
        }
        Ok(())
    }
}

impl Seen {
    /// Looks at what was written since; false when the chunk is no log any more.
    fn go_on<M: Medium>(&mut self, pool: &Pool<M>, wanted: &mut Wanted) -> Result<bool> {
        let word = pool.chunk_word(self.chunk)?;
        let Some(word) = word.filter(|word| word.kind == ChunkKind::Log) else {
            return Ok(false);
        };
        if word.generation != self.generation {
            (self.generation, self.next) = (word.generation, 0);
        }
        let end = pool.geometry().records_per_chunk();
        let mut position = self.next;
        while position < end.min(self.next.saturating_add(LOOK_AHEAD)) && wanted.missing > 0 {
            let place = Place {
                chunk: self.chunk,
                position,
            };
            position += 1;
            let Ok(line) = readable(pool.read_line(place))? else {
                continue;
            };
            let record = Record::decode(&line);
            if record.kind == 0 || record.generation != self.generation {
                continue;
            }
            self.next = position;
            if record.file_id == wanted.file.id
                && record.is_valid(pool.uuid(), place.chunk, place.position)
            {
                wanted.take(&record);
            }
        }
        Ok(true)
    }
}

/// What all of the records say, if each says it alone or within a group that is whole.
fn news_of<M: Medium>(pool: &Pool<M>, records: &[Record]) -> Result<Option<Vec<News>>> {
    let mut news: Vec<News> = Vec::with_capacity(records.len());
    let mut members = 0;
    for record in records {
        let Ok(kind) = pool.sense(record) else {
            return Ok(None);
        };
        let is_plain = record.boot == pool.boot_tag() && record.flags & Record::TOGETHER == 0;
        let in_group = record.flags & Record::GROUP != 0;
        let ends_group = in_group && kind == RecordKind::Commit;
        if !is_plain || kind == RecordKind::Relink || (!in_group && members > 0) {
            return Ok(None);
        }
        if kind.has_extent()
            && pool
                .sense_extent(record.pool_offset, u64::from(record.len))?
                .is_err()
        {
            return Ok(None);
        }
        let committed = record.flags & Record::COMMITTED != 0;
        if ends_group {
            if members != record.len as usize {
                return Ok(None);
            }
            let group = news.len() - members;
            for member in &mut news[group..] {
                (member.seq, member.committed) = (record.seq, committed);
            }
            members = 0;
            continue;
        }
        members += usize::from(in_group);
        news.push(News {
            seq: record.seq,
            op: op_of(record),
            committed: committed || kind == RecordKind::Commit,
        });
    }
    Ok((members == 0).then_some(news))
}
