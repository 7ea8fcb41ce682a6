"""Power cuts: writers inside the machine acknowledge over a serial line, the machine is killed, and the next
boot shows what they left."""

import random
import re
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Callable

import publishing
from machine import Failed
from suite import EAGER, SHORT, adit, quote

LEAST_CUTS = 3
# Cuts of one recovery.
RECOVERIES = 4
# Looks at planted bugs before the machine is killed.
PLANTED_LOOKS = 4
# Cuts of one boot that are looked at from outside; the file systems themselves at each of so many.
FSCK_EVERY = 10
# Cuts that are aimed at a publication come at most so many seconds after it began.
AIM = 0.008
# Brings back what was staged in pools: by hand, or by the next program that is run, which knows the pools by a list,
# and without one by the places where they are made.
RECOVER = r"""
for pool in /mnt/*/.adit-*/pool; do
    [ ! -e $pool ] || task recover 60 "/adit/adit pool dump $pool | grep '^rejected'; /adit/adit pool recover $pool"
done
"""
# Lines of the log that were being written: nobody was told of them, so they are no failure, but they are counted.
CUT_OFF = re.compile(r"(\d+) log lines were cut off")
CAME_BACK = re.compile(r": (\d+) (?:records, |files recovered)")
STATE = "/mnt/ext4/state"
RECOVER_BY_RUN = f"task recover 60 'XDG_STATE_HOME={STATE} /adit/adit run -v -- true'\n"
RECOVER_WITHOUT_LIST = f"rm -rf {STATE}\n{RECOVER_BY_RUN}"


@dataclass
class Writer:
    """One writer of one boot, and what it must come to."""

    tag: str
    kind: str
    directory: str
    seed: int
    mode: str = "posix"
    plant: str = ""
    # A planted bug that the check has to find.
    doomed: bool = False
    # Uses the engine itself, without the preloaded library.
    engine: bool = False
    # Somebody else opens the file again and again. Between that and the writer's next close the kernel has it.
    visited: bool = False
    # Runs only as long as its file can be staged.
    required: bool = False
    acknowledged: int = 0
    served: str = ""

    def place(self):
        return self.tag.partition(".")[0]

    def start(self):
        make = f"mkdir -p {self.directory}\n"
        if self.kind == "unwritten":
            make += f"fallocate -l 1048576 {self.directory}/unwritten\n"
        where = f"{self.kind} {self.directory} {self.seed} /dev/ttyS1 {self.tag}"
        if self.engine:
            home = f"/mnt/{self.place()}/.adit-0"
            pool = f"{home}/pool"
            make += f"[ -e {pool} ] || {{ mkdir -p {home}; must /adit/adit pool create {pool} --size 32M; sync; }}\n"
            command = f"/adit/staged-writer {self.mode} {where} {pool}"
            return f"{make}{{ {command} {self.plant}; echo @@ended {self.tag} with $?; }} &\n"
        # What is staged anew all the time must be staged every time, or less is promised.
        run = adit(self.mode).replace("run", "run --require") if self.required else adit(self.mode)
        # At every second cut all is staged from the first byte on.
        eager = EAGER if self.seed // 8 % 2 else SHORT
        command = f"{eager} {run} /adit/powercut write {where}"
        visits = f"while usleep 150000; do head -c 1 {self.directory}/{self.kind} >/dev/null 2>&1; done &\n"
        return f"{make}{{ {command} {self.plant}; echo @@ended {self.tag} with $?; }} &\n{visits * self.visited}"

    def promise(self):
        """What is left of the mode's promise: the kernel makes no call atomic."""
        return {"strict": "sync", "atomic": "posix"}[self.mode] if self.visited else self.mode

    def check(self):
        command = f"/adit/powercut check {self.kind} {self.directory} {self.seed} {self.promise()} {self.acknowledged}"
        # A writer that was cut off while it prepared has promised nothing.
        if self.acknowledged == 0:
            command = f"echo nothing was acknowledged; [ ! -e {self.directory}/{self.kind} ] || {command} || true"
        return f"task check-{self.tag} 60 {quote(command)}\n"


@dataclass
class Database(Writer):
    """A database, and its client. One that never syncs needs a mode in which every call is durable when it returns."""

    def start(self):
        how = "careless" if self.mode == "strict" or self.doomed else "careful"
        arguments = f"{self.kind} {self.directory} {how} /dev/ttyS1 {self.tag} env {EAGER} {adit(self.mode)}"
        command = f"/adit/database write {arguments} >/dev/null 2>&1"
        return f"mkdir -p {self.directory}\n{{ {command}; echo @@ended {self.tag} with $?; }} &\n"

    def check(self):
        command = f"/adit/database check {self.kind} {self.directory} {self.acknowledged}"
        # Nothing was promised of a database that was not made yet.
        if self.acknowledged == 0:
            command = "echo nothing was acknowledged"
        return f"task check-{self.tag} 90 {quote(command)}\n"


# What writes in each mode: kind, and what it does differently. Where calls are durable by themselves an appender
# leaves out its fsync.
KINDS = {
    "posix": (("overwrite", ""), ("unwritten", ""), ("append", ""), ("replace", "")),
    "sync": (("overwrite", ""), ("append", "no-fsync"), ("replace", ""), ("short", "")),
    "atomic": (("append", ""), ("replace", "")),
    "strict": (("overwrite", ""), ("append", "no-fsync"), ("replace", ""), ("short", "")),
}


PLACES = ("ext4", "xfs")


def seed_of(base_seed, number, place, i):
    """The seed of a writer. Of its bits the fourth says whether all is staged at once; the third and the fifth say
    together whether an appender leaves the offset to the kernel (kinds.rs). Two cuts have all four combinations."""
    return base_seed * 1000 + number * 8 + PLACES.index(place) * 4 + i


def writers(number, base_seed, mode):
    """The writers of one ordinary cut: every kind on both file systems."""
    found = []
    for place in PLACES:
        for i, (kind, how) in enumerate(KINDS[mode]):
            directory = f"/mnt/{place}/cut{number}/{kind}"
            found.append(Writer(f"{place}.{kind}", kind, directory, seed_of(base_seed, number, place, i), mode, how))
    return found


# What has its staged bytes published over and over: kind, what it does differently, whether others visit its file.
PUBLISHERS = {
    "strict": (("overwrite", "reopen", False), ("append", "no-fsync reopen", True), ("append", "no-fsync rest", False)),
    "atomic": (("append", "reopen", False), ("append", "reopen", True), ("append", "rest", False)),
}


def publishers(number, base_seed, mode):
    """Writers whose files are published all the time: because they are closed, opened by others, or left alone."""
    found = []
    for place in PLACES:
        for i, (kind, how, visited) in enumerate(PUBLISHERS[mode]):
            why = "visited" if visited else how.split()[-1]
            found.append(Writer(f"{place}.{kind}-{why}", kind, f"/mnt/{place}/cut{number}/{kind}-{why}",
                                seed_of(base_seed, number, place, i), mode, how, visited=visited, required=not visited))
    return found


def planted_in_publishers(base_seed, mode):
    """One of them acknowledges early."""
    found = publishers(0, base_seed, mode)
    wrong = found[0]
    wrong.plant, wrong.doomed = f"{wrong.plant} early", True
    return found


def databases(number, base_seed, mode):
    """Every database on both file systems."""
    return [Database(f"{place}.{kind}", kind, f"/mnt/{place}/cut{number}/{kind}", base_seed, mode)
            for place in PLACES for kind in ("redis", "sqlite-delete", "sqlite-wal")]


def planted_in_databases(base_seed, mode):
    """Databases that never sync, in a mode that leaves that to them, on one file system: a sync of another one would make
    theirs durable, too."""
    wrong = [replace(database, mode="posix", doomed=True) for database in databases(0, base_seed, mode)
             if database.place() == "xfs"]
    return wrong + [database for database in databases(0, base_seed, mode) if database.place() == "ext4"]


def engine_writers(number, base_seed):
    """Writers on the staged engine: on both file systems two modes, which change from boot to boot."""
    found = []
    modes = ("strict", "atomic", "sync")
    for place in PLACES:
        for i, kind in enumerate(("overwrite", "append", "append")):
            mode = modes[(number + i) % 3]
            directory = f"/mnt/{place}/cut{number}/{kind}-{mode}"
            found.append(Writer(f"{place}.{kind}-{mode}", kind, directory, seed_of(base_seed, number, place, i), mode,
                                engine=True))
    return found


def planted_in_engine(base_seed):
    """A writer on the engine that acknowledges before it appends, beside right ones."""
    found = engine_writers(0, base_seed)
    wrong = found[1]
    wrong.plant, wrong.doomed = "early", True
    return found


def planted_on_a_disk(base_seed, mode):
    """One of the writers acknowledges early."""
    found = writers(0, base_seed, mode)
    wrong = found[0]
    wrong.plant, wrong.doomed = f"{wrong.plant} early", True
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
        found.append(Writer(f"{place}.{name}", kind, directory, base_seed * 1000 + 999, "posix", plant, doomed))
    return found


@dataclass(frozen=True)
class Lane:
    """One kind of series: who writes, which of its bugs are planted, and what is special about the cuts."""

    name: str
    # Of (number of the cut, seed, mode).
    writers: Callable
    # Of (seed, mode).
    planted: Callable
    # How the file systems are mounted, and for the planted bugs.
    dax: str = "always"
    planted_dax: str = "always"
    # Cuts come while staged bytes are published, and the next program brings them back as often as the command does.
    publishing: bool = False
    # A recovery that is no recovery, which must lose something.
    futile: str | None = None
    # Some cuts come while the writers still make their files.
    early: bool = True

    def recover(self, chance):
        every = (RECOVER, RECOVER_BY_RUN, RECOVER_WITHOUT_LIST)
        return chance.choice(every) if self.publishing else RECOVER


PROGRAMS = Lane("power", writers, lambda seed, mode: planted(seed), planted_dax="never")
# The same behind a page cache, as on any disk: what was not synced is lost with the machine's memory.
DISK = Lane("disk", writers, planted_on_a_disk, dax="never", planted_dax="never", futile="")
ENGINE = Lane("engine", lambda number, seed, mode: engine_writers(number, seed), lambda seed, mode:
              planted_in_engine(seed), futile="")
DATABASES = Lane("database", databases, planted_in_databases, planted_dax="never", futile="", early=False)
# Where they are written through a page cache.
DATABASES_ON_A_DISK = replace(DATABASES, dax="never")
PUBLISHING = Lane("publishing", publishers, planted_in_publishers, publishing=True, futile="")


@dataclass
class Tally:
    """The cuts of all series of one run."""

    # The machine was killed, and booted again.
    killed: int = 0
    # Its memory was copied while it stood still, between writers' calls, in recoveries, after short sequences.
    copied: int = 0
    recoveries: int = 0
    sequences: int = 0
    acknowledged: int = 0

    # Several series run at a time.
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def all(self):
        return self.killed + self.copied + self.recoveries + self.sequences

    def enter(self, report):
        with self.lock:
            self.killed += report.cuts
            self.copied += report.frozen
            self.recoveries += report.recoveries
            self.acknowledged += report.acknowledged

    def enter_sequences(self, report):
        with self.lock:
            self.sequences += report.cuts

    def __str__(self):
        return (f"{self.all()} power cuts: {self.killed} by a kill, with another boot, {self.copied} by a copy of the "
                f"NVDIMMs while writers ran, {self.recoveries} while they were recovered, {self.sequences} after short "
                f"sequences; {self.acknowledged} acknowledged operations before the kills")


@dataclass
class Report:
    """What all cuts came to."""

    cuts: int = 0
    # Cuts that were looked at without a boot.
    frozen: int = 0
    # Cuts of recoveries.
    recoveries: int = 0
    # Cuts in the middle of a publication.
    publishing: int = 0
    # Cuts after which the kernel would not mount ext4 before it was repaired.
    repaired: int = 0
    # Records, or files, that came back from pools.
    recovered: int = 0
    # Log lines that were cut off while they were written.
    cut_off: int = 0
    acknowledged: int = 0
    checks: int = 0
    mapped: int = 0
    failures: list = field(default_factory=list)
    found_plants: set = field(default_factory=set)
    wanted_plants: set = field(default_factory=set)
    boots: list = field(default_factory=list)


def job(before, after, dax, recover):
    """Checks what the last cut left, then starts the next writers, or powers off."""
    text = f"DAX_OPTION={dax}\n" + ("reopen\n" if before else "format\n")
    if before:
        text += "echo @@recovering\n" + recover + "echo @@recovered\n" + "".join(w.check() for w in before)
        text += f"rm -rf /mnt/ext4/cut* /mnt/xfs/cut* /mnt/ext4/plants /mnt/xfs/plants {STATE}\n"
    if after:
        text += f"export XDG_STATE_HOME={STATE}\n" + "".join(w.start() for w in after)
        text += "echo '@@writing'\nwait\ndf -k /mnt/ext4 /mnt/xfs\nleave 'broken: the writers ended'\n"
    return text


def read_acknowledgements(acks, running):
    """Enters what arrived into the writers. Only whole lines count, and each writer counts up by one."""
    by_tag = {w.tag: w for w in running}
    for w in running:
        w.acknowledged = 0
    for line in acks.split("\n")[:-1]:
        word = line.split()
        writer = by_tag.get(word[0]) if word else None
        if writer and len(word) == 3 and word[1] == "served":
            writer.served = word[2]
        elif writer and len(word) == 2 and word[1] == str(writer.acknowledged + 1):
            writer.acknowledged += 1
        else:
            raise Failed(f"the serial line is disturbed: {line!r}")


def cut(machine, running, chance, limit, early, freeze, aim):
    """Lets the writers run for a random time, and kills the machine. An early cut comes while some of them still
    make their files. `freeze` may look at the machine in between; `aim` waits for the moment."""
    machine.until("@@writing", limit)
    if not early:
        end = time.monotonic() + limit
        while True:
            read_acknowledgements(machine.said(), running)
            if all(w.acknowledged > 2 for w in running):
                break
            if time.monotonic() > end or machine.process.poll() is not None:
                silent = [w.tag for w in running if w.acknowledged <= 2]
                machine.heard(0.5)
                raise Failed(f"no acknowledgements from {', '.join(silent)}:\n{machine.tail()}")
            time.sleep(0.02)
    freeze()
    time.sleep(chance.uniform(0.1, 2.0))
    aim()
    machine.kill()
    machine.heard(0.5)
    read_acknowledgements(machine.said(), running)


def aimed(watch, chance):
    """A function that waits until somebody publishes, and a random moment more."""

    def aim():
        watch.wait(3)
        time.sleep(chance.uniform(0, AIM))

    return aim if watch else lambda: None


def judge(report, tasks, before, label, fsck=True):
    """Reads the verdicts about a cut."""
    checks = {name: (status, output) for name, status, _, output in tasks}
    for name in ("fsck-ext4", "fsck-xfs") if fsck else ():
        status, output = checks.get(name, (None, []))
        if status != 0:
            report.failures.append((f"{label}: {name}", output))
    for name, status, _, output in tasks:
        report.repaired += name == "repaired-ext4"
        if name in ("mount", "recover", "repaired-ext4") and status != 0:
            report.failures.append((f"{label}: {name} ended with {status}", output))
        if name == "recover":
            report.recovered += sum(int(m[1]) for line in output if (m := CAME_BACK.search(line)))
            report.cut_off += sum(int(m[1]) for line in output if (m := CUT_OFF.search(line)))
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


class Freezer:
    """Cuts one machine without a boot."""

    def __init__(self, machine, lab, inspector, running, lane, watch, report):
        self.machine, self.images, self.inspector = machine, lab.images, inspector
        self.running, self.lane, self.watch, self.report = running, lane, watch, report

    def take(self):
        """The copies of now, and the writers with what they had acknowledged."""
        cut_now = self.inspector.take(self.machine, self.images)
        then = [replace(w) for w in self.running]
        read_acknowledgements(cut_now.acks, then)
        if self.watch:
            self.report.publishing += self.watch.in_copies(cut_now.images)
        return cut_now, then

    def some(self, count, chance, label):
        """Cuts at random instants, or at those that the lane is for."""
        aim = aimed(self.watch, chance)
        for number in range(1, count + 1):
            time.sleep(chance.uniform(0.02, 0.3))
            aim()
            cut_now, then = self.take()
            self.report.frozen += 1
            fsck = self.report.frozen % FSCK_EVERY == 1
            name = f"{label}.{number}"
            script = self.lane.recover(chance) + "".join(w.check() for w in then)
            self.inspector.submit(cut_now, script, fsck, lambda tasks, then=then, name=name, fsck=fsck:
                                  judge(self.report, tasks, then, name, fsck))

    def torn(self, chance):
        """What a cut may leave of a store to ext4's own structures must not end a series."""
        plant = f"a torn group descriptor, {self.lane.name}"
        self.report.wanted_plants.add(plant)
        cut_now, then = self.take()
        cut_now.tear()
        right = {f"check-{w.tag}" for w in then if not w.doomed}

        def look(tasks):
            done = {name for name, status, _, _ in tasks if status == 0}
            if {"repaired-ext4", *right} <= done:
                self.report.found_plants.add(plant)

        self.inspector.submit(cut_now, self.lane.recover(chance) + "".join(w.check() for w in then), False, look)

    def futile(self):
        """What is in the pools must be missed when nobody brings it back: else a recovery that does nothing passes."""
        plant = f"futile recovery, {self.lane.name}"
        self.report.wanted_plants.add(plant)
        cut_now, then = self.take()
        right = {f"check-{w.tag}" for w in then if not w.doomed}

        def look(tasks):
            if any(name in right and status == 1 for name, status, _, _ in tasks):
                self.report.found_plants.add(plant)

        self.inspector.submit(cut_now, self.lane.futile + "".join(w.check() for w in then), False, look)


def cut_recovery(machine, images, inspector, before, chance, report, label, lane):
    """Cuts while what the last cut left comes back from the pools: another recovery must finish that work."""
    machine.until("@@recovering", 120)
    for number in range(1, RECOVERIES + 1):
        time.sleep(chance.uniform(0.0, 0.06))
        cut_now = inspector.take(machine, images)
        if "@@recovered" in machine.heard():
            cut_now.drop()
            return
        then = [replace(w) for w in before]
        report.recoveries += 1
        name = f"{label}, cut {number} of the recovery"
        inspector.submit(cut_now, lane.recover(chance) + "".join(w.check() for w in then), False,
                         lambda tasks, then=then, name=name: judge(report, tasks, then, name, False))


def series(lab, inspector, options, lane, count, deadline, say, report):
    """All cuts of one kernel, each boot on the same images. On a slow host the series ends early, but not before it
    has some cuts."""
    chance = random.Random(options.seed)
    before, label, number = [], "", 1 if options.no_plants else 0
    while True:
        late = time.monotonic() > deadline and report.cuts >= LEAST_CUTS
        last = number > count or late
        if last:
            after = []
        elif number:
            after = lane.writers(number, options.seed, options.mode)
        else:
            after = lane.planted(options.seed, options.mode)
        dax = lane.dax if number else lane.planted_dax
        with (lab.boot(job(before, after, dax, lane.recover(chance))) as machine,
              publishing.Watch(lab.images) as watch):
            report.boots.append(machine.booted)
            if before and inspector:
                cut_recovery(machine, lab.images, inspector, before, chance, report, label, lane)
            if last:
                machine.until("@@end", 120)
            else:
                watch = watch if lane.publishing else None
                freezer = Freezer(machine, lab, inspector, after, lane, watch, report)

                def freeze(freezer=freezer, number=number):
                    if inspector and number:
                        freezer.some(options.frozen, chance, f"cut {number}")
                    elif inspector:
                        freezer.torn(chance)
                        if lane.futile is not None:
                            freezer.futile()
                            freezer.some(PLANTED_LOOKS, chance, "planted bugs")

                # Not the first: what nothing was acknowledged of proves nothing.
                early = lane.early and chance.random() < 0.2 and number > 1
                cut(machine, after, chance, 120, early, freeze, aimed(watch, chance))
                report.publishing += bool(watch and watch.publishing())
                report.failures += [(f"cut {number}: {line}", machine.lines[-20:]) for line in machine.lines
                                    if line.startswith("@@ended")]
            if before:
                judge(report, machine.tasks(), before, label)
                report.failures += [(f"{label}: {what}", output) for what, output in machine.complaints()]
        if last:
            break
        label = "planted bugs" if number == 0 else f"cut {number}"
        enter(report, after, label, number, say)
        before, number = after, number + 1
    for plant in sorted(report.wanted_plants - report.found_plants):
        report.failures.append((f"planted bug {plant}", ["was not found: the check proves nothing"]))
    if inspector:
        inspector.wait()
    if report.cuts >= min(count, LEAST_CUTS):
        prove(lane, options.mode, inspector, report)


def prove(lane, mode, inspector, report):
    """Enters what was never under test as failures."""
    if not report.recovered:
        report.failures.append(("nothing ever came back from a pool", ["nothing was staged"]))
    if inspector and report.cuts > 1 and not report.recoveries:
        report.failures.append(("no cut came while something was recovered", ["recovery was not under test"]))
    if lane.publishing and not report.publishing:
        report.failures.append(("no cut came while somebody published", ["publishing was not under test"]))
    if lane is PROGRAMS and mode == "posix" and not report.mapped:
        report.failures.append(("no file was ever found mapped", ["Adit was not under test"]))


def enter(report, running, label, number, say):
    """Adds what the writers acknowledged before a cut."""
    acknowledged = sum(w.acknowledged for w in running)
    say(f"{label}: {acknowledged} operations acknowledged by {len(running)} writers")
    # The planted bugs run where Adit maps nothing to overwrite.
    if number:
        report.cuts += 1
        report.acknowledged += acknowledged
        in_place = [w for w in running if w.kind in ("overwrite", "unwritten") and w.mode == "posix"]
        report.mapped += sum(w.served == "yes" for w in in_place)
        if others := [w.tag for w in in_place if w.served == "no"]:
            report.failures.append((f"{label}: Adit did not map the files of", others))
