"""The crates' own tests and the cases of real programs on DAX: `lab/suite` and `lab/run`, as on the machine's own disks.

They need compilers, interpreters and servers, which no archive should hold. So the machine sees the files of the one
around it (virtiofs), and what it writes among them it keeps to itself (overlayfs).
"""

import os
import shlex
import subprocess
import time
from pathlib import Path

import machine
import programs
from kernel import Missing

DAEMONS = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")
# The last two are for cases that make disks of their own.
MODULES = ("virtio_pci", "virtiofs", "overlay", "loop", "btrfs")
IMAGE_MB = {"ext4": 1536, "xfs": 1536}
# An emulated processor is so much slower.
PATIENCE = 10
INSIDE = "chroot /whole /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def daemon():
    """The program that shares files."""
    found = next((path for path in DAEMONS if os.access(path, os.X_OK)), None)
    if not found:
        raise Missing(f"none of {', '.join(DAEMONS)} is there (Debian: qemu-system-common or virtiofsd)")
    return found


class Files:
    """This machine's files, for another one to read."""

    def __init__(self, work):
        self.socket = work / "files.sock"
        command = [daemon(), f"--socket-path={self.socket}", "-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always"]
        self.log = open(work / "files.log", "w+b")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(100):
            if self.socket.exists() or self.process.poll() is not None:
                break
            time.sleep(0.1)
        if not self.socket.exists():
            self.log.seek(0)
            raise machine.Failed(f"this machine's files cannot be shared: {self.log.read().decode(errors='replace')[-800:]}")
        return self.socket

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def command(name, media, arguments, target):
    words = [f"HOME={Path.home()}", f"CI={os.environ.get('CI', '')}", f"CARGO_TARGET_DIR={target}", "ADIT_LAB_PMEM=/dev/pmem0 /dev/pmem1",
             str(programs.ROOT / "lab" / name), "--media", media, "--patience", str(PATIENCE), *arguments]
    return f"cd / && {INSIDE} {shlex.join(words)}"


def tasks(target, options):
    """(name, seconds, command) of each."""
    only, cases, mode = options.whole_tests, options.whole_programs, options.whole_mode
    media, seconds, found = options.whole_media, options.whole, []
    if only:
        some = [] if only == ["all"] else ["--only", ",".join(only)]
        which = ["--quick"] if options.whole_quick else []
        which += ["--tests", options.whole_names] if options.whole_names else []
        arguments = ["--built", "/tests.list", "--jobs", "2", "--total", str(seconds), *which, *some]
        found.append(("tests", seconds + 60, command("suite", media, arguments, target)))
    if cases:
        some = [] if cases == ["all"] else cases
        how = ["--eager"] if mode == "posix" else ["--mode", mode]
        arguments = [*how, "--jobs", "2", "--total", str(seconds), *some]
        found.append((f"programs-{mode}", seconds + 60, command("run", media, arguments, target)))
    return found


def job(all_tasks):
    lines = ["see_all\n"]
    for name, seconds, text in all_tasks:
        quoted = text.replace("'", "'\\''")
        lines.append(f"telling {name} {seconds} '{quoted}'\n")
    return "".join(lines)


def run(lab, options, target, say):
    """Returns failures."""
    listed = lab.work / "tests.list"
    listed.write_text("".join(f"{package} {name} {path}\n"
                              for (package, name), path in sorted(programs.listed(target).items())))
    chosen = tasks(target, options)
    begun, failures = time.monotonic(), []
    files, lab.files = lab.files, {"/adit/tests.list": listed}
    lab.images = machine.make_images(lab.work, IMAGE_MB)
    try:
        with Files(lab.work) as socket, lab.boot(job(chosen), share=socket) as guest:
            for name, seconds, _ in chosen:
                guest.until(f"@@task {name} ", seconds + 60, tell)
                failures += judge(guest.tasks()[-1], say)
            end = guest.until("@@end", 60)
    finally:
        lab.files = files
    if not end.startswith("@@end done"):
        failures.append((end, guest.lines[-20:]))
    say(f"everything on DAX: {time.monotonic() - begun:.0f} s in all")
    return failures + guest.complaints()


def tell(line):
    """Hours of emulation: whoever waits sees what has ended."""
    if line and not line.startswith("@@"):
        print(f"    {line}", flush=True)


def judge(result, say):
    """Returns a failure, if it is one."""
    name, status, seconds, _ = result
    say(f"{name}: ended with {status} after {seconds:.0f} s")
    return [(f"{name} on DAX ended with {status}", [])] if status else []
