"""One virtual machine: QEMU in software emulation with two NVDIMMs and two serial lines."""

import contextlib
import json
import queue
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

# A multiple of 16 MB plus the label area, or ndctl calls the device misaligned.
LABEL_MB = 2
IMAGE_MB = {"ext4": 320, "xfs": 384}
# Memory of a machine that sees this one's files: what it writes beside them is there.
SHARING_GB = 5
RUNNING = ["-accel", "tcg,thread=multi", "-smp", "2"]
# QEMU before 8.1 can run an instruction that the kernel is just patching on another processor (Oops: int3). Linux 6.1
# has never been seen to die of that, but one in ten starts of 6.12: its processors take turns.
TAKING_TURNS = ["-accel", "tcg,thread=single", "-smp", "2"]
# One instruction takes one nanosecond of the machine's clock, and idle time none of ours.
COUNTING = ["-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=off",
            "-rtc", "base=2025-01-01,clock=vm", "-seed", "1"]
# Where things lie in memory must not change from boot to boot either.
COUNTING_KERNEL = " nokaslr norandmaps"
# QEMU before 8.0 computes the flags of cmpxchg16b from whatever it last had in mind. Linux 6.12 allocates memory with
# it, returns from the next interrupt with an address for flags, and dies at some random place.
PROCESSOR = "max,-cx16"
MARK = re.compile(r"@@(begin|task) (\S+) ([0-9.]+)(?: ([0-9.]+))?$")
STAMP = re.compile(r"^\[ *([0-9.]+)\]")
TROUBLE = re.compile(r"BUG:|Oops|general protection fault|WARNING: CPU|Kernel panic|Call Trace")


# The machines that run; none goes on, or is started, once all have to end.
machines, over = set(), threading.Event()


def end_all():
    """Whoever waits for one of the machines is told that it has failed."""
    over.set()
    for one in list(machines):
        one.process.kill()


class Failed(Exception):
    """The machine did not do what it was told; the message shows its last lines."""


def make_images(directory, sizes=None):
    """Fresh, sparse files for the NVDIMMs: {file system: file}. `sizes` in megabytes, when they are not the usual ones."""
    images = {}
    for name, size in (sizes or IMAGE_MB).items():
        images[name] = directory / f"{name}.nvdimm"
        with open(images[name], "wb") as file:
            file.truncate((size + LABEL_MB) << 20)
    return images


def parse_tasks(lines):
    """What tasks said: [(name, status, seconds, output lines)]."""
    done, name, begun, output = [], None, 0.0, []
    for line in lines:
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


class Machine:
    """A running machine. It is killed when the `with` block ends, whatever happened."""

    def __init__(self, kernel, initrd, images, acks, counting=False, share=None):
        """`share`: where somebody offers files to read, by vhost-user."""
        self.acks = Path(acks)
        self.control = self.acks.with_suffix(".qmp")
        self.line = None
        self.lines = []
        self.trouble = []
        self.booted = None
        self.started = time.monotonic()
        running = TAKING_TURNS if kernel.version() > (6, 1) else RUNNING
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot",
            "-cpu", PROCESSOR, *(COUNTING if counting else running),
            "-machine", "q35,nvdimm=on" + (",memory-backend=memory" if share else ""),
            "-m", f"{SHARING_GB if share else 1}G,slots=4,maxmem=16G",
            "-display", "none", "-qmp", f"unix:{self.control},server=on,wait=off", "-serial", "stdio", "-serial", f"file:{self.acks}",
            "-kernel", str(kernel.image), "-initrd", str(initrd),
            "-append", "console=ttyS0 panic=-1 loglevel=3 random.trust_cpu=on no_timer_check" + (COUNTING_KERNEL if counting else ""),
        ]
        for number, (name, image) in enumerate(images.items()):
            command += [
                "-object", f"memory-backend-file,id=m{number},share=on,mem-path={image},"
                           f"size={image.stat().st_size >> 20}M,align=2M",
                "-device", f"nvdimm,id=n{number},memdev=m{number},unarmed=off,label-size={LABEL_MB}M",
            ]
        if share:
            command += ["-object", f"memory-backend-memfd,id=memory,size={SHARING_GB}G,share=on",
                        "-chardev", f"socket,id=files,path={share}",
                        "-device", "vhost-user-fs-pci,chardev=files,tag=files"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        machines.add(self)
        if over.is_set():
            self.process.kill()
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
        machines.discard(self)
        if self.line:
            self.line.close()

    @contextlib.contextmanager
    def frozen(self):
        """Nothing in the machine gets another instruction meanwhile: its memory is as at a power cut. Its clock stands
        still, too, or whoever waits in it for a second would have waited in vain."""
        stopped = self.ask("stop")
        try:
            yield
        finally:
            if stopped:
                self.ask("cont")

    def ask(self, what):
        """Has QEMU do something, and waits until it is done. Says whether there is a machine: one that has switched
        itself off does nothing any more."""
        answer = "nothing"
        try:
            if not self.line:
                self.line = socket.socket(socket.AF_UNIX)
                self.line.settimeout(20)
                self.line.connect(str(self.control))
                self.answers = self.line.makefile("r")
                self.ask("qmp_capabilities")
            self.line.sendall(json.dumps({"execute": what}).encode())
            for answer in self.answers:
                if {"return", "error"} & json.loads(answer).keys():
                    break
        except OSError as e:
            answer = str(e)
        if "return" in answer:
            return True
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            raise Failed(f"QEMU does not {what}: {answer}") from None
        return False

    def said(self):
        """What has arrived on the second serial line."""
        return self.acks.read_text(errors="replace")

    def seconds(self):
        return time.monotonic() - self.started

    def heard(self, silence=0.0):
        """All lines of the console, until nothing has come for so many seconds."""
        with contextlib.suppress(Failed):
            while self.next_line(silence) is not None:
                pass
        return self.lines

    def next_line(self, limit):
        """The console's next line; None at its end."""
        try:
            line = self.queue.get(timeout=max(limit, 0.001))
        except queue.Empty:
            raise Failed(f"nothing more within the time limit; it ended with\n{self.tail()}") from None
        if line is None:
            # It stays the end, for whoever asks next.
            self.queue.put(None)
            return None
        self.lines.append(line)
        if TROUBLE.search(line):
            self.trouble.append(line)
        return line

    def until(self, prefix, limit, hear=lambda line: None):
        """Reads until a line begins with `prefix`; the seconds are for all of it. `hear` is told the lines before."""
        end = time.monotonic() + limit
        while True:
            line = self.next_line(end - time.monotonic())
            if line is None or (line.startswith("@@end") and prefix != "@@end"):
                raise Failed(f"the machine ended before {prefix!r}:\n{self.tail()}")
            if line.startswith(prefix):
                return line
            hear(line)

    def tail(self, count=25):
        return "\n".join(f"    {line}" for line in self.lines[-count:])

    def complaints(self):
        """What the kernel complained of, as failures: who made it complain, and which tasks ran then."""
        found = []
        for number, line in enumerate(self.lines):
            if TROUBLE.search(line):
                who = [other for other in self.lines[number + 1:number + 4] if "Comm:" in other][:1]
                found.append((f"the kernel said {line.strip()}", [*who, *self.running_at(line)]))
        return found

    def running_at(self, line):
        """The tasks in whose time a line of the kernel's log falls."""
        if not (stamp := STAMP.search(line)):
            return []
        at, slack = float(stamp[1]), 0.1
        names = [name for name, begun, ended in self.spans() if begun - slack <= at <= ended + slack]
        return [f"while these ran: {', '.join(names) or 'none of the tasks'}"]

    def spans(self):
        """When the finished tasks ran: [(name, begun, ended)] in the machine's time."""
        begun = {}
        for line in self.lines:
            mark = MARK.search(line)
            if mark and mark[1] == "begin":
                begun[mark[2]] = float(mark[3])
            elif mark and mark[2] in begun and mark[4]:
                yield mark[2], begun[mark[2]], float(mark[4])

    def tasks(self):
        """What the tasks said so far."""
        return parse_tasks(self.lines)
