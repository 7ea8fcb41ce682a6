"""The tasks of the first boot: every medium named rightly, the oracle, SQLite, the engine's own tests."""

PLACES = {"ext4": "dax", "xfs": "dax", "tmpfs": "ram"}
ADIT = "/adit/adit run --require --"
# How often the kill -9 driver kills.
TORTURE_ROUNDS = 12
# Everything is adopted at once: short runs reach the mappings, too.
EAGER = "ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0"
# The emulated processor takes clwb and clflushopt of an inaccessible line for no operation, a real one faults.
EMULATION_DIFFERS = ["write_back_of_inaccessible_lines_faults"]

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


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def medium_check(place, medium):
    """doctor must name the medium, and MAP_SYNC must work exactly on the DAX ones."""
    expected = "yes" if medium == "dax" else "no"
    return (f"/adit/adit doctor /mnt/{place} >/tmp/doctor-{place}; status=$?; cat /tmp/doctor-{place}; "
            f"[ $status = 0 ] && grep -q '^/mnt/{place}: medium {medium} ' /tmp/doctor-{place} && "
            f"grep -Eq '^MAP_SYNC +{expected} ' /tmp/doctor-{place}")


def tasks(seeds, operations, tests):
    """Two lists of (name, seconds, command): the machine has two processors."""
    lanes = ([], [])
    for place, medium in PLACES.items():
        lanes[0].append((f"doctor-{place}", 30, medium_check(place, medium)))
    everything = []
    for place in PLACES:
        directory = f"/mnt/{place}"
        for seed in seeds:
            for how, environment in (("", ""), ("-eager", EAGER)):
                name = f"oracle{how}-{place}-seed-{seed}"
                everything.append((name, 60, ORACLE.format(
                    name=name, environment=f"{environment} {ADIT}", seed=seed, operations=operations,
                    dir=directory, options="--expect-served" if how else "")))
        everything.append((f"torture-{place}", 90, f"{EAGER} /adit/adit-torture --dir {directory} --seed {seeds[0]} "
                                                   f"--rounds {TORTURE_ROUNDS} -- {ADIT}"))
        everything.append((f"sqlite-{place}", 60, SQLITE.format(dir=directory, adit=ADIT, eager=EAGER)))
        everything.append((f"bash-{place}", 60, BASH.format(dir=directory, adit=ADIT, eager=EAGER)))
        for test in tests:
            skip = "".join(f" --skip {name}" for name in EMULATION_DIFFERS)
            everything.append((f"{test}-{place}", 60, f"TMPDIR={directory} /adit/tests/{test} --test-threads 2{skip}"))
    for number, task in enumerate(everything):
        lanes[number % 2].append(task)
    return lanes


def job(lanes):
    text = "format\n"
    for lane in lanes:
        text += "{\n" + "".join(f"task {n} {s} {quote(c)}\n" for n, s, c in lane) + "} &\n"
    return text + "wait\n"


def paths_job():
    """Counts the instructions of single calls, plainly and under Adit."""
    text = "format\n"
    for place in PLACES:
        for side, run in (("plain", ""), ("adit", f"{EAGER} {ADIT}")):
            text += f"task {place}-{side} 120 {quote(f'{run} /adit/path-lengths /mnt/{place}')}\n"
    return text


def paths_table(results):
    """Lines of the table, and what failed."""
    counts, failures = {}, []
    for name, status, _, output in results:
        if status != 0:
            failures.append((f"{name} ended with {status}", output))
        for word in (line.split() for line in output):
            if len(word) == 3 and word[0] == "path":
                counts.setdefault(word[1], {})[name] = int(word[2])
    lines = ["instructions per call".ljust(22) + "".join(f"{p + ', plain':>14}{'adit':>9}{'ratio':>7}" for p in PLACES)]
    for call, found in counts.items():
        line = call.ljust(22)
        for place in PLACES:
            plain, adit = found.get(f"{place}-plain"), found.get(f"{place}-adit")
            if plain is None or adit is None:
                failures.append((f"{call} on {place} was not counted", []))
                continue
            line += f"{plain:14}{adit:9}{adit / plain:7.2f}"
        lines.append(line)
    return lines, failures
