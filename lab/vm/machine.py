"""One virtual machine: QEMU in software emulation with two NVDIMMs and two serial lines."""

import queue
import re
import subprocess
import threading
import time
from pathlib import Path

# A multiple of 16 MB plus the label area, or ndctl calls the device misaligned.
LABEL_MB = 2
IMAGE_MB = {"ext4": 256, "xfs": 384}
RUNNING = ["-accel", "tcg,thread=multi", "-smp", "2"]
# One instruction takes one nanosecond of the machine's clock, and idle time none of ours.
COUNTING = ["-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=off"]
MARK = re.compile(r"@@(begin|task) (\S+) ([0-9.]+)(?: ([0-9.]+))?$")
TROUBLE = re.compile(r"BUG:|Oops|general protection fault|WARNING: CPU|Kernel panic|Call Trace")


class Failed(Exception):
    """The machine did not do what it was told; the message shows its last lines."""


def make_images(directory):
    """Fresh, sparse files for the NVDIMMs: {file system: file}."""
    images = {}
    for name, size in IMAGE_MB.items():
        images[name] = directory / f"{name}.nvdimm"
        with open(images[name], "wb") as file:
            file.truncate((size + LABEL_MB) << 20)
    return images


class Machine:
    """A running machine. It is killed when the `with` block ends, whatever happened."""

    def __init__(self, kernel, initrd, images, acks, counting=False):
        self.acks = Path(acks)
        self.lines = []
        self.trouble = []
        self.booted = None
        self.started = time.monotonic()
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot",
            "-cpu", "max", *(COUNTING if counting else RUNNING),
            "-machine", "q35,nvdimm=on", "-m", "1G,slots=4,maxmem=8G",
            "-display", "none", "-serial", "stdio", "-serial", f"file:{self.acks}",
            "-kernel", str(kernel.image), "-initrd", str(initrd),
            "-append", "console=ttyS0 panic=-1 loglevel=3 random.trust_cpu=on",
        ]
        for number, (name, image) in enumerate(images.items()):
            command += [
                "-object", f"memory-backend-file,id=m{number},share=on,mem-path={image},"
                           f"size={IMAGE_MB[name] + LABEL_MB}M,align=2M",
                "-device", f"nvdimm,id=n{number},memdev=m{number},unarmed=off,label-size={LABEL_MB}M",
            ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for raw in self.process.stdout:
            self.queue.put(raw.decode("utf-8", "replace").rstrip())
        self.queue.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """The power cut: nothing in the machine gets another instruction."""
        self.process.kill()
        self.process.wait()

    def drain(self):
        """Takes what the console still holds."""
        try:
            while self.next_line(0.5) is not None:
                pass
        except Failed:
            pass

    def seconds(self):
        return time.monotonic() - self.started

    def next_line(self, limit):
        """The console's next line; None at its end."""
        try:
            line = self.queue.get(timeout=max(limit, 0.001))
        except queue.Empty:
            raise Failed(f"nothing more within the time limit; it ended with\n{self.tail()}") from None
        if line is not None:
            self.lines.append(line)
            if TROUBLE.search(line):
                self.trouble.append(line)
        return line

    def until(self, prefix, limit):
        """Reads until a line begins with `prefix`; the seconds are for all of it."""
        end = time.monotonic() + limit
        while True:
            line = self.next_line(end - time.monotonic())
            if line is None or (line.startswith("@@end") and prefix != "@@end"):
                raise Failed(f"the machine ended before {prefix!r}:\n{self.tail()}")
            if line.startswith(prefix):
                return line

    def tail(self, count=25):
        return "\n".join(f"    {line}" for line in self.lines[-count:])

    def tasks(self):
        """What the tasks said so far: [(name, status, seconds, output lines)]."""
        done, name, begun, output = [], None, 0.0, []
        for line in self.lines:
            # A program that is killed may leave the console in the middle of a line.
            mark = MARK.search(line)
            if mark and mark[1] == "begin":
                name, begun, output = mark[2], float(mark[3]), []
            elif mark and mark[2] == name and mark[4]:
                done.append((name, int(mark[3]), float(mark[4]) - begun, output))
                name = None
            elif name:
                output.append(line)
        return done
