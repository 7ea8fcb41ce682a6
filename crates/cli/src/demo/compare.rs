//! Finds every difference between two directory trees: names, kinds, modes, sizes, bytes, targets.
//!
//! Times are not compared, two runs never have the same; the cases themselves print what depends
//! on them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// No more differences than this are listed.
const MOST: usize = 20;
/// Deeper trees than the cases make are a sign of something going wrong.
const DEEPEST: u32 = 64;

/// The differences, as sentences; empty when the trees are the same.
pub(crate) fn trees(plain: &Path, adit: &Path) -> Vec<String> {
    let mut found = Vec::new();
    directories(plain, adit, Path::new(""), 0, &mut found);
    found.truncate(MOST);
    found
}

fn directories(plain: &Path, adit: &Path, inside: &Path, depth: u32, found: &mut Vec<String>) {
    if depth > DEEPEST {
        return found.push(format!("{}: too deep to compare", inside.display()));
    }
    let (left, right) = match (names(plain), names(adit)) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(e), _) | (_, Err(e)) => {
            return found.push(format!("{} cannot be listed: {e}", inside.display()));
        }
    };
    for name in left.union(&right) {
        if found.len() >= MOST {
            return;
        }
        let path = inside.join(name);
        match (left.contains(name), right.contains(name)) {
            (true, true) => {
                entries(&plain.join(name), &adit.join(name), &path, depth, found);
            }
            (true, false) => found.push(format!("{} is missing under adit", path.display())),
            _ => found.push(format!("{} exists only under adit", path.display())),
        }
    }
}

fn entries(plain: &Path, adit: &Path, path: &Path, depth: u32, found: &mut Vec<String>) {
    let (Ok(left), Ok(right)) = (fs::symlink_metadata(plain), fs::symlink_metadata(adit)) else {
        return found.push(format!("{} cannot be looked at", path.display()));
    };
    if left.mode() != right.mode() {
        let (l, r) = (left.mode(), right.mode());
        found.push(format!(
            "{}: mode {l:o} plainly, {r:o} under adit",
            path.display()
        ));
    }
    let (left_kind, right_kind) = (left.file_type(), right.file_type());
    if left_kind != right_kind {
        return;
    }
    if left_kind.is_dir() {
        directories(plain, adit, path, depth + 1, found);
    } else if left_kind.is_symlink() {
        if fs::read_link(plain).ok() != fs::read_link(adit).ok() {
            found.push(format!("{}: another target", path.display()));
        }
    } else if left_kind.is_file() {
        if left.len() != right.len() {
            let (l, r) = (left.len(), right.len());
            found.push(format!(
                "{}: {l} bytes plainly, {r} under adit",
                path.display()
            ));
        }
        contents(plain, adit, path, found);
    } else if left_kind.is_socket() || left_kind.is_fifo() {
        // A name is all there is to compare.
    }
}

fn contents(plain: &Path, adit: &Path, path: &Path, found: &mut Vec<String>) {
    match first_difference(plain, adit) {
        Ok(None) => {}
        Ok(Some(at)) => found.push(format!("{}: byte {at} differs", path.display())),
        Err(e) => found.push(format!("{} cannot be read: {e}", path.display())),
    }
}

/// Where the bytes that both have differ first.
fn first_difference(plain: &Path, adit: &Path) -> std::io::Result<Option<u64>> {
    let (mut left, mut right) = (File::open(plain)?, File::open(adit)?);
    let (mut l, mut r) = (vec![0u8; 1 << 16], vec![0u8; 1 << 16]);
    let mut at = 0u64;
    loop {
        let (left_len, right_len) = (fill(&mut left, &mut l)?, fill(&mut right, &mut r)?);
        let both = left_len.min(right_len);
        if let Some(differs) = l[..both].iter().zip(&r[..both]).position(|(a, b)| a != b) {
            return Ok(Some(at + differs as u64));
        }
        if both < l.len() {
            return Ok((left_len != right_len).then_some(at + both as u64));
        }
        at += both as u64;
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn names(dir: &Path) -> std::io::Result<BTreeSet<OsString>> {
    fs::read_dir(dir)?
        .map(|entry| entry.map(|e| e.file_name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    struct Two(PathBuf);

    impl Two {
        fn new(name: &str) -> Self {
            let base =
                std::env::temp_dir().join(format!("adit-compare-{name}-{}", std::process::id()));
            for side in ["l", "r"] {
                fs::create_dir_all(base.join(side).join("sub")).unwrap();
                fs::write(base.join(side).join("sub/file"), vec![7u8; 200_000]).unwrap();
                std::os::unix::fs::symlink("file", base.join(side).join("sub/link")).unwrap();
            }
            Self(base)
        }
        fn differences(&self) -> Vec<String> {
            trees(&self.0.join("l"), &self.0.join("r"))
        }
        fn right(&self, name: &str) -> PathBuf {
            self.0.join("r").join(name)
        }
    }

    impl Drop for Two {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_same_trees() {
        assert_eq!(Two::new("same").differences(), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let plant = |name: &str, expected: &str, change: &dyn Fn(&Two)| {
            let two = Two::new(name);
            change(&two);
            let found = two.differences();
            assert!(
                found.iter().any(|f| f.contains(expected)),
                "{name}: {found:?}"
            );
        };
        plant("byte", "byte 150000 differs", &|two| {
            let mut bytes = vec![7u8; 200_000];
            bytes[150_000] = 8;
            fs::write(two.right("sub/file"), bytes).unwrap();
        });
        plant("shorter", "200000 bytes plainly, 199999", &|two| {
            fs::write(two.right("sub/file"), vec![7u8; 199_999]).unwrap();
        });
        plant("missing", "missing under adit", &|two| {
            fs::remove_file(two.right("sub/file")).unwrap();
        });
        plant("more", "only under adit", &|two| {
            fs::write(two.right("sub/new"), b"").unwrap();
        });
        plant("mode", "mode", &|two| {
            fs::set_permissions(two.right("sub/file"), fs::Permissions::from_mode(0o600)).unwrap();
        });
        plant("kind", "mode", &|two| {
            fs::remove_file(two.right("sub/link")).unwrap();
            fs::write(two.right("sub/link"), b"").unwrap();
        });
        plant("target", "another target", &|two| {
            fs::remove_file(two.right("sub/link")).unwrap();
            std::os::unix::fs::symlink("other", two.right("sub/link")).unwrap();
        });
    }
}
