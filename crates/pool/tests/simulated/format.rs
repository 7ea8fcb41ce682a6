//! `docs/format.md` against the code: every structure, every field, every constant.

use std::collections::BTreeMap;

use adit_pool::layout::{
    self, FieldPlace, FileEntry, Geometry, Name, Record, Shared, Slot, Superblock,
};

const FORMAT: &str = include_str!("../../../../docs/format.md");

type Structures = BTreeMap<String, (usize, Vec<(String, usize, usize)>)>;

/// The tables under headings of the form `### Name (N bytes)`.
fn structures_of(text: &str) -> Structures {
    let mut structures = Structures::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            current = heading.split_once(" (").and_then(|(name, size)| {
                let size = size.strip_suffix(" bytes)")?.parse().ok()?;
                structures.insert(name.to_owned(), (size, Vec::new()));
                Some(name.to_owned())
            });
        } else if let Some(name) = &current
            && let Some(row) = row_of(line)
        {
            structures.get_mut(name).expect("inserted").1.push(row);
        }
    }
    structures
}

/// `| offset | size | `field` | meaning |`
fn row_of(line: &str) -> Option<(String, usize, usize)> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let [offset, size, field, meaning, ..] = cells[..] else {
        return None;
    };
    let field = field.strip_prefix('`')?.strip_suffix('`')?;
    let place = (offset.parse().ok()?, size.parse().ok()?);
    assert!(meaning.len() > 3, "{field} has no meaning");
    Some((field.to_owned(), place.0, place.1))
}

fn code() -> Structures {
    let of = |name: &str, size: usize, fields: &[FieldPlace]| {
        let fields = fields
            .iter()
            .map(|f| (f.name.to_owned(), f.offset, f.size))
            .collect();
        (name.to_owned(), (size, fields))
    };
    BTreeMap::from([
        of("Superblock", Superblock::SIZE, Superblock::FIELDS),
        of("Shared", Shared::SIZE, Shared::FIELDS),
        of("Slot", Slot::SIZE, Slot::FIELDS),
        of("FileEntry", FileEntry::SIZE, FileEntry::FIELDS),
        of("Name", Name::SIZE, Name::FIELDS),
        of("Record", Record::SIZE, Record::FIELDS),
    ])
}

/// Rows of the form `| `NAME` | value | …`, decimal.
fn constants_of(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
            let name = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
            Some((name.to_owned(), cells.get(1)?.parse().ok()?))
        })
        .collect()
}

#[test]
fn the_tables_are_the_code() {
    assert_eq!(structures_of(FORMAT), code());
}

#[test]
fn the_constants_are_the_code() {
    let geometry = Geometry::default();
    let expected = [
        ("VERSION", u64::from(layout::VERSION)),
        ("PAGE", layout::PAGE),
        ("LINE", layout::LINE),
        ("SUPERBLOCK_A", layout::SUPERBLOCK_A),
        ("SUPERBLOCK_B", layout::SUPERBLOCK_B),
        ("SHARED", layout::SHARED),
        ("NAMES", layout::NAMES),
        ("SLOTS", layout::SLOTS),
        ("NAME_PAGES", layout::NAME_PAGES),
        ("HANDLE_MAX", layout::HANDLE_MAX as u64),
        ("PATH_LIMIT", layout::PATH_LIMIT as u64),
        ("ORPHAN", u64::from(layout::ORPHAN)),
        ("chunk table", geometry.chunk_table()),
        ("file table", geometry.file_table()),
        ("end of the tables", geometry.header_len()),
        ("Free", layout::ChunkKind::Free as u64),
        ("Header", layout::ChunkKind::Header as u64),
        ("Data", layout::ChunkKind::Data as u64),
        ("Log", layout::ChunkKind::Log as u64),
        ("Names", layout::ChunkKind::Names as u64),
        ("Region", layout::ChunkKind::Region as u64),
        ("Absent", layout::ChunkKind::Absent as u64),
        ("Write", layout::RecordKind::Write as u64),
        ("Truncate", layout::RecordKind::Truncate as u64),
        ("Zero", layout::RecordKind::Zero as u64),
        ("Relink", layout::RecordKind::Relink as u64),
        ("Commit", layout::RecordKind::Commit as u64),
        ("COMMITTED", u64::from(Record::COMMITTED)),
        ("GROUP", u64::from(Record::GROUP)),
        ("DATA_CRC", u64::from(Record::DATA_CRC)),
        ("CHAINED", u64::from(Record::CHAINED)),
        ("TOGETHER", u64::from(Record::TOGETHER)),
        ("PAGED", u64::from(Record::PAGED)),
        ("ERASED", u64::from(Record::ERASED)),
        ("EMPTY", u64::from(FileEntry::EMPTY)),
        ("LIVE", u64::from(FileEntry::LIVE)),
        ("CACHED", FileEntry::CACHED),
        ("FREE", Slot::FREE),
        ("ATTACHED", Slot::ATTACHED),
        ("CLEAN", u64::from(Superblock::CLEAN)),
    ];
    let written = constants_of(FORMAT);
    for (name, value) in expected {
        assert_eq!(written.get(name), Some(&value), "{name}");
    }
}

/// The comparison sees a drift of any kind.
#[test]
fn a_planted_drift_is_seen() {
    let drifts = [
        ("| 24 | 8 | `file_offset` |", "| 24 | 4 | `file_offset` |"),
        ("| 24 | 8 | `file_offset` |", "| 32 | 8 | `file_offset` |"),
        ("| 24 | 8 | `file_offset` |", "| 24 | 8 | `offset` |"),
        ("### Record (64 bytes)", "### Record (72 bytes)"),
        ("### Slot (64 bytes)", "### Slots"),
    ];
    for (from, to) in drifts {
        assert!(FORMAT.contains(from), "{from}");
        assert_ne!(
            structures_of(&FORMAT.replace(from, to)),
            code(),
            "{from} became {to}"
        );
    }
    let without: String = FORMAT
        .lines()
        .filter(|line| !line.contains("`data_crc` |"))
        .collect::<Vec<_>>()
        .join("\n");
    assert_ne!(structures_of(&without), code());
    assert_ne!(
        constants_of(&FORMAT.replace("| `Log` | 3 |", "| `Log` | 4 |")),
        constants_of(FORMAT)
    );
}

/// The words in atomic fields are where 8-byte atomics can reach them, and each line's words share
/// writers: progress words never lie in the line of the identity.
#[test]
fn words_are_aligned() {
    for (name, (size, fields)) in code() {
        assert_eq!(size % 8, 0, "{name}");
        for (field, offset, size) in fields {
            if size == 8 {
                assert_eq!(offset % 8, 0, "{name}.{field}");
            }
        }
    }
    assert_eq!(std::mem::offset_of!(FileEntry, retired), 64);
}
