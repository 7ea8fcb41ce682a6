"""File systems to test on, made and taken away: tmpfs, others on loop devices in files of their own, and on persistent
memory, where ADIT_LAB_PMEM names two devices that may be overwritten."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def linux():
    """The first two numbers of the kernel."""
    return tuple(int(number) for number in os.uname().release.split(".")[:2])


MEDIA = ["ram", "ext4", "xfs", "btrfs"]
# With DAX, each on a device of its own.
DAX = ["ext4-dax", "xfs-dax"]
MAKE_FS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "ext4-dax": ["mkfs.ext4", "-q", "-F", "-b", "4096"],
    # Before Linux 6.2 the kernel confuses the pages of files that share blocks, when they are mapped with DAX.
    "xfs-dax": ["mkfs.xfs", "-q", "-f", "-m", f"reflink={int(linux() >= (6, 2))}"],
}
FS_PACKAGES = {"ram": "mount", "ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs",
               "ext4-dax": "e2fsprogs", "xfs-dax": "xfsprogs"}


XFS_FEATURES = Path(__file__).resolve().parent / "vm" / "guest" / "xfs-features"


def allow_exchange(name, device):
    """On an XFS files may exchange ranges since Linux 6.10. An older mkfs.xfs does not know that; an older kernel refuses
    to mount such a file system."""
    if name.removesuffix("-dax") == "xfs" and linux() >= (6, 10):
        tool(["sh", str(XFS_FEATURES), "exchange", str(device)])


def like(medium, others):
    """Whether a medium is one of others, or is it without DAX."""
    return medium in others or medium.removesuffix("-dax") in others


def chosen(text):
    """The media of an option, or raise with what there is."""
    known = MEDIA + (DAX if pmem() else [])
    media = text.split(",")
    if unknown := [medium for medium in media if medium not in known]:
        hint = "" if pmem() else f"; {' and '.join(DAX)} need ADIT_LAB_PMEM=\"DEVICE DEVICE\", which are overwritten"
        raise SystemExit(f"no such medium: {', '.join(unknown)}; media are {', '.join(known)}{hint}")
    return media


def pmem():
    """The device of each medium with DAX."""
    devices = os.environ.get("ADIT_LAB_PMEM", "").split()
    return dict(zip(DAX, devices)) if len(devices) == len(DAX) else {}


class Media:
    """Makes the media and takes them away again, whatever happens in between."""

    def __init__(self, base, size_mb, images=None):
        self.base = base
        self.images = images or base
        self.size_mb = size_mb
        self.mounted = {}
        self.devices = {}

    def make(self, name):
        """The directory to work in on medium `name`, or raise with the reason there is none."""
        where = self.base / name
        if os.geteuid() != 0:
            if name != "ram":
                raise LabError("needs root")
            where = Path(tempfile.mkdtemp(prefix="adit-lab-", dir="/dev/shm"))
            self.mounted[name] = where
            return where
        where.mkdir()
        if name == "ram":
            tool(["mount", "-t", "tmpfs", "-o", f"size={self.size_mb}m", "adit-lab", str(where)])
        else:
            self.devices[name] = self.device(name)
            try:
                tool(MAKE_FS[name] + [self.devices[name]])
                allow_exchange(name, self.devices[name])
            except FileNotFoundError:
                raise LabError(f"missing {MAKE_FS[name][0]} (Debian: {FS_PACKAGES[name]})") from None
            self.mount(name, where)
        self.mounted[name] = where
        return where

    def device(self, name):
        if name in DAX:
            return pmem()[name]
        image = self.images / f"{name}.img"
        with open(image, "wb") as file:
            file.truncate(self.size_mb << 20)
        return tool(["losetup", "--find", "--show", str(image)]).strip()

    def mount(self, name, where):
        # Where it is not possible the kernel refuses; it would not without the word.
        options = ["-o", "dax=always"] if name in DAX else []
        tool(["mount", *options, self.devices[name], str(where)])

    def remount(self, name):
        """Unmount and mount again: afterwards everything read comes from the device."""
        where = self.mounted[name]
        self.unmount(name)
        self.mount(name, where)
        self.mounted[name] = where

    def unmount(self, name):
        where = self.mounted[name]
        deadline = time.monotonic() + 10
        while True:
            try:
                tool(["umount", str(where)])
                break
            except LabError as error:
                if time.monotonic() > deadline:
                    raise LabError(f"{error}; held by {holders(where)}") from None
                time.sleep(0.2)
        del self.mounted[name]

    def clean(self):
        for name, where in list(self.mounted.items()):
            if os.geteuid() != 0:
                shutil.rmtree(where, ignore_errors=True)
                continue
            try:
                self.unmount(name)
            except LabError as error:
                print(f"lab: {error}; detaching it lazily", file=sys.stderr)
                subprocess.run(["umount", "-l", str(where)], check=False)
        for name, device in self.devices.items():
            if name not in DAX:
                subprocess.run(["losetup", "-d", device], check=False)
        self.mounted.clear()
        self.devices.clear()


class LabError(Exception):
    """Something of the lab itself failed, as opposed to a case."""


def patiently(command):
    """A command that sets a loop device up, again and again for ten seconds: the kernel names a free one that somebody else
    may take first, or that a file system which was just unmounted still has."""
    end = time.monotonic() + 10
    while True:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 or "loop device" not in done.stderr or time.monotonic() > end:
            return done
        time.sleep(0.1)


def tool(command):
    done = patiently(command)
    if done.returncode:
        raise LabError(f"{shlex.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def holders(where):
    """Processes that keep `where` or something below it open or mapped, and what, for the message about a busy mount."""
    return ", ".join(held_by(where)) or "nobody visible"


def held_by(where):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/{n}") for n in ("cwd", "root")]
            links += [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            maps = [line.split(maxsplit=5)[5:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            here = {name for name in links + sum(maps, []) if f"{name}/".startswith(f"{where}/")}
            if here:
                found.append(f"{pid} ({Path(f'/proc/{pid}/comm').read_text().strip()}: {' '.join(sorted(here))})")
        except OSError:
            continue
    return found
