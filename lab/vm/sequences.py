"""Crash consistency by enumeration: every short sequence of operations (powercut/src/ace.rs), with a power cut right
after its last acknowledgement."""

import time
from dataclasses import dataclass, field

from cuts import PLACES, RECOVER
from machine import Failed
from suite import EAGER, adit, quote

# Sequences before the newest that are judged, too.
BACK = 12
# How many a planted bug gets before it must have been found.
PLANTED = 20
# The file system itself is checked after so many cuts.
FSCK_EVERY = 20


@dataclass
class Run:
    """One series in one directory."""

    tag: str
    place: str
    last: int
    plant: str = ""
    first: int = 1

    def mode(self, options):
        """A sync that is left out loses nothing where calls are durable by themselves."""
        return "posix" if self.plant else options.mode

    def command(self, options):
        mode = self.mode(options)
        run = f"{EAGER} {adit(mode)}"
        return (f"{run} /adit/powercut sequences {mode} /mnt/{self.place}/{self.tag} {options.seed} "
                f"{self.first}-{self.last} /dev/ttyS1 {self.tag} {self.plant}")

    def check(self, options, number, events):
        back = 0 if self.plant else min(BACK, number - self.first)
        command = (f"/adit/powercut check-sequences {self.mode(options)} /mnt/{self.place}/{self.tag} {options.seed} "
                   f"{number} {events} {back}")
        return RECOVER + f"task sequence 60 {quote(command)}\n"


@dataclass
class Report:
    """What all sequences came to."""

    cuts: int = 0
    exact: int = 0
    reached: dict = field(default_factory=dict)
    failures: list = field(default_factory=list)
    found: set = field(default_factory=set)


class Line:
    """What arrives on the serial line: the newest acknowledgement."""

    def __init__(self):
        self.tag, self.number, self.events, self.last = None, 0, 0, False

    def read(self, text):
        whole = text.rpartition("\n")[0]
        if not whole:
            return
        words = whole.rpartition("\n")[2].split()
        if len(words) < 3 or not words[1].isdigit() or not words[2].isdigit():
            raise Failed(f"the serial line is disturbed: {whole[-80:]!r}")
        self.tag, self.number, self.events = words[0], int(words[1]), int(words[2])
        self.last = words[3:] in (["last"], ["end"])


def runs(options):
    found = [Run(f"{place}.plant", place, PLANTED, "no-fsync") for place in PLACES if not options.no_plants]
    last = options.first_sequence + options.sequences - 1
    return found + [Run(place, place, last, first=options.first_sequence) for place in PLACES]


def job(all_runs, options):
    text = f"DAX_OPTION={options.dax}\nformat\n"
    for run in all_runs:
        text += f"mkdir -p /mnt/{run.place}/{run.tag}\n"
        text += f"task {run.tag} {options.sequence_time} {quote(run.command(options))}\n"
        # What the plant left out happens here: the next series starts from a durable state.
        text += "sync\n"
    return text


def series(lab, inspector, options, say):
    """Cuts after each sequence that gets that far before the next begins. Returns the report."""
    report = Report()
    by_tag = {run.tag: run for run in runs(options)}
    with lab.boot(job(by_tag.values(), options)) as machine:
        deadline = time.monotonic() + options.sequence_time
        cut_after, line = None, Line()
        while machine.process.poll() is None:
            if time.monotonic() > deadline:
                break
            line.read(machine.said())
            here = (line.tag, line.number)
            if line.tag in by_tag and line.last and line.events and here != cut_after:
                cut_after = here
                take(lab, inspector, machine, by_tag, line, options, report)
            time.sleep(0.002)
        machine.heard(0.5)
        if not any(said.startswith("@@end done") for said in machine.lines):
            report.failures.append(("sequences: not done in time, or the machine died", machine.lines[-20:]))
        for name, status, _, output in machine.tasks():
            if status != 0:
                report.failures.append((f"sequences: {name} ended with {status}", output))
        report.failures += machine.complaints()
    inspector.wait()
    for run in by_tag.values():
        if run.plant and run.tag not in report.found:
            report.failures.append((f"planted bug {run.tag}", ["was not found: the check proves nothing"]))
    if options.sequences and not report.exact:
        report.failures.append(("no cut came right after a sequence", []))
    say(f"sequences: {sum(report.reached.values())} sequences, {report.cuts} cuts, {report.exact} of them right after "
        f"the last acknowledgement, {len(report.found)} planted bugs found")
    return report


def take(lab, inspector, machine, by_tag, line, options, report):
    """One cut, and its check."""
    place = by_tag[line.tag].place
    cut = inspector.take(machine, {place: lab.images[place]})
    now = Line()
    now.read(cut.acks)
    run = by_tag.get(now.tag)
    if run is None or run.place != place or now.number > run.last:
        cut.drop()
        return
    report.cuts += 1
    report.exact += now.last
    if not run.plant:
        report.reached[place] = now.number - run.first + 1

    def judge(results):
        said = {name: (status, output) for name, status, _, output in results}
        bad = [(name, output) for name, (status, output) in said.items() if status != 0]
        if run.plant:
            if any(name == "sequence" and any(l.startswith("FAILED") for l in output) for name, output in bad):
                report.found.add(run.tag)
            return
        if "sequence" not in said and not bad:
            bad = [("sequence", ["was not judged"])]
        for name, output in bad:
            report.failures.append((f"sequence {now.number} on {place}, {now.events} acknowledged: {name}", output))

    inspector.submit(cut, run.check(options, now.number, now.events), report.cuts % FSCK_EVERY == 0, judge)

