"""The instruction budget: how long the path of each call is, and that it does not grow unseen."""

import tomllib
from pathlib import Path

from suite import EAGER, PLACES, adit, quote

TABLE = Path(__file__).resolve().parent / "paths.toml"
# The page that shows it, between two marks.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
MARKS = ("<!-- paths: written by lab/vm/run --write-paths -->\n", "<!-- end of paths -->")
# A call may take so much more than the table says before that is a failure.
MARGIN = 1.05
# How much shorter a staged append is than the kernel's on ext4-DAX, at least: what SplitFS has shown.
SHORTER = 4
PLANTED = "planted"
HEADER = """# Instructions per call on an emulated processor, written by `lab/vm/run --paths --write-paths`.
# `lab/vm/run --paths` fails when a call under Adit takes 5 % more than is written here. Who makes a path
# longer changes this file in the same commit, and says there what is bought with it.
"""


def sides(modes):
    return {"kernel": "", **{mode: f"{EAGER} {adit(mode)}" for mode in modes}}


def job(modes):
    """Counts the instructions of single calls, plainly and under Adit."""
    text, started = "format\n", sides(modes)
    for place in PLACES:
        for side, run in started.items():
            text += f"task {place}-{side} 120 {quote(f'{run} /adit/path-lengths /mnt/{place}')}\n"
    return text + f"task tmpfs-{PLANTED} 60 {quote(f'{started[modes[0]]} /adit/path-lengths /mnt/tmpfs slow')}\n"


def read(results):
    """What the tasks counted: {place: {side: {call: instructions}}}, and what failed."""
    counts, failures = {}, []
    for name, status, _, output in results:
        if status != 0:
            failures.append((f"{name} ended with {status}", output))
        place, _, side = name.partition("-")
        for word in (line.split() for line in output):
            if len(word) == 3 and word[0] == "path":
                counts.setdefault(place, {}).setdefault(side, {})[word[1]] = int(word[2])
    return counts, failures


def least(counts, again):
    """Of two boots' counts the lower one of each call."""
    return {place: {side: {call: min(number, again.get(place, {}).get(side, {}).get(call, number))
                           for call, number in calls.items()}
                    for side, calls in sides.items()}
            for place, sides in counts.items()}


def judge(counts, table, modes):
    """Calls that take more than the table allows. What the kernel's own part grew by is not held against Adit: its
    packages change under us."""
    failures = []
    for place in PLACES:
        for mode in modes:
            budgets = table.get(place, {}).get(mode, {})
            if not budgets:
                failures.append((f"{TABLE.name} has no budget for {place} in mode {mode}", []))
            for call, budget in budgets.items():
                now = counts.get(place, {}).get(mode, {}).get(call)
                if now is None:
                    failures.append((f"{call} on {place} in mode {mode} was not counted", []))
                    continue
                plain = counts.get(place, {}).get("kernel", {}).get(call, 0)
                kernel = max(0, plain - table[place].get("kernel", {}).get(call, plain))
                if now > MARGIN * budget + kernel:
                    failures.append((f"{call} on {place} in mode {mode} takes {now} instructions",
                                     [f"the budget in {TABLE.name} is {budget}"]))
    return failures


def judge_appends(counts, modes):
    """The staged appends that are not so much shorter than the kernel's."""
    ext4 = {side: calls.get("append-4K", 0) for side, calls in counts.get("ext4", {}).items()}
    kernel = ext4.get("kernel", 0)
    return [(f"an append on ext4-DAX in mode {mode} is not {SHORTER} times shorter than the kernel's", [str(ext4)])
            for mode in modes if not 0 < SHORTER * ext4.get(mode, 0) <= kernel]


def run(counts, modes):
    """Judges against the table, after showing that a longer path is found."""
    table = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
    memory = dict(counts.get("tmpfs", {}))
    slow = memory.pop(PLANTED, {})
    memory[modes[0]] = {**memory.get(modes[0], {}), **slow}
    failures = judge(counts, table, modes) + judge_appends(counts, modes)
    if not judge_appends({"ext4": {**counts.get("ext4", {}), modes[0]: {"append-4K": 1 << 20}}}, modes[:1]):
        failures.append(("planted append", ["one that takes a million instructions was not found"]))
    if not slow or len(judge({**counts, "tmpfs": memory}, table, modes)) <= len(judge(counts, table, modes)):
        failures.append(("planted detour", ["one more system call per read was not found: the budget proves nothing"]))
    return failures


def show(counts, modes):
    """Lines of a table: calls by place and side, with the ratio to the kernel."""
    lines = []
    for place in PLACES:
        found = counts.get(place, {})
        lines.append(f"instructions on {place}".ljust(24) + f"{'kernel':>9}" + "".join(f"{m:>16}" for m in modes))
        for call, plain in found.get("kernel", {}).items():
            line = f"{call:24}{plain:9}"
            for mode in modes:
                now = found.get(mode, {}).get(call)
                line += f"{'-':>16}" if now is None else f"{now:9} ({now / plain:4.2f})"
            lines.append(line)
    return lines


def write(counts):
    text = HEADER
    for place in PLACES:
        for side, calls in counts.get(place, {}).items():
            if side != PLANTED:
                lines = (f'"{call}"'.ljust(18) + f"= {n}\n" for call, n in calls.items())
                text += f"\n[{place}.{side}]\n" + "".join(lines)
    TABLE.write_text(text)
    page = PAGE.read_text()
    before, rest = page.split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + document(tomllib.loads(text)) + MARKS[1] + rest.split(MARKS[1])[1])


def document(table):
    """The same for readers, with the ratio to the kernel."""
    text = ""
    for place, found in table.items():
        modes = [side for side in found if side != "kernel"]
        text += f"\n| {place}{'-DAX' if place != 'tmpfs' else ''} | kernel | {' | '.join(modes)} |\n"
        text += "|---" * (len(modes) + 2) + "|\n"
        for call, plain in found["kernel"].items():
            counts = (found[mode].get(call) for mode in modes)
            ratios = ("-" if now is None else f"{now:,} ({now / plain:.2f})" for now in counts)
            text += f"| {call} | {plain:,} | {' | '.join(ratios)} |\n"
    return text + "\n"
