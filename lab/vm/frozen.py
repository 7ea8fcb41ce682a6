"""Power cuts without a new boot: the machine is stopped between two instructions, its NVDIMMs are copied as they are,
and it goes on. What a boot would find on the copy is looked at on the host, in a mount namespace of its own, through
loop devices: the host's kernel replays the journal, and then the same checks run as after a real boot."""

import concurrent.futures
import os
import shutil
import subprocess
from pathlib import Path

from machine import Failed, parse_tasks
from programs import find

# Where the kernel's description of the namespace lies on the device, and in it the offset of the data.
INFO_AT, SIGNATURE, DATA_AT = 4096, b"NVDIMM_PFN_INFO\0", 56
# Where ext4's group descriptors begin, and a part of one that its sum covers.
DESCRIPTORS_AT, FREE_BLOCKS = 4096, 12
# Two copies of one XFS are mounted at the same time.
OPTIONS = {"ext4": "rw", "xfs": "nouuid"}
GUEST = Path(__file__).resolve().parent / "guest"
TOOLS = ("losetup", "unshare", "mount", "umount")
# So many copies may wait for their check: they are memory.
WAITING = 3
# A machine whose NVDIMM has no room in its file dies.
LEAST_FREE = 1 << 30
# The guest's `task`, on the host. What is mounted and attached goes when the shell ends.
PRELUDE = r"""
export LC_ALL=C TZ=UTC PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
task() {
    echo "@@begin $1 0"
    timeout -s KILL "$2" sh -c "$3" 2>&1 </dev/null | tail -n 100
    status=${PIPESTATUS[0]}
    echo
    echo "@@task $1 $status 0"
}
# One that is free may be had by somebody else who was faster.
loop_of() {
    local patience
    for patience in {1..100}; do
        losetup --find --show "$@" 2>/dev/null && return
        sleep 0.1
    done
    losetup --find --show "$@"
}
loops=
leave() {
    cd /
    umount /mnt/ext4 /mnt/xfs 2>/dev/null
    [ -z "$loops" ] || losetup -d $loops
}
trap leave EXIT
mount -t tmpfs none /mnt
mkdir /mnt/ext4 /mnt/xfs
mkdir -m 700 /mnt/run
# A monitor would outlive the look, and hold the mounts.
export XDG_RUNTIME_DIR=/mnt/run ADIT_NO_MONITOR=1
"""


class NotHere(Exception):
    """The host cannot look at copies."""


def available():
    """Raises what is missing."""
    if os.geteuid() != 0:
        raise NotHere("needs root (loop devices)")
    if absent := [name for name in TOOLS if not find(name)]:
        raise NotHere(f"needs {', '.join(absent)}")


def copy(source, target):
    """Copies what is there of a sparse file."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(old.fileno(), new.fileno(), end - at, at, at)


def data_offset(image):
    """Where the file system begins in an NVDIMM's file."""
    with open(image, "rb") as file:
        file.seek(INFO_AT)
        info = file.read(4096)
    if not info.startswith(SIGNATURE):
        raise NotHere(f"{image} has no description of its namespace")
    return int.from_bytes(info[DATA_AT:DATA_AT + 8], "little")


class Cut:
    """The copies of one instant."""

    def __init__(self, machine, images, directory):
        self.directory = Path(directory)
        self.directory.mkdir()
        self.images = {}
        with machine.frozen():
            for place, image in images.items():
                self.images[place] = self.directory / image.name
                copy(image, self.images[place])
            # What has left the serial line was promised.
            self.acks = machine.said()

    def tear(self):
        """Leaves half of a store to ext4's first group descriptor: the count of its free blocks without the sum."""
        image = self.images["ext4"]
        with open(image, "r+b") as file:
            file.seek(data_offset(image) + DESCRIPTORS_AT + FREE_BLOCKS)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))

    def look(self, script, bin_of, fsck):
        """Runs a job's checks on the copies. Returns what their tasks said."""
        text = PRELUDE
        for place, image in self.images.items():
            mount = f"'{GUEST}/mount-ext4'" if place == "ext4" else f"mount -t {place} -o"
            mount += f" {OPTIONS[place]} $loop /mnt/{place} || exit 3\n"
            text += (f"loop=$(loop_of --offset {data_offset(image)} {image}) || exit 3\n"
                     f"loops=\"$loops $loop\"\n{mount}")
            if fsck:
                check = "e2fsck -fn" if place == "ext4" else f"sh '{GUEST}/xfs-features' check"
                text += (f"umount /mnt/{place} && task fsck-{place} 60 \"{check} $loop\"\n{mount}")
        text += bin_of(script)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", text], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=180, check=False)
        lines = done.stdout.splitlines()
        if done.returncode:
            return [("mount", done.returncode, 0.0, lines)]
        return parse_tasks(lines)

    def drop(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class Inspector:
    """Looks at cuts beside the running machine, a few at a time."""

    def __init__(self, directory, files):
        self.directory = directory
        self.files = files
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.jobs = set()
        self.taken = 0

    def host_side(self, text):
        """A job's commands with the programs where the host has them."""
        for inside, outside in self.files.items():
            text = text.replace(f"{inside} ", f"{outside} ")
        return text

    def take(self, machine, images):
        """Copies the machine's NVDIMMs now. Waits while too many copies are looked at."""
        while len(self.jobs) >= WAITING:
            self.wait(concurrent.futures.FIRST_COMPLETED)
        if shutil.disk_usage(self.directory).free < LEAST_FREE:
            raise Failed(f"{self.directory} is nearly full")
        self.taken += 1
        return Cut(machine, images, self.directory / f"cut-{self.taken}")

    def submit(self, cut, script, fsck, judge, keep=False):
        """Checks a cut, gives what was said to `judge`, and throws the copies away."""

        def job():
            try:
                judge(cut.look(script, self.host_side, fsck))
            finally:
                if not keep:
                    cut.drop()

        self.jobs.add(self.pool.submit(job))

    def wait(self, when=concurrent.futures.ALL_COMPLETED):
        """Waits for checks; what went wrong in them goes wrong here."""
        done, self.jobs = concurrent.futures.wait(self.jobs, return_when=when)
        for job in done:
            job.result()

    def close(self):
        self.pool.shutdown(wait=True, cancel_futures=True)
