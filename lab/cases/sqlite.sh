#!/bin/bash
# what:   SQLite with rollback journal and WAL, alone and with two writers and a reader at once
# needs:  sqlite3
# debian: sqlite3
# limit:  120
# ignore: two-*.db* *-persist.db-journal

# Where each write waits for a disk, a fifth of it. What is torn below is more than the cache holds all the same.
rows=3000 times=40 torn=
if [ -n "$LAB_WAITS" ]; then rows=600 times=14 torn="WHERE id <= 150"; fi
# Alone the result is a function of the statements: the files must be equal byte by byte.
for journal in delete truncate persist memory wal; do
    sqlite3 "one-$journal.db" >/dev/null <<EOF
PRAGMA journal_mode=$journal;
CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT, extra BLOB);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < $rows)
INSERT INTO t SELECT i, 'row ' || i, zeroblob(i % 300) FROM n;
COMMIT;
CREATE INDEX by_body ON t(body);
UPDATE t SET body = body || ' changed' WHERE id % 3 = 0;
BEGIN;
DELETE FROM t WHERE id % 5 = 0;
ROLLBACK;
DELETE FROM t WHERE id % 7 = 0;
SAVEPOINT a; INSERT INTO t(body) VALUES('kept'); SAVEPOINT b; INSERT INTO t(body) VALUES('lost'); ROLLBACK TO b; RELEASE a;
VACUUM;
PRAGMA wal_checkpoint(TRUNCATE);
EOF
    sqlite3 "one-$journal.db" 'PRAGMA integrity_check; SELECT count(*), sum(length(body)), max(id) FROM t;'
done

writer() {
    local database=$1 who=$2
    for i in $(seq 1 "$times"); do
        echo ".timeout 30000"
        echo "BEGIN IMMEDIATE;"
        for j in 1 2 3; do echo "INSERT INTO t(who, n) VALUES('$who', $i * 10 + $j);"; done
        echo "UPDATE counter SET n = n + 3;"
        echo "COMMIT;"
    done | sqlite3 -bail "$database"
}
reader() {
    local bad
    for i in $(seq 1 15); do
        # In any snapshot the counter and the rows agree: anything else is a torn transaction.
        bad=$(sqlite3 -cmd '.timeout 30000' "$1" 'SELECT (SELECT n FROM counter) - (SELECT count(*) FROM t);')
        [ "$bad" = 0 ] || die "$1: counter and rows differ by $bad"
    done
}
for journal in delete wal; do
    database=two-$journal.db
    sqlite3 "$database" "PRAGMA journal_mode=$journal; CREATE TABLE t(id INTEGER PRIMARY KEY, who, n); CREATE TABLE counter(n); INSERT INTO counter VALUES(0);" >/dev/null
    jobs=()
    for who in a b; do
        writer "$database" $who &
        jobs+=($!)
    done
    reader "$database" &
    jobs+=($!)
    for job in "${jobs[@]}"; do wait "$job" || die "$database: a process failed"; done
    sqlite3 "$database" 'PRAGMA integrity_check; SELECT who, count(*), sum(n) FROM t GROUP BY who; SELECT n FROM counter;'
    sqlite3 "$database" 'SELECT who, n FROM t ORDER BY who, n;' >"$database-rows"
    mv "$database-rows" "rows-$journal"
done

# A memory-mapped database, and one that dies in the middle of a transaction.
sqlite3 one-wal.db 'PRAGMA mmap_size=10000000; SELECT count(*), sum(length(extra)) FROM t;'
{
    echo "PRAGMA cache_size=5; BEGIN;"
    echo "UPDATE t SET body = 'torn' || hex(randomblob(200)) $torn;"
    echo ".shell kill -9 \$PPID"
} | sqlite3 one-delete.db >/dev/null 2>&1 && die "the database survived its kill"
test -s one-delete.db-journal && echo "a hot journal stays"
sqlite3 one-delete.db "PRAGMA integrity_check; SELECT count(*) FROM t WHERE body LIKE 'torn%';"
