"""Children that may hang, and what they leave running."""

import os
import select
import signal
from pathlib import Path


def wait_without_reaping(pid, limit):
    """Whether `pid` ends within the limit; it stays a zombie, so that it can still be asked."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(limit * 1000))
    finally:
        os.close(handle)


def kill_session(leader):
    """Kill what is left of the session that `leader` began, and only that."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name in parentheses may contain spaces: the fields are counted from its end.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(pid), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue
