//! The block device below a file system, where it is persistent memory: how its namespace is made
//! decides whether files can be mapped directly, and with what pages.

use std::fs::read_to_string;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use adit_pmem::{MediumKind, detect::Reason};
use serde::Serialize;

/// What one entry of a page directory maps.
const HUGE: u64 = 2 << 20;
const SECTOR: u64 = 512;

/// How a namespace of persistent memory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Namespace {
    /// With memory for page structures: what DAX needs.
    Fsdax,
    /// Without.
    Raw,
    /// Sectors are made atomic by a translation table, so no byte has a fixed place.
    Sector,
}

/// A device of persistent memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Device {
    /// Its name.
    pub(crate) name: String,
    /// How it is made.
    pub(crate) namespace: Namespace,
    /// What `ndctl` calls it.
    pub(crate) namespace_name: Option<String>,
    /// Whether it allows direct access at all.
    pub(crate) dax: bool,
    /// Whether huge pages fit: its memory, and the partition, begin at a multiple of 2 MB.
    pub(crate) aligned: bool,
}

impl Device {
    /// The device that `path` is, or lies on.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        let device = if file.file_type().is_block_device() {
            file.st_rdev()
        } else {
            file.st_dev()
        };
        let (major, minor) = (libc::major(device), libc::minor(device));
        Self::at(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
    }

    /// The device whose directory in sysfs this is, if it is persistent memory.
    fn at(entry: &Path) -> Option<Self> {
        let entry = entry.canonicalize().ok()?;
        let whole = whole(&entry)?;
        let maker = whole.parent()?.parent()?;
        let namespace = match kind(maker)? {
            "pfn" => Namespace::Fsdax,
            "btt" => Namespace::Sector,
            "namespace" => Namespace::Raw,
            _ => return None,
        };
        let number = |dir: &Path, name: &str| number(&read_to_string(dir.join(name)).ok()?);
        let start = number(&entry, "start").unwrap_or(0) * SECTOR;
        let memory = number(maker, "resource").unwrap_or(0);
        // Huge pages need the namespace's own leave, too.
        let align = number(maker, "align").unwrap_or(HUGE);
        Some(Self {
            name: entry.file_name()?.to_string_lossy().into_owned(),
            namespace,
            namespace_name: namespace_name(maker),
            dax: number(&whole, "queue/dax") == Some(1),
            aligned: align >= HUGE && memory.is_multiple_of(HUGE) && start.is_multiple_of(HUGE),
        })
    }

    /// What to do, so that files on it are mapped directly and with huge pages.
    pub(crate) fn advice(&self, kind: MediumKind, reason: Reason) -> Vec<String> {
        let direct = kind == MediumKind::Dax;
        let name = self.namespace_name.as_deref().unwrap_or("NAME");
        let anew = |options: &str| {
            format!(
                "save what is on {}, which this erases: ndctl create-namespace -f -e {name} -m fsdax {options}",
                self.name
            )
        };
        match self.namespace {
            _ if reason == Reason::DaxWithoutMapSync => vec![format!(
                "{} is mapped directly, but only the kernel can make stores durable (as with virtio-pmem): \
                 use an NVDIMM for MAP_SYNC",
                self.name
            )],
            Namespace::Raw if !direct => vec![format!(
                "the namespace of {} is raw: without page structures there is no DAX; {}",
                self.name,
                anew("-M mem")
            )],
            Namespace::Sector => vec![format!(
                "the namespace of {} is in sector mode, which allows no DAX; {}",
                self.name,
                anew("-M mem")
            )],
            _ if !direct => vec![format!(
                "{} is persistent memory, but the file system does not use it as such: make it with blocks of \
                 4096 bytes and mount it with -o dax=always",
                self.name
            )],
            _ if !self.aligned => vec![format!(
                "{} does not begin at a multiple of 2 MB, so there are no huge mappings: begin its partition \
                 there; if it has none, {}",
                self.name,
                anew("-a 2M")
            )],
            _ => Vec::new(),
        }
    }
}

/// The directory of the whole device, for a partition as for itself.
fn whole(entry: &Path) -> Option<PathBuf> {
    let is_whole = |dir: &Path| dir.parent().and_then(Path::file_name) == Some("block".as_ref());
    [Some(entry), entry.parent()]
        .into_iter()
        .flatten()
        .find(|dir| is_whole(dir))
        .map(Path::to_owned)
}

/// The driver's word for what made a block device: `pfn` out of `pfn0.1`.
fn kind(maker: &Path) -> Option<&str> {
    let name = maker.file_name()?.to_str()?;
    Some(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

fn namespace_name(maker: &Path) -> Option<String> {
    let named = read_to_string(maker.join("namespace")).ok();
    let named = named
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    let own = || {
        let name = maker.file_name()?.to_str()?;
        name.starts_with("namespace").then(|| name.to_owned())
    };
    named.or_else(own)
}

/// Decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as sysfs shows it.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("adit-device-{name}-{}", std::process::id()));
            std::fs::create_dir(&dir).unwrap();
            Self(dir)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn device(&self, path: &str) -> Option<Device> {
            Device::at(&self.0.join(path))
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn namespaces_are_told_apart() {
        let sysfs = Sysfs::new("kinds");
        sysfs.put("region0/pfn0.0/block/pmem0/queue/dax", "1\n");
        sysfs.put("region0/pfn0.0/namespace", "namespace0.0\n");
        sysfs.put("region1/namespace1.0/block/pmem1/queue/dax", "0\n");
        sysfs.put("region2/btt2.0/block/pmem2s/queue/dax", "0\n");
        sysfs.put("pci/block/vda/queue/dax", "0\n");
        let of = |path| sysfs.device(path).unwrap();
        let fsdax = of("region0/pfn0.0/block/pmem0");
        assert_eq!((fsdax.namespace, fsdax.dax), (Namespace::Fsdax, true));
        assert_eq!(fsdax.namespace_name.as_deref(), Some("namespace0.0"));
        let raw = of("region1/namespace1.0/block/pmem1");
        assert_eq!((raw.namespace, raw.dax), (Namespace::Raw, false));
        assert_eq!(
            of("region2/btt2.0/block/pmem2s").namespace,
            Namespace::Sector
        );
        assert_eq!(sysfs.device("pci/block/vda"), None);
        assert_eq!(sysfs.device("no/block/such"), None);

        // Each says what to do about it, by the name that the tool wants.
        let says = |device: &Device, words: &str| {
            let advice = device.advice(MediumKind::Cached, Reason::PageCache);
            assert!(advice.len() == 1 && advice[0].contains(words), "{advice:?}");
        };
        says(&fsdax, "dax=always");
        says(&raw, "ndctl create-namespace -f -e namespace1.0");
        says(&of("region2/btt2.0/block/pmem2s"), "sector mode");
        let stubborn = fsdax.advice(MediumKind::Cached, Reason::DaxWithoutMapSync);
        assert!(stubborn[0].contains("virtio-pmem"), "{stubborn:?}");
        // And nothing where all is well.
        assert!(
            fsdax
                .advice(MediumKind::Dax, Reason::MapSyncWorks)
                .is_empty()
        );
    }

    #[test]
    fn misalignment_is_noticed() {
        let sysfs = Sysfs::new("aligned");
        for (name, align, memory, start) in [
            ("good", "2097152", "0x140000000", "4096"),
            ("small-pages", "4096", "0x140000000", "4096"),
            ("odd-memory", "2097152", "0x140001000", "4096"),
            ("odd-partition", "2097152", "0x140000000", "2049"),
        ] {
            let maker = format!("{name}/pfn0.0");
            sysfs.put(&format!("{maker}/align"), align);
            sysfs.put(&format!("{maker}/resource"), memory);
            sysfs.put(&format!("{maker}/block/pmem0/queue/dax"), "1");
            sysfs.put(&format!("{maker}/block/pmem0/pmem0p1/start"), start);
            let device = sysfs
                .device(&format!("{maker}/block/pmem0/pmem0p1"))
                .unwrap();
            assert_eq!(device.aligned, name == "good", "{name}");
            assert!(device.dax, "{name}");
            let advice = device.advice(MediumKind::Dax, Reason::MapSyncWorks);
            assert_eq!(advice.is_empty(), name == "good", "{advice:?}");
        }
    }
}
