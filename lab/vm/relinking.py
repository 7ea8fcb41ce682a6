"""What relinking costs on DAX, in instructions, beside a copy: `crates/store/examples/relinkbench.rs`."""

import programs

# The pools and files of all ways lie there side by side.
IMAGE_MB = {"ext4": 256, "xfs": 1536}
LIMIT = 900
HEADER = "thousands of instructions, medians: committed to the pool + published = both; and against a copy"


def built(target):
    """{path inside the machine: path here}."""
    programs.cargo(["build", "--release", "-p", "adit-store", "--example", "relinkbench"], target)
    return {"/adit/relinkbench": target / "release" / "examples" / "relinkbench"}


def job():
    return f"format\ntask relinking {LIMIT} '/adit/relinkbench bench /mnt/xfs'\n"


def read(results):
    """Lines of a table, and what failed: the kernel must share blocks, or nothing was compared."""
    status, output = next(((status, output) for name, status, _, output in results if name == "relinking"), (None, []))
    lines = [line for line in output if " KB " in line]
    failures = [] if status == 0 else [(f"relinking ended with {status}", output)]
    if status == 0 and not any("Clone" in line for line in lines):
        failures.append(("nothing was relinked: XFS shares blocks with DAX since Linux 6.2 (--kernel 6.12)", output))
    # One instruction is one nanosecond of the machine's clock.
    return [HEADER, *lines], failures
