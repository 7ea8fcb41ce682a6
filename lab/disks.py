"""Disks that are files: a file system on each, and a power cut as a clone of one."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from media import XFS_FEATURES, allow_exchange, held_by, holders, patiently

SIZE_MB = 768
FICLONE = 0x40049409
BOOT_ID = "/proc/sys/kernel/random/boot_id"


# By the program that makes a file system: whether one is whole; the image is appended. An older xfs_repair does not know
# exchange-range, and is not shown that a file system has it.
WHOLE = {"mkfs.ext4": ["e2fsck", "-fn"], "mkfs.xfs": [str(XFS_FEATURES), "check"],
         "mkfs.btrfs": ["btrfs", "check", "--readonly"]}


class Failure(Exception):
    """What must hold does not."""


def alone():
    """Goes on in a mount namespace of its own. Who copies the mounts of this machine meanwhile, as a container does,
    would keep ours alive."""
    if "ADIT_LAB_MOUNTS" not in os.environ:
        private = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(private[0], private, {**os.environ, "ADIT_LAB_MOUNTS": "private"})


def tool(command, limit=60, **more):
    sets_up = command[0] == "losetup" or command[:2] == ["mount", "-o"]
    done = patiently(command) if sets_up else subprocess.run(
        command, capture_output=True, text=True, timeout=limit, check=False, **more)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def unmount(where):
    """Who was just killed may have a file open for a moment."""
    for _ in range(100):
        if subprocess.run(["umount", str(where)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    by = holders(where)
    subprocess.run(["umount", "-l", str(where)], check=False)
    raise Failure(f"{where} stays busy: {by}")


class Medium:
    """A file system in a file, mounted while it is used."""

    def __init__(self, work, name, make, size=SIZE_MB):
        self.image, self.where = work / f"{name}.img", work / name
        with open(self.image, "wb") as file:
            file.truncate(size << 20)
        tool([*make, str(self.image)])
        allow_exchange(name, self.image)
        self.where.mkdir()

    def __enter__(self):
        tool(["mount", "-o", "loop", str(self.image), str(self.where)])
        return self.where

    def __exit__(self, *_):
        unmount(self.where)


@contextlib.contextmanager
def mounted_beside(image, name):
    """A copy of a disk that may be mounted itself. It is another file system then, and what programs left in it are those of
    another boot."""
    place = image.with_name("copy")
    place.mkdir()
    # XFS refuses a second one with the same name otherwise.
    tool(["mount", "-o", "loop,nouuid" if name == "xfs" else "loop", str(image), str(place)])
    try:
        yield place
    finally:
        unmount(place)
        place.rmdir()


def monitors_of(run):
    """The processes that are monitors of a runtime directory, or stand by for one."""
    lines = tool(["ps", "-eo", "pid,args"]).splitlines()
    return [int(line.split()[0]) for line in lines if "adit monitor" in line and str(run) in line]


def monitor_has_gone(run):
    """Waits for the monitor of a runtime directory, who has a file system in use."""
    end = time.monotonic() + 20
    while monitors_of(run):
        if time.monotonic() > end:
            raise Failure("the monitor stays")
        time.sleep(0.05)


def monitors_are_killed(run):
    """Kills them, and waits until they are gone."""
    for pid in monitors_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    monitor_has_gone(run)


def unused_tables():
    """Tables of pools on btrfs, which lie in memory, that nobody has open or mapped."""
    found = Path("/dev/shm").glob("adit-tables-*")
    return [path for path in found if not held_by(path)]


def tables_go_with_a_monitor(adit, work):
    """Nobody knows that a pool has gone when its directory was removed, its disk was cut off and its monitor killed, as
    happens here all the time. What it had in memory goes when the next monitor of its user ends, so one begins and ends
    here, and leaves nothing of what was there before. It has a few tries: another part of the lab may work on some of it
    just then."""
    before, run = set(unused_tables()), work / "last"
    env = {**os.environ, "HOME": str(work), "ADIT_RUNTIME_DIR": str(run), "XDG_STATE_HOME": str(run / "state")}
    left = before
    for _ in range(3):
        if not left:
            return
        tool([str(adit), "run", "--", "true"], env=env)
        monitor_has_gone(run)
        left = before.intersection(unused_tables())
    raise Failure(f"a monitor has left {len(left)} tables of pools in memory: {min(left)}")


def must_be_whole(make, image):
    """Checks a file system that is not mounted, which `make` made."""
    check = [*WHOLE[make], str(image)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Failure(f"{' '.join(check)}: {done.stdout}{done.stderr}")


def clone_of(image, nth):
    """What the disk has been given until now, and nothing else."""
    cut = image.with_name(f"cut-{nth}.img")
    with open(image, "rb") as source, open(cut, "wb") as target:
        fcntl.ioctl(target, FICLONE, source.fileno())
    return cut


def clone_over(cut, image):
    """Gives a disk that nobody has mounted the bytes of a clone of it."""
    with open(cut, "rb") as source, open(image, "r+b") as target:
        fcntl.ioctl(target, FICLONE, source.fileno())
