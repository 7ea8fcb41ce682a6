"""Debian's own kernels: downloaded as packages, unpacked into the cache, never installed."""

import lzma
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

RELEASE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The image for virtual machines is a third of the generic one's size and has all that is needed. Backports
# change the version often and have no promise of being reachable.
SUITES = {
    "6.1": ("bookworm", "linux-image-cloud-amd64"),
    "6.12": ("bookworm-backports", "linux-image-cloud-amd64"),
    # Whatever that is today.
    "newest": ("trixie-backports", "linux-image-cloud-amd64"),
}
WANTED = ["crc32c_generic", "crc32c_intel", "nfit", "nd_pmem", "dax_pmem", "device_dax", "ext4", "xfs"]


class Missing(Exception):
    """Something the lab needs is not here; the message says how to get it."""


@dataclass
class Kernel:
    """An unpacked kernel package."""

    name: str
    image: Path
    modules: Path

    def version(self):
        """Its first two numbers."""
        return version_of(self.name)

    def load_order(self, more=()):
        """The files of the wanted modules and of what they need, in the order of loading."""
        files = {p.name.split(".ko")[0].replace("-", "_"): p for p in self.modules.rglob("*.ko*")}
        built_in = {
            Path(line).stem.replace("-", "_")
            for line in (self.modules / "modules.builtin").read_text().split()
        }
        order = []

        def visit(name, required):
            if name in built_in or (name not in files and not required):
                return
            if name not in files:
                raise Missing(f"{self.name} has no module {name}")
            content = plain(files[name])
            needs = re.search(rb"(?:^|\0)depends=([^\0]*)\0", content)
            for need in filter(None, needs.group(1).decode().split(",") if needs else []):
                visit(need.replace("-", "_"), True)
            if all(name != have for have, _ in order):
                order.append((name, content))

        for name in [*WANTED, *more]:
            # Without the processor's own instruction the generic checksum serves.
            visit(name, not name.startswith("crc32c"))
        return order


def version_of(release):
    """The first two numbers of what a kernel calls itself."""
    return tuple(int(number) for number in release.split(".")[:2])


def plain(path):
    """A module's content, unpacked."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


def unpacked(directory):
    """The kernel in a directory of the cache, or None. In later packages all of it lies beside its modules."""
    beside = [(image, image.parent) for image in directory.glob("usr/lib/modules/*/vmlinuz")]
    in_boot = [(image, directory / "lib" / "modules" / image.name.removeprefix("vmlinuz-"))
               for image in directory.glob("boot/vmlinuz-*")]
    images = beside + in_boot
    if len(images) != 1:
        return None
    image, modules = images[0]
    return Kernel(modules.name, image, modules)


def get(series, cache, say):
    """The kernel of a series from the cache, else from Debian's archive."""
    suite, meta = SUITES[series]
    home = cache / f"kernel-{series}"
    if found := unpacked(home):
        return found
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is missing: the kernel comes as a Debian package (package apt, dpkg)")
    if not KEYRING.exists():
        raise Missing(f"{KEYRING} is missing: install debian-archive-keyring, so that the kernel is verified")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="apt-") as scratch:
        packages = download(Path(scratch), suite, meta, say)
        fresh = Path(scratch) / "tree"
        for package in packages:
            run(["dpkg-deb", "-x", str(package), str(fresh)], 120)
        if not unpacked(fresh):
            raise Missing(f"there is no kernel image in {', '.join(package.name for package in packages)}")
        shutil.rmtree(home, ignore_errors=True)
        fresh.rename(home)
    return unpacked(home)


def mirror():
    """The archive that this host gets its own packages from, or the one that ADIT_LAB_MIRROR names."""
    if named := os.environ.get("ADIT_LAB_MIRROR"):
        return named
    for line in run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)"], 60).splitlines():
        site, _, release = line.partition(" ")
        if release == RELEASE:
            return site
    raise Missing(f"apt knows no archive of Debian {RELEASE}: name one in ADIT_LAB_MIRROR")


def download(scratch, suite, meta, say):
    """Fetches the packages that a meta package depends on, with lists of our own beside the host's."""
    for part in ("lists/partial", "cache/archives/partial", "state"):
        (scratch / part).mkdir(parents=True)
    (scratch / "status").touch()
    source = f"deb [arch=amd64 signed-by={KEYRING}] {mirror()} {suite} main\n"
    (scratch / "sources.list").write_text(source)
    options = {
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Sandbox::User": "",
        # Otherwise an archive that cannot be reached is a warning.
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": scratch / "state",
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
    }
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    say(f"fetching {meta} of {suite}")
    run(["apt-get", *flags, "-qq", "update"], 180)
    names = parts_of(meta, lambda name: run(["apt-cache", *flags, "depends", name], 60))
    if not names:
        raise Missing(f"{suite} has no {meta}, or apt could not read it")
    run(["apt-get", *flags, "-qq", "download", *names], 300, cwd=scratch)
    return sorted(scratch.glob("linux-*.deb"))


def parts_of(meta, depends):
    """The packages of a kernel: the image, and those that the image and its modules are in where it has several."""
    found, left = [], [meta]
    while left:
        needed = re.findall(r"^ *Depends: (linux-[a-z]+-\d\S+)", depends(left.pop()), re.M)
        fresh = [name for name in dict.fromkeys(needed) if name not in found]
        found += fresh
        left += fresh
    return found


def run(command, limit, cwd=None):
    """Runs a host command; what it said becomes the error."""
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=limit, env={**os.environ, "LC_ALL": "C"}, check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} {command[-1]} was not done after {limit} s") from None
    if done.returncode:
        raise Missing(f"{command[0]} {command[-1]} failed with {done.returncode}: {done.stdout.strip()[-800:]}")
    return done.stdout
