#!/bin/bash
# what:   Python's own tests of io, os, shutil, tempfile, subprocess, mmap, zipfile, tarfile, dbm, pathlib
# needs:  /usr/bin/python3 /usr/lib/python3.11/test/test_io.py
# debian: python3 libpython3.11-testsuite
# media:  ram ext4
# limit:  260

# Debian packages no tests of Python's sqlite3 module; the case sqlite has what that is made of.
# Most of the time here is spent in tests that sleep: run the suites side by side. Each prints one line
# per test with its result, so that a comparison of the two sides names the test.
suites="
test_io.CSignalsTest test_io.PySignalsTest test_io.CMiscIOTest test_io.PyMiscIOTest
test_io:rest
test_subprocess.ProcessTestCase test_subprocess.ProcessTestCaseNoPoll test_subprocess.RunFuncTestCase
test_subprocess.POSIXProcessTestCase
test_os test_posix test_shutil test_tempfile test_mmap test_zipfile test_tarfile test_fileio test_file
test_bufio test_largefile test_fcntl test_pathlib test_glob test_gzip test_dbm test_mailbox test_popen
test_univnewlines test_genericpath test_posixpath test_filecmp test_linecache test_pipes test_select
"
cat >one.py <<'EOF'
import sys, unittest
from test import support

# Some tests say how long they waited.
support.verbose = 0
name = sys.argv[1]
apart = ("CSignalsTest", "PySignalsTest", "CMiscIOTest", "PyMiscIOTest")


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


class Lines(unittest.TestResult):
    """One line per test; the first failure's text goes to standard error."""

    def say(self, test, verdict):
        print(f"{test.id()} {verdict}", flush=True)

    def addSuccess(self, test):
        self.say(test, "ok")

    def addFailure(self, test, err):
        self.say(test, "FAILED")
        print(self._exc_info_to_string(err, test), file=sys.stderr)

    addError = addFailure

    def addSkip(self, test, reason):
        self.say(test, "skipped")

    def addExpectedFailure(self, test, err):
        self.say(test, "ok")


loader = unittest.defaultTestLoader
if name.endswith(":rest"):
    name = name[:-5]
    tests = [
        test
        for test in flatten(loader.loadTestsFromName("test." + name))
        if type(test).__name__ not in apart
    ]
    suite = unittest.TestSuite(tests)
else:
    suite = loader.loadTestsFromName("test." + name)
result = Lines()
suite.run(result)
print(f"{sys.argv[1]}: ran {result.testsRun}", flush=True)
EOF
# Each suite in a directory of its own: many use the same temporary names.
mkdir work results
one() {
    mkdir "work/$1" "work/$1/tmp"
    (
        cd "work/$1"
        TMPDIR=$PWD/tmp timeout $((240 * LAB_PATIENCE)) /usr/bin/python3 -X dev -W ignore -W ignore::ResourceWarning \
            ../../one.py "$1" >../../results/"$1" 2>"$LAB_SCRATCH/$1.err"
    ) || echo "$1: ended with $?" >>"results/$1"
    grep FAILED "results/$1" >/dev/null && tail -n 15 "$LAB_SCRATCH/$1.err" >&2
    return 0
}
running=0
for suite in $suites; do
    one "$suite" &
    if ((++running >= 6)); then wait -n; fi
done
wait
cat results/* | sort
rm -rf work results one.py
