#!/bin/bash
# what:   PostgreSQL: a cluster made, loaded, vacuumed, stopped and killed while clients commit; a plain server finds all of it
# needs:  psql pg_createcluster setpriv pkill
# media:  ram ext4
# debian: postgresql postgresql-client util-linux procps
# limit:  120
# ignore: data data/* *.log

# It refuses root. So somebody else runs the rest, with a monitor that can be killed without others noticing, and with
# copies of what that user may not be able to reach.
if [ "$ADIT_RUNTIME_DIR" != "$LAB_SCRATCH/run" ]; then
    somebody=()
    here=$LAB_SCRATCH/bin
    mkdir "$here"
    mkdir -m 700 "$LAB_SCRATCH/run"
    cp "$LAB/prelude" "${BASH_SOURCE[0]}" "$here"
    case $LAB_WRAP in *"$LAB_BIN"*) cp "$LAB_BIN"/{adit,libadit.so} "$here" ;; esac
    if [ "$(id -u)" = 0 ]; then
        somebody=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
        chown -R nobody:nogroup . "$LAB_SCRATCH"
    fi
    export ADIT_RUNTIME_DIR=$LAB_SCRATCH/run LAB_WRAP=${LAB_WRAP//"$LAB_BIN"/"$here"}
    # shellcheck disable=SC2086
    exec env -u LD_PRELOAD -u ADIT_MODE "${somebody[@]}" $LAB_WRAP bash "$here/prelude" "$here/postgres.sh"
fi

PATH=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1):$PATH
export PGHOST=$LAB_SCRATCH PGUSER=postgres PGDATABASE=postgres PGOPTIONS='-c client_min_messages=error'
# On a disk each write of some modes waits for it.
many=${LAB_WAITS:+1}
many=${many:-4}

initdb -D data -U postgres -A trust -k --no-locale -E UTF8 >initdb.log 2>&1 || die "$(tail -3 initdb.log)"
cat >>data/postgresql.conf <<END
listen_addresses = ''
unix_socket_directories = '$LAB_SCRATCH'
shared_buffers = 2MB
max_wal_size = 32MB
min_wal_size = 32MB
END

# Nothing takes so long but what waits for ever: then it is told who waits for what.
soon() {
    timeout $((40 * LAB_PATIENCE)) "$@" || {
        (($? != 124)) || outside ps -o pid,stat,wchan:24,args -u "$(id -u)" >&2
        false
    }
}
is_up() { timeout 10 psql -Xqc 'SELECT 1'; }
# start COMMAND...: the server, by a command that becomes it.
start() {
    "$@" postgres -D data >>server.log 2>&1 &
    server=$!
    (wait_until $((40 * LAB_PATIENCE)) is_up) || die "$(tail -3 server.log)"
}
# stop SIGNAL: TERM, INT and QUIT are its smart, fast and immediate shutdown.
stop() {
    kill -s "$1" "$server"
    wait "$server" || true
}
ask() { soon psql -XqAt -v ON_ERROR_STOP=1 "$@"; }
# Whatever it commits, what it moved from one place to another is nowhere lost.
balance() {
    ask -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches),
        (SELECT count(*) FROM pgbench_history)'
}
no_monitor() { pkill -KILL -f "adit monitor --runtime-dir $ADIT_RUNTIME_DIR " || true; }
# The next program that somebody starts.
# shellcheck disable=SC2086
next_program() { outside $LAB_WRAP true; }
# A dump without the two lines in which newer versions have a random word.
dump() { soon pg_dump -t rows -t copied | sed '/^\\\(un\)\?restrict/d'; }

start env
pgbench -i -q -s 1 >pgbench.log 2>&1
pgbench -n -c 4 -j 2 -t $((many * 50)) 2>>pgbench.log | grep '^number of transactions'
balance
ask <<END
CREATE TABLE rows AS SELECT i, md5(i::text) AS word, repeat(chr(97 + i % 26), i % 300) AS pad
    FROM generate_series(1, $((many * 5000))) i;
CREATE INDEX by_word ON rows(word);
CREATE INDEX by_hash ON rows USING hash(i);
BEGIN; DELETE FROM rows WHERE i % 5 = 0; ROLLBACK;
UPDATE rows SET pad = pad || 'changed' WHERE i % 3 = 0;
DELETE FROM rows WHERE i % 7 = 0;
VACUUM ANALYZE rows;
CHECKPOINT;
CLUSTER rows USING by_word;
CREATE TABLE copied(LIKE rows);
CREATE EXTENSION amcheck;
END
ask -c 'COPY rows TO STDOUT' >rows.copy
ask -c 'COPY copied FROM STDIN' <rows.copy
ask -c 'VACUUM FULL copied' -c "SET work_mem = '64kB'" -c 'SELECT count(*), sum(length(pad)) FROM rows JOIN copied USING (word, pad)'
dump >before.sql
# In modes that stage, a shutdown that leaves nothing to recover, by one who knows nothing of Adit, too.
stop INT
outside pg_checksums --check -D data | grep '^Bad checksums'

# The logs of other ways to sync; and then the whole directory is declared, which several processes stage together.
start env ADIT_PATH="$PWD/data"
ask -c 'ALTER SYSTEM SET wal_sync_method = open_datasync'
dump | cmp - before.sql
soon pgbench -n -c 4 -t $((many * 150)) >pgbench.log 2>>bench-errors.log &
bench=$!
# Monitor and standby are killed beside it, and the next ones take from all what they find shared.
sleep 0.2
no_monitor
next_program
wait $bench || die "$(tail -40 bench-errors.log)"
grep '^number of transactions' pgbench.log
stop QUIT
start env ADIT_PATH="$PWD/data"
dump | cmp - before.sql && balance

# A process of it is killed over a transaction: the others begin anew, and nothing of it is there.
{
    echo 'SELECT pg_backend_pid();'
    echo 'INSERT INTO pgbench_history(delta) SELECT 1 FROM generate_series(1, 10000000);'
} | psql -XqAt >victim.log 2>&1 &
wait_until 20 grep -q . victim.log
sleep 0.3
kill -9 "$(head -1 victim.log)"
wait $! || true
wait_until $((40 * LAB_PATIENCE)) is_up
balance

# All are killed while clients commit. What was acknowledged a server finds that knows nothing of Adit.
ask -c 'CREATE TABLE acknowledged(who int, nth int, pad text)'
clients=()
for who in 1 2 3; do
    for nth in $(seq 1 20000); do
        echo "INSERT INTO acknowledged VALUES($who, $nth, repeat('x', $nth % 500)) RETURNING who, nth;"
    done | psql -XqAt -F ' ' >"told-$who.log" 2>/dev/null &
    clients+=($!)
done
told() { sort told-?.log | wc -l; }
are_gone() { ! ps -o stat= -p "$1" | grep -qv '^Z'; }
enough() { (($(told) > many * 100)); }
wait_until $((30 * LAB_PATIENCE)) enough
kill -STOP "$server"
no_monitor
others=$(pgrep -d , -P "$server")
pkill -KILL -P "$server"
stop KILL
# A server does not start beside processes of another one.
wait_until $((20 * LAB_PATIENCE)) are_gone "$others"
wait "${clients[@]}" || true
# What is staged is put into the files by the next that is started, whatever it is.
next_program
rm -f data/postmaster.pid "$LAB_SCRATCH"/.s.PGSQL.*
start env -u LD_PRELOAD -u ADIT_MODE
ask -F ' ' -c 'SELECT who, nth FROM acknowledged' | sort >found.log
lost=$(sort told-?.log | comm -23 - found.log | wc -l)
(($(told) > many * 100 && lost == 0)) || die "$lost of $(told) acknowledged commits are lost"
(($(wc -l <found.log) <= $(told) + 3)) || die "more was committed than clients asked for"
balance
dump | cmp - before.sql
outside pg_amcheck --heapallindexed --parent-check && echo "tables and indices are sound"
stop INT
outside pg_checksums --check -D data | grep '^Bad checksums'
