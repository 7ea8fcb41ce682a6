"""Power cuts: writers inside the machine acknowledge over a serial line, the machine is killed, and the next
boot shows what they left."""

import random
import time
from dataclasses import dataclass, field

from machine import Failed
from suite import EAGER, quote

LEAST_CUTS = 3
RUN = f"{EAGER} /adit/adit run --require --"


@dataclass
class Writer:
    """One writer of one boot, and what it must come to."""

    tag: str
    kind: str
    directory: str
    seed: int
    plant: str = ""
    # A planted bug that the check has to find.
    doomed: bool = False
    acknowledged: int = 0
    served: str = ""

    def start(self):
        make = f"mkdir -p {self.directory}\n"
        if self.kind == "unwritten":
            make += f"fallocate -l 1048576 {self.directory}/unwritten\n"
        command = f"{RUN} /adit/powercut write {self.kind} {self.directory} {self.seed} /dev/ttyS1 {self.tag}"
        return f"{make}{command} {self.plant} &\n"

    def check(self):
        command = f"/adit/powercut check {self.kind} {self.directory} {self.seed} {self.acknowledged}"
        # A writer that was cut off while it prepared has promised nothing.
        if self.acknowledged == 0:
            command = f"echo nothing was acknowledged; [ ! -e {self.directory}/{self.kind} ] || {command} || true"
        return f"task check-{self.tag} 60 {quote(command)}\n"


def writers(number, base_seed):
    """The writers of one ordinary cut: every kind on both file systems."""
    found = []
    for place in ("ext4", "xfs"):
        for i, kind in enumerate(("overwrite", "unwritten", "append", "replace")):
            directory = f"/mnt/{place}/cut{number}/{kind}"
            found.append(Writer(f"{place}.{kind}", kind, directory, base_seed * 1000 + number * 4 + i))
    return found


def planted(base_seed):
    """Bugs that a power cut must show, beside two writers that are right. The file systems are mounted without
    DAX, so that overwrites without fsync stay in the page cache. What leaves out its fsync has a file system where
    nobody else calls it: that would make everything durable."""
    found = []
    for place, kind, plant, doomed in (
        ("ext4", "overwrite", "", True), ("ext4", "overwrite", "early", True),
        ("ext4", "append", "", False), ("ext4", "replace", "", False),
        ("xfs", "overwrite", "", True), ("xfs", "append", "no-fsync", True), ("xfs", "replace", "no-fsync", True),
    ):
        name = f"{kind}.{plant or 'plain'}"
        directory = f"/mnt/{place}/plants/{name}"
        found.append(Writer(f"{place}.{name}", kind, directory, base_seed * 1000 + 999, plant, doomed))
    return found


@dataclass
class Report:
    """What all cuts came to."""

    cuts: int = 0
    acknowledged: int = 0
    checks: int = 0
    mapped: int = 0
    failures: list = field(default_factory=list)
    found_plants: set = field(default_factory=set)
    wanted_plants: set = field(default_factory=set)
    boots: list = field(default_factory=list)


def job(before, after, options):
    """Checks what the last cut left, then starts the next writers, or powers off."""
    text = f"DAX_OPTION={options}\n" + ("reopen\n" if before else "format\n")
    if before:
        text += "".join(w.check() for w in before)
        text += "rm -rf /mnt/ext4/cut* /mnt/xfs/cut* /mnt/ext4/plants /mnt/xfs/plants\n"
    if after:
        text += "".join(w.start() for w in after)
        text += "echo '@@writing'\nwait\nleave 'broken: the writers ended'\n"
    return text


def read_acknowledgements(acks, running):
    """Enters what arrived into the writers. Only whole lines count, and each writer counts up by one."""
    by_tag = {w.tag: w for w in running}
    for w in running:
        w.acknowledged = 0
    for line in acks.read_text(errors="replace").split("\n")[:-1]:
        word = line.split()
        writer = by_tag.get(word[0]) if word else None
        if writer and len(word) == 3 and word[1] == "served":
            writer.served = word[2]
        elif writer and len(word) == 2 and word[1] == str(writer.acknowledged + 1):
            writer.acknowledged += 1
        else:
            raise Failed(f"the serial line is disturbed: {line!r}")


def cut(machine, running, chance, limit, early):
    """Lets the writers run for a random time, and kills the machine. An early cut comes while some of them still
    make their files."""
    machine.until("@@writing", limit)
    if not early:
        end = time.monotonic() + limit
        while True:
            read_acknowledgements(machine.acks, running)
            if all(w.acknowledged > 2 for w in running):
                break
            if time.monotonic() > end or machine.process.poll() is not None:
                silent = [w.tag for w in running if w.acknowledged <= 2]
                machine.drain()
                raise Failed(f"no acknowledgements from {', '.join(silent)}:\n{machine.tail()}")
            time.sleep(0.02)
    time.sleep(chance.uniform(0.1, 2.0))
    machine.kill()
    machine.drain()
    read_acknowledgements(machine.acks, running)


def judge(report, machine, before, label):
    """Reads the verdicts about the last cut."""
    checks = {name: (status, output) for name, status, _, output in machine.tasks()}
    for name in ("fsck-ext4", "fsck-xfs"):
        status, output = checks.get(name, (None, []))
        if status != 0:
            report.failures.append((f"{label}: {name}", output))
    for writer in before:
        status, output = checks.get(f"check-{writer.tag}", (None, []))
        report.checks += 1
        if writer.doomed:
            report.wanted_plants.add(writer.tag)
            if status == 1 and any(line.startswith("FAILED") for line in output):
                report.found_plants.add(writer.tag)
        elif status != 0:
            report.failures.append((f"{label}: {writer.tag} seed {writer.seed}, {writer.acknowledged} acknowledged",
                                    output))
    report.failures += [(f"{label}: the kernel said", [line]) for line in machine.trouble]


def series(boot, options, deadline, say, report):
    """All cuts of one kernel. `boot(job)` starts a machine on the same images. On a slow host the series ends early,
    but not before it has some cuts."""
    chance = random.Random(options.seed)
    before, label, number = [], "", 1 if options.no_plants else 0
    while True:
        late = time.monotonic() > deadline and report.cuts >= LEAST_CUTS
        last = number > options.cuts or late
        after = [] if last else planted(options.seed) if number == 0 else writers(number, options.seed)
        with boot(job(before, after, "never" if number == 0 else "always")) as machine:
            report.boots.append(machine.booted)
            if last:
                machine.until("@@end", 120)
            else:
                cut(machine, after, chance, 120, early=number > 0 and chance.random() < 0.2)
            if before:
                judge(report, machine, before, label)
        if last:
            break
        label = "planted bugs" if number == 0 else f"cut {number}"
        enter(report, after, label, number, say)
        before, number = after, number + 1
    for plant in sorted(report.wanted_plants - report.found_plants):
        report.failures.append((f"planted bug {plant}", ["was not found: the check proves nothing"]))
    if report.cuts >= LEAST_CUTS and not report.mapped:
        report.failures.append(("no file was ever found mapped", ["Adit was not under test"]))


def enter(report, running, label, number, say):
    """Adds what the writers acknowledged before a cut."""
    acknowledged = sum(w.acknowledged for w in running)
    say(f"{label}: {acknowledged} operations acknowledged by {len(running)} writers")
    # The planted bugs run where Adit maps nothing to overwrite.
    if number:
        report.cuts += 1
        report.acknowledged += acknowledged
        in_place = [w for w in running if w.kind in ("overwrite", "unwritten")]
        report.mapped += sum(w.served == "yes" for w in in_place)
        if others := [w.tag for w in in_place if w.served == "no"]:
            report.failures.append((f"{label}: Adit did not map the files of", others))
