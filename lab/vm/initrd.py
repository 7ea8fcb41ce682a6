"""Builds the initrd: a cpio archive with busybox, the modules, a few host programs with their libraries."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from kernel import Missing


class Archive:
    """A cpio archive in the one format that the kernel unpacks."""

    def __init__(self, file):
        self.file = file
        self.number = 0
        self.have = set()

    def _entry(self, path, mode, content=b"", device=(0, 0)):
        if path in self.have:
            return
        self.have.add(path)
        self.number += 1
        name = path.lstrip("/").encode() + b"\0"
        fields = [self.number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0]
        self._padded(b"070701" + b"".join(b"%08x" % f for f in fields) + name)
        self._padded(content)

    def _padded(self, data):
        self.file.write(data + b"\0" * (-len(data) % 4))

    def directory(self, path):
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            self._entry("/" + "/".join(parts[:end]), stat.S_IFDIR | 0o755)

    def add(self, path, content, mode=0o644):
        self.directory(os.path.dirname(path)) if os.path.dirname(path) != "/" else None
        self._entry(path, stat.S_IFREG | mode, content)

    def link(self, path, target):
        self.directory(os.path.dirname(path))
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def node(self, path, major, minor):
        self.directory(os.path.dirname(path))
        self._entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def close(self):
        self._entry("TRAILER!!!", 0)


def libraries(program):
    """What the dynamic linker would load for a program: {name asked for: file}."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=30, check=False)
    if "not a dynamic executable" in done.stderr + done.stdout or "statically linked" in done.stdout:
        return {}
    if done.returncode or "not found" in done.stdout:
        raise Missing(f"the libraries of {program} are not complete:\n{done.stdout}{done.stderr}")
    found = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line):
            found[match.group(1) or match.group(2)] = match.group(2)
    return found


def stripped(path, scratch):
    """A program's bytes without debug information: the machine copies every byte of the archive."""
    if shutil.which("strip"):
        out = scratch / "stripped"
        if subprocess.run(["strip", "-o", out, path], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return out.read_bytes()
    return Path(path).read_bytes()


def build(out, kernel, busybox, host_programs, our_files, guest, job, modules=()):
    """Writes the archive.

    host_programs: paths of installed programs, which keep their names in /bin.
    our_files: {path inside: path outside} of programs and libraries that were built here.
    modules: of the kernel's, beside those that are always there.
    """
    with open(out, "wb") as file:
        archive = Archive(file)
        for path in ("/proc", "/sys", "/dev", "/tmp", "/root", "/mnt"):
            archive.directory(path)
        # The kernel opens the console before anything could mount a file system over /dev.
        archive.node("/dev/console", 5, 1)
        archive.add("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        archive.add("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        order = kernel.load_order(modules)
        for name, content in order:
            archive.add(f"/lab/modules/{name}.ko", content)
        archive.add("/lab/modules/order", "".join(f"{name}\n" for name, _ in order).encode())
        needed = {}
        for program in host_programs:
            archive.add(f"/bin/{os.path.basename(program)}", Path(program).read_bytes(), 0o755)
            needed.update(libraries(program))
        for inside, outside in our_files.items():
            archive.add(inside, stripped(outside, out.parent), 0o755)
            needed.update(libraries(str(outside)))
        for name, file_name in sorted(needed.items()):
            inside = name if name.startswith("/") else f"/lib/{name}"
            archive.add(inside, Path(file_name).read_bytes(), 0o755)
        # Host programs come first: busybox fills in what they leave.
        archive.add("/bin/busybox", Path(busybox).read_bytes(), 0o755)
        listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=10, check=True)
        for applet in listed.stdout.split():
            archive.link(f"/bin/{applet}", "busybox")
        archive.add("/init", (guest / "init").read_bytes(), 0o755)
        for name in ("xfs-features", "mount-ext4", "fill"):
            archive.add(f"/bin/{name}", (guest / name).read_bytes(), 0o755)
        archive.add("/lab/job", job.encode())
        archive.close()
