"""The tasks of the first boot: every medium named rightly, the oracle, SQLite, the engine's own tests."""

import re

PLACES = {"ext4": "dax", "xfs": "dax", "tmpfs": "ram"}
DAX = tuple(place for place, medium in PLACES.items() if medium == "dax")
# How often the kill -9 driver kills.
TORTURE_ROUNDS = 12
# Everything is adopted at once: short runs reach the mappings, too; and in the modes that stage, the first write is
# staged.
EAGER = "ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0 ADIT_KERNEL_BLOCKS=0"
# Left to the kernel are the first blocks of short files.
SHORT = "ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0"
# The emulated processor takes clwb and clflushopt of an inaccessible line for no operation, a real one faults.
EMULATION_DIFFERS = ["write_back_of_inaccessible_lines_faults"]
# What tests wait for takes so much longer where two emulated processors take turns.
PATIENCE = 3
# Tests that simulate their medium, or are about where the host keeps its pools: they run in `make test`.
ELSEWHERE = {"store-adit_store": ["staged::", "pools::"]}
# What runs on tmpfs in `make test`, and on all disks in `lab/suite` or `lab/run`, and is long: where it runs here, and where
# it does on another kernel than the first.
LONG = {
    "store-adit_store": {True: ("ext4",), False: ("xfs",)},
    "git": {True: ("ext4", "tmpfs"), False: ("xfs",)},
    "redis": {True: ("xfs", "tmpfs"), False: ("ext4",)},
    "fsx": {True: ("ext4", "tmpfs"), False: ("xfs",)},
    "sqlite": {True: ("xfs", "tmpfs"), False: ("ext4",)},
}

# Seconds that tasks take whose names begin so, about, and all others: so that both lists take the same time.
TAKES = {"store-adit_store": 180, "git": 18, "oracle": 9, "torture": 9, "pmem-faults": 9, "fsx": 7, "bash": 6, "redis": 6, "sqlite": 5}
TAKES_OTHERWISE = 2

# The oracle compares which times have moved since it last looked; the emulated clock ticks so unevenly that it
# also finds differences between two plain runs. A difference of times that comes back three times is one.
ORACLE = r"""
for try in 1 2 3; do
    {environment} /adit/adit-oracle --seed {seed} --ops {operations} --dir {dir} {options} >/tmp/{name} 2>&1
    status=$?
    cat /tmp/{name}
    [ $status != 0 ] && grep -Eq "mtime (stood still|moved)" /tmp/{name} || exit $status
done
exit $status
"""

SQLITE = r"""
set -e
dir={dir}/sqlite
rm -rf $dir; mkdir -p $dir
script() {{
    echo "pragma journal_mode=$1; pragma synchronous=full; create table t(k integer primary key, v blob);"
    i=0
    while [ $i -lt 12 ]; do
        echo "begin; with recursive n(x) as (select 1 union all select x+1 from n where x<60)
              insert into t select $i*60+x, zeroblob(x*7)||hex($i*x) from n; commit;
              update t set v=v||'$i' where k%7=$i%7; delete from t where k%11=$i;"
        i=$((i+1))
    done
    echo "vacuum; pragma integrity_check;"
}}
for mode in delete wal; do
    script $mode >$dir/script
    sqlite3 $dir/plain-$mode <$dir/script >$dir/plain-said
    {eager} {adit} sqlite3 $dir/adit-$mode <$dir/script >$dir/adit-said
    cmp $dir/plain-said $dir/adit-said
    for side in plain adit; do
        sqlite3 $dir/$side-$mode 'pragma integrity_check; select count(*), sum(length(v)) from t' >$dir/$side-dump
        sqlite3 $dir/$side-$mode .dump >>$dir/$side-dump
    done
    cmp $dir/plain-dump $dir/adit-dump
    [ "$(head -n1 $dir/adit-dump)" = ok ]
    sed -n 2p $dir/adit-dump
done
"""

BASH = r"""
set -e
dir={dir}/bash
rm -rf $dir; mkdir -p $dir
cat >$dir/script <<'END'
exec 3>>log
for i in {{1..200}}; do echo "line $i" >&3; (echo "child $i" >&3) & wait; done
while read -r word rest; do echo "$rest" >>"out.$word"; done <log
cat out.* | tr a-z A-Z >all; wc -l <all
END
for side in plain adit; do
    mkdir $dir/$side; cd $dir/$side
    case $side in plain) bash ../script;; adit) {eager} {adit} bash ../script;; esac >said
done
cd $dir
for file in plain/*; do cmp $file adit/${{file#plain/}}; done
cat adit/said
"""

GIT = r"""
set -e
dir={dir}/git
rm -rf $dir; mkdir -p $dir; cd $dir
export HOME=$dir GIT_CONFIG_NOSYSTEM=1 GIT_TEMPLATE_DIR=
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_DATE="1700000000 +0000"
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_COMMITTER_DATE="1700000000 +0000"
cat >script <<'END'
set -e
git init -q -b main one; cd one
for i in {{1..30}}; do mkdir -p d$((i % 4)); seq $i $((i * 37)) >d$((i % 4))/f$i; done
git add -A; git commit -qm first
for i in {{1..30..3}}; do seq $i 9 $((i * 91)) >>d$((i % 4))/f$i; done
git commit -qam second; git gc -q
cd ..; git clone -q one two; cd two
echo more >>d1/f1; git commit -qam third
git mv d2 e2; git commit -qm fourth
git fsck --strict; git log --format="%H %s"; git status --short
END
for side in plain adit; do
    mkdir $side; cd $side
    case $side in plain) bash ../script;; adit) {eager} {adit} bash ../script;; esac >../said-$side 2>&1 || {{
        cat ../said-$side; exit 1
    }}
    cd two; git fsck --strict 2>&1; find . -type f ! -path "./.git/*" | sort | xargs md5sum >../../files-$side
    cd ../..
done
cmp said-plain said-adit; cmp files-plain files-adit
tail -n 1 said-adit; wc -l <files-adit
"""

# What a client was told is written is there after the server was killed, and again when it runs plainly.
REDIS = r"""
set -e
dir={dir}/redis
rm -rf $dir; mkdir -p $dir; cd $dir
trap 'kill -9 $pid 2>/dev/null || true' EXIT
asked() {{ redis-cli -s sock "$@"; }}
start() {{
    "$@" redis-server --port 0 --unixsocket $dir/sock --dir $dir --save "" --appendonly yes --appendfsync always >log 2>&1 &
    pid=$!
    for try in $(seq 200); do
        [ "$(asked ping 2>/dev/null)" = PONG ] && return
        sleep 0.1
    done
    cat log; exit 1
}}
put() {{
    for i in $(seq $1 $2); do echo "SET key$i value-$i"; done | asked >said
    [ $(grep -c OK said) = $(($2 - $1 + 1)) ] || {{ cat said; exit 1; }}
}}
holds() {{
    [ $(asked dbsize) = $1 ] && [ $(asked get key$1) = value-$1 ] && [ $(asked get key7) = value-7 ] || {{
        echo "not $1 keys: $(asked dbsize), $(asked get key$1)"; exit 1
    }}
}}
start env {eager} {adit}
put 1 200
asked bgrewriteaof
put 201 400
kill -9 $pid; wait $pid || true
start env {eager} {adit}
holds 400
put 401 500
kill -9 $pid; wait $pid || true
{adit} bash -c :
start
holds 500
asked shutdown nosave || true
"""

# Each read is compared with what was written; with mappings, and without, where a mode stages the file.
FSX = r"""
dir={dir}/fsx
rm -rf $dir; mkdir -p $dir; cd $dir || exit 1
cp /adit/fsx.toml maps.toml
grep -Ev "^(map|invalidate)" maps.toml >calls.toml
echo "mapread = 0" >>calls.toml
echo "mapwrite = 0" >>calls.toml
for what in maps calls; do
    for side in plain adit; do
        case $side in plain) run=;; adit) run="env {eager} {adit}";; esac
        $run fsx -q -f $what.toml -N {operations} -S {seed} -P $dir $what-$side || exit 1
    done
    cmp $what-plain $what-adit || exit 1
done
"""

# A program appends with O_APPEND and is killed in the end. What must be seen on the way: its file has a lease and no
# O_APPEND, and the pool is mapped with MAP_SYNC where that exists; for somebody who opens the file there is all of it,
# and while he keeps it open the description is as the program made it. Nothing that was acknowledged is lost.
STAGING = r"""
dir={dir}/staging file=$dir/append acks=/tmp/staging-{name}
fail() {{ echo "FAILED: $*"; kill -9 $pid; exit 1; }}
flags() {{
    for fd in /proc/$pid/fd/*; do
        [ "$(readlink $fd)" = $file ] && sed -n 's/^flags:[[:space:]]*//p' /proc/$pid/fdinfo/${{fd##*/}}
    done
}}
leased() {{ grep -q "LEASE *ACTIVE *WRITE .*:$(stat -c %i $file) " /proc/locks; }}
# Within ten seconds.
soon() {{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -le 100 ] || return 1
        sleep 0.1
    done
}}
appends() {{ set -- $(flags); [ $(($1 & 02000)) != 0 ]; }}
longer() {{ [ $(stat -c %s $file) -gt $size ]; }}
rm -rf $dir; mkdir -p $dir; : >$acks
{adit} /adit/powercut write append $dir 2 $acks t {how} &
pid=$!
soon test -e $file && soon leased || fail "no lease: $(cat /proc/locks)"
soon eval '! appends' || fail "O_APPEND is still set: $(flags)"
if [ {medium} = dax ]; then
    [ -e {dir}/.adit-0/pool ] || fail "no pool"
    awk '/^[0-9a-f]+-/ {{ ours = / {pool}$/ }} ours && /^VmFlags:.* sf/ {{ found = 1 }} END {{ exit !found }}' \
        /proc/$pid/smaps || fail "the pool is not mapped with MAP_SYNC"
fi
sleep 1
cat $file >/tmp/copy-{name}
size=$(stat -c %s /tmp/copy-{name})
[ $size -gt 0 ] || fail "nothing there"
sleep 0.2
exec 7<$file
leased && fail "two have it open, and there is a lease"
soon appends || fail "O_APPEND was not restored: $(flags)"
size=$(stat -c %s $file)
soon longer || fail "nothing more came through the kernel"
kill -9 $pid
wait $pid
done=$(tail -n 1 $acks | cut -d' ' -f2)
cmp -n $(stat -c %s /tmp/copy-{name}) /tmp/copy-{name} $file || fail "what was read has changed"
/adit/powercut check append $dir 2 posix $done
"""

# A store to a page that is both write-tracked (userfaultfd) and shared with a clone never ends on XFS with DAX and
# MAP_SYNC (seen on Linux 6.12). The oracle clones blocks there, beside the library and its monitor: none of them may
# ever make a userfaultfd, without which no page is tracked. A program that makes one is found.
UNTRACKED = r"""
trace() {{
    rm -f /tmp/tracked
    strace -f --seccomp-bpf -qqq -e trace=userfaultfd -e signal=none -o /tmp/tracked "$@"
}}
fail() {{ echo "FAILED: $*"; cat /tmp/tracked; exit 1; }}
trace perl -e "syscall(323, 0)"
grep -q "userfaultfd(0)" /tmp/tracked || fail "a planted userfaultfd was not found"
export XDG_RUNTIME_DIR=/tmp/untracked {environment}
mkdir -p $XDG_RUNTIME_DIR
for mode in posix strict; do
    trace /adit/adit run --mode $mode -- /adit/adit-oracle --seed {seed} --ops {operations} --dir {dir} || fail $mode
    # Of a process that it leaves in a call strace may say no more than that.
    ! grep -q userfaultfd /tmp/tracked || fail "mode $mode made a userfaultfd"
done
"""


# A full disk refuses, and what it has not refused is in the file when there is room again: while the program goes on, and
# after it has ended. Nothing else runs beside it.
FULL = r"""
dir={dir}
export XDG_RUNTIME_DIR=/tmp/full-{name} {environment}
mkdir -p $XDG_RUNTIME_DIR
fail() {{ echo "FAILED: $*"; df -k $dir; exit 1; }}
ballast() {{ fallocate -l $(($(df -k $dir | awk 'END {{ print $4 }}') - 40960))k $dir/ballast || fail "no ballast"; }}
is_whole() {{
    for try in $(seq 100); do
        fill check $dir/full /tmp/full-{name}.said 2>/tmp/full-{name}.why && return
        sleep 0.3
    done
    fail "$1: $(cat /tmp/full-{name}.why)"
}}
ballast
{adit} perl /bin/fill write $dir/full /tmp/full-{name}.said $dir/ballast || fail "while it goes on"
is_whole "while it went on"
rm $dir/full
ballast
{adit} perl /bin/fill write $dir/full /tmp/full-{name}.said || fail "and ends"
rm $dir/ballast
is_whole "after its end"
rm $dir/full
"""


def adit(mode):
    """How a program is started under Adit. Outside mode posix `--require` also refuses files that cannot be staged,
    and the suite's programs open the same file twice on purpose."""
    return "/adit/adit run --require --" if mode == "posix" else f"/adit/adit run --mode {mode} --"


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def medium_check(place, medium, shares):
    """doctor must name the medium; MAP_SYNC must work exactly on the DAX ones, and what relinks bytes, in `shares`,
    exactly on the XFS that was made with it."""
    works = {"MAP_SYNC": medium == "dax"} | {row: place == "xfs" and made for row, made in shares.items()}
    rows = " && ".join(f"grep -Eq '^{row} +{'yes' if wanted else 'no'} ' /tmp/doctor-{place}"
                       for row, wanted in works.items())
    return (f"/adit/adit doctor /mnt/{place} >/tmp/doctor-{place}; status=$?; cat /tmp/doctor-{place}; "
            f"[ $status = 0 ] && grep -q '^/mnt/{place}: medium {medium} ' /tmp/doctor-{place} && {rows}")


def shares(kernel, host):
    """What the XFS of a machine can do, by the numbers of its kernel and of the host's, which mounts copies of it: the row
    of doctor, and whether `guest/init` makes it so."""
    return {"FICLONERANGE": kernel >= (6, 2), "exchange-range": min(kernel, host) >= (6, 10)}


def tasks(seeds, operations, tests, mode, shares, first):
    """Two lists of (name, seconds, command): the machine has two processors. `shares`: what XFS can. `first`: no other
    kernel has run them; what is the same on all, tmpfs, is looked at on that one alone."""
    lanes, places = ([], []), PLACES if first else DAX

    def is_here(test, place):
        return place in LONG.get(test, {}).get(first, places)

    for place in places:
        lanes[0].append((f"doctor-{place}", 30, medium_check(place, PLACES[place], shares)))
    everything, run = [], adit(mode)
    for place in places:
        directory = f"/mnt/{place}"
        for seed in seeds:
            for how, environment in (("", ""), ("-eager", EAGER)):
                name = f"oracle{how}-{place}-seed-{seed}"
                everything.append((name, 60, ORACLE.format(
                    name=name, environment=f"{environment} {run}", seed=seed, operations=operations,
                    dir=directory, options="--expect-served" if how and mode == "posix" else "")))
                everything.append((f"model{how}-{place}-seed-{seed}", 60,
                                   f"{environment} {run} /adit/adit-oracle --mode model --seed {seed} "
                                   f"--ops {operations} --dir {directory}"))
        if mode != "posix":
            everything.append((f"staging-{place}", 60, STAGING.format(
                name=place, dir=directory, adit=run, medium=PLACES[place], how="" if mode == "atomic" else "no-fsync",
                pool=f"{directory}/.adit-0/pool".replace("/", "\\/").replace(".", "\\."))))
        everything.append((f"torture-{place}", 90, f"{EAGER} /adit/adit-torture --dir {directory} --seed {seeds[0]} "
                                                   f"--rounds {TORTURE_ROUNDS} -- {run}"))
        programs = (("sqlite", 60, SQLITE), ("fsx", 60, FSX), ("bash", 60, BASH), ("git", 120, GIT), ("redis", 90, REDIS))
        for program, seconds, script in programs:
            if is_here(program, place):
                everything.append((f"{program}-{place}", seconds, script.format(
                    dir=directory, adit=run, eager=EAGER, seed=seeds[0], operations=operations)))
        for test in tests:
            if not is_here(test, place):
                continue
            skip = "".join(f" --skip {name}" for name in EMULATION_DIFFERS + ELSEWHERE.get(test, []))
            # The engine's tests take five minutes on the slower of the kernels.
            limit = 720 if test.startswith("store") else 360
            everything.append((f"{test}-{place}", limit, f"TMPDIR={directory} ADIT_TEST_SCRATCH={directory} "
                                                       f"ADIT_TEST_PATIENCE={PATIENCE} "
                                                       f"/adit/tests/{test} --test-threads 2{skip}"))
    if shares["FICLONERANGE"]:
        everything.append(("untracked-xfs", 90, UNTRACKED.format(
            environment=EAGER, seed=seeds[0], operations=operations, dir="/mnt/xfs")))
    filled = [sum(map(takes, lane)) for lane in lanes]
    # The longest first, each to who has least.
    for task in sorted(everything, key=takes, reverse=True):
        least = filled.index(min(filled))
        lanes[least].append(task)
        filled[least] += takes(task)
    return lanes


def takes(task):
    """About how many seconds."""
    return next((seconds for name, seconds in TAKES.items() if task[0].startswith(name)), TAKES_OTHERWISE)


# A DAX device without a file system: doctor says that it is no place for files, and a pool, which is a file, is
# refused with a reason.
DEVICE = r"""
device=$(ls -d /dev/dax*.*) || exit 1
wants() {
    wanted=$1 words=$2; shift 2
    "$@" >/tmp/device 2>&1; status=$?
    cat /tmp/device
    [ $status = $wanted ] && grep -q "$words" /tmp/device || { echo "$*: status $status, not '$words'"; exit 1; }
}
wants 1 "^$device: medium other (neither a regular file nor a directory)" /adit/adit doctor $device
wants 3 "there is a file already" /adit/adit pool create $device --size 16M
wants 3 "a pool must be a regular file" /adit/adit pool info $device
wants 3 "a pool must be a regular file" /adit/adit pool recover $device
"""

# Namespaces that are no use as persistent memory, or not all of it: doctor says which, and what to do. A region has the
# name of its number, whatever was made of it.
NAMESPACES = r"""
mkdir -p /mnt/other
looked() {
    words=$1 device=$2; shift 2
    ndctl create-namespace -f -e namespace1.0 "$@" >/dev/null || { echo "no namespace: $*"; exit 1; }
    mkfs.ext4 -q -F -b 4096 $device && mount -t ext4 $options $device /mnt/other || exit 1
    /adit/adit doctor /mnt/other >/tmp/looked 2>&1
    cat /tmp/looked
    umount /mnt/other
    tr '\n' ' ' </tmp/looked | tr -s ' ' | grep -q "$words" || { echo "FAILED: not '$words'"; exit 1; }
}
options=
looked "the namespace of pmem1 is raw: without page structures there is no DAX" /dev/pmem1 -m raw
looked "the namespace of pmem1s is in sector mode, which allows no DAX" /dev/pmem1s -m sector
looked "pmem1 is persistent memory, but the file system does not use it as such" /dev/pmem1 -m fsdax -M mem
options="-o dax=always"
looked "pmem1 does not begin at a multiple of 2 MB, so there are no huge mappings" /dev/pmem1 -m fsdax -M mem -a 4K
"""

# Where the kernel confuses the pages of files that share blocks (see `reflink` in guest/init), doctor warns of a file
# system on which they can; elsewhere it does not.
SHARING = r"""
warned=$(/adit/adit doctor /mnt/xfs | grep -c "kernel confuses mapped DAX pages")
[ $warned = $((1 - SOUND)) ] || { echo "FAILED: $warned warnings on Linux $(uname -r)"; exit 1; }
"""


# In the modes that stage no seed has to find a staged file at a look, as the oracle has the file open twice most of the
# time: all of them together do.
STAGED = r"""
cat /tmp/oracle*-seed-* | grep -o "staged at [0-9]* looks" | awk '{ looks += $3 }
    END { print looks " looks at staged files in " NR " runs"; exit !(looks > 0) }'
"""


RESULT = re.compile(r"test result: .* (\d+) passed; \d+ failed; (\d+) ignored; .* (\d+) filtered out")


def counted(output):
    """What a program of tests says of itself: how many passed, and how many ran elsewhere."""
    for line in reversed(output):
        if found := RESULT.match(line.strip()):
            return f"{found[1]} passed, {int(found[2]) + int(found[3])} elsewhere"
    return "passed"


def table(results):
    """What ran where: a line for each kind of task, a column for each place."""
    cells = {}
    for name, status, _, output in results:
        place = next((place for place in PLACES if f"-{place}" in name), None)
        kind = name.replace(f"-{place}", "") if place else name
        said = counted(output) if status == 0 else f"FAILED ({status})"
        cells.setdefault(kind, {})[place] = said
    width = max(map(len, cells)) + 2
    lines = ["what ran where".ljust(width) + "".join(f"{place} ({medium})".ljust(30) for place, medium in PLACES.items())]
    for kind, row in cells.items():
        said = row[None] if None in row else "".join(row.get(place, "-").ljust(30) for place in PLACES)
        lines.append((kind.ljust(width) + said).rstrip())
    return lines


def afterwards(mode):
    """The names of what runs when all lanes are done."""
    full = {f"full-{place}" for place in DAX}
    return {"shared-blocks", "device-dax", "namespaces"} | full | ({"oracle-staged"} if mode != "posix" else set())


def job(lanes, mode):
    text = "format\n"
    for lane in lanes:
        text += "{\n" + "".join(f"task {n} {s} {quote(c)}\n" for n, s, c in lane) + "} &\n"
    text += "wait\n"
    if mode != "posix":
        text += f"task oracle-staged 30 {quote(STAGED)}\n"
    for place in DAX:
        full = FULL.format(name=place, dir=f"/mnt/{place}", environment=EAGER, adit=adit(mode))
        text += f"task full-{place} 120 {quote(full)}\n"
    text += "unmount /mnt/xfs\nmust mkfs.xfs -q -f -m reflink=1 /dev/pmem1\n"
    text += "must mount -t xfs -o dax=always /dev/pmem1 /mnt/xfs\nexport SOUND=$(reflink)\n"
    text += f"task shared-blocks 30 {quote(SHARING)}\n"
    text += "unmount /mnt/xfs\nmust ndctl create-namespace -f -e namespace1.0 -m devdax -M mem\n"
    text += f"task device-dax 30 {quote(DEVICE)}\n"
    return text + f"task namespaces 60 {quote(NAMESPACES)}\n"
