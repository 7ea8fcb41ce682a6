"""What runs inside the machine: programs of the host's packages, and what this repository builds."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from kernel import Missing

ROOT = Path(__file__).resolve().parents[2]
# Program: the Debian package that brings it.
HOST = {
    "bash": "bash",
    "e2fsck": "e2fsprogs",
    "flock": "util-linux",
    "git": "git",
    "git-upload-pack": "git",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "ndctl": "ndctl",
    "perl": "perl-base",
    "redis-cli": "redis-tools",
    "redis-server": "redis-server",
    "sqlite3": "sqlite3",
    "strace": "strace",
    "xfs_db": "xfsprogs",
    "xfs_repair": "xfsprogs",
}
# The same for programs of crates: `cargo install` brings them.
CRATES = {"fsx": "fsx"}
# Package: those of its tests that touch a medium. The tests of copies touch none, and all their sizes and places take
# minutes in emulation.
TESTS = {"adit-pmem": ("adit_pmem", "media", "faults"), "adit-pool": ("files",), "adit-store": ("adit_store",)}
EMULATOR = {"qemu-system-x86_64": "qemu-system-x86"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name):
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def static_busybox():
    """busybox must be the static one: it runs before any library is in place."""
    path = find("busybox")
    if not path:
        return None
    done = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=30, check=False)
    static = "statically linked" in done.stdout or "not a dynamic executable" in done.stdout + done.stderr
    return path if static else None


def missing_packages():
    absent = {package for name, package in {**HOST, **EMULATOR}.items() if not find(name)}
    return absent if static_busybox() else absent | {"busybox-static"}


def install(say):
    """Installs what is missing when that is allowed; else says what to do."""
    if crates := sorted(crate for name, crate in CRATES.items() if not find(name)):
        raise Missing(f"programs are missing: cargo install --locked {' '.join(crates)}")
    packages = sorted(missing_packages())
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"packages are missing; as root: apt-get install --no-install-recommends {names}")
    say(f"installing {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300, env=environment, check=False)
    if missing_packages():
        raise Missing(f"apt-get could not install {names}: {done.stdout.strip()[-800:]}")


def cargo(arguments, target, cwd=ROOT):
    command = [os.environ.get("CARGO", "cargo"), *arguments, "--locked", "-j2"]
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900, check=False,
        env={**os.environ, "CARGO_TARGET_DIR": str(target), "CARGO_TERM_COLOR": "never"})
    if done.returncode:
        raise SystemExit(f"lab/vm: {' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def test_programs(said):
    """What `cargo test --no-run --message-format=json` has built: {(package, target): path}."""
    found = {}
    for message in map(json.loads, said.splitlines()):
        if message.get("executable") and message.get("profile", {}).get("test"):
            # Cargo leaves the name out where the folder has the same.
            package = re.search(r"([\w-]+)[#@][^/]*$", message["package_id"])[1]
            package = package if package.startswith("adit") else f"adit-{package}"
            found[(package, message["target"]["name"])] = Path(message["executable"])
    return found


def listed(target):
    """The test programs of the crates, as `make test` builds them: {(package, target): path}."""
    return test_programs(cargo(["test", "--workspace", "--no-run", "--message-format=json"], target))


def powercut(target):
    """Builds the two halves of a power cut, and says where they are. The judge is tried before it judges."""
    for command in ("test", "build"):
        cargo([command, "--release"], target / "powercut", ROOT / "lab" / "vm" / "powercut")
    return target / "powercut" / "release"


def built(target, say):
    """Builds what is under test: {path inside the machine: path here}."""
    say("building")
    release, debug = target / "release", target / "debug"
    # As `make release` and `make test` do, so that nothing is built twice.
    cargo(["build", "--release", "-p", "adit-shim", "-p", "adit-cli", "-p", "adit-oracle"], target)
    cargo(["build", "--workspace"], target)
    tests = listed(target)
    judges = powercut(target)
    files = {"/adit/fsx.toml": ROOT / "lab" / "programs" / "fsx.toml",
             "/adit/database": ROOT / "lab" / "vm" / "guest" / "database"}
    files |= {f"/adit/{name}": release / name for name in ("adit", "libadit.so", "adit-oracle")}
    files["/adit/adit-torture"] = debug / "adit-torture"
    files["/adit/staged-writer"] = debug / "examples" / "staged-writer"
    for name in ("powercut", "path-lengths"):
        files[f"/adit/{name}"] = judges / name
    for (package, name), path in tests.items():
        if name in TESTS.get(package, ()):
            files[f"/adit/tests/{package.removeprefix('adit-')}-{name}"] = path
    return files
