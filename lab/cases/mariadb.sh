#!/bin/bash
# what:   MariaDB (InnoDB buffered, direct and by io_uring, Aria, MyISAM): DDL, LOAD DATA, dumps, kill -9 twice, then a plain server
# needs:  mariadbd mariadb-install-db mariadb mariadb-admin mariadb-dump
# media:  ram ext4
# debian: mariadb-server
# limit:  180
# ignore: data data/* *.log

socket=$LAB_SCRATCH/mariadb.sock
# Only the tables are asked for here: what a new server writes for itself is the same each time.
outside mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$PWD/data" --skip-test-db \
    --auth-root-authentication-method=normal --innodb-log-file-size=16M >install.log 2>&1 || die "$(tail install.log)"

# start WRAPPER OPTION...: the server, and when it answers; an empty wrapper is none.
start() {
    local wrapper=$1
    shift
    $wrapper mariadbd --no-defaults --user="$(id -un)" --datadir="$PWD/data" --socket="$socket" --skip-networking \
        --pid-file="$LAB_SCRATCH/mariadb.pid" --innodb-log-file-size=16M --innodb-buffer-pool-size=24M \
        --aria-pagecache-buffer-size=8M --key-buffer-size=8M --secure-file-priv= --local-infile=1 "$@" >>server.log 2>&1 &
    server=$!
    wait_until 40 mariadb-admin --no-defaults --user=root --socket="$socket" ping
}
buffered() { start "" --innodb-use-native-aio=0 --innodb-flush-method=fsync; }
direct() { start ""; }
plain() { start outside; }
stop() {
    mariadb-admin --no-defaults --user=root --socket="$socket" shutdown
    wait "$server"
}
ask() { mariadb --no-defaults --user=root --socket="$socket" --skip-column-names --local-infile=1 "$@"; }
# dump WRAPPER FILE
dump() {
    $1 mariadb-dump --no-defaults --user=root --socket="$socket" --skip-comments --single-transaction d --result-file="$2"
}
tables=items,part,small,squeezed,aria,isam,loaded,cut
found() { ask d -e "CHECK TABLE $tables EXTENDED; CHECKSUM TABLE $tables EXTENDED; SELECT COUNT(*), SUM(extra) FROM items"; }

# Where each write waits for a disk, a third of it.
many=6000
if [ -n "$LAB_WAITS" ]; then many=2000; fi
buffered
ask <<SQL
CREATE DATABASE d; USE d;
CREATE TABLE items(id INT PRIMARY KEY, body VARCHAR(400), k INT, KEY(k)) ENGINE=InnoDB;
INSERT INTO items SELECT seq, REPEAT(CHAR(97 + seq % 26), seq % 400), seq * 7919 % 1000 FROM seq_1_to_$many;
CREATE TABLE part(id INT, y INT, body BLOB, PRIMARY KEY(id, y)) ENGINE=InnoDB PARTITION BY RANGE(y)
    (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE);
INSERT INTO part SELECT seq, seq % 30, REPEAT('x', seq % 2000) FROM seq_1_to_$((many / 6));
ALTER TABLE part REORGANIZE PARTITION p2 INTO (PARTITION p2 VALUES LESS THAN (25), PARTITION p3 VALUES LESS THAN MAXVALUE);
ALTER TABLE part DROP PARTITION p1;
CREATE TABLE small ENGINE=InnoDB ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4 AS SELECT id, body FROM items WHERE id <= $((many / 4));
CREATE TABLE squeezed ENGINE=InnoDB PAGE_COMPRESSED=1 AS SELECT id, body FROM items WHERE id <= $((many / 4));
CREATE TABLE aria(id INT PRIMARY KEY, body VARCHAR(400)) ENGINE=Aria TRANSACTIONAL=1;
INSERT INTO aria SELECT id, body FROM items WHERE id <= $((many / 3));
CREATE TABLE isam(id INT PRIMARY KEY, body VARCHAR(400)) ENGINE=MyISAM;
INSERT INTO isam SELECT id, body FROM items WHERE id <= $((many / 3));
DELETE FROM isam WHERE id % 3 = 0; OPTIMIZE TABLE isam;
ALTER TABLE items ADD COLUMN extra INT NOT NULL DEFAULT 5, ADD INDEX (body(20)), ALGORITHM=INPLACE;
ALTER TABLE aria ADD COLUMN z INT DEFAULT 3, ALGORITHM=COPY;
UPDATE items SET body = CONCAT(body, '+'), extra = id WHERE id % 3 = 0;
DELETE FROM items WHERE id % 11 = 0;
BEGIN; DELETE FROM items; ROLLBACK;
CREATE TABLE gone AS SELECT * FROM items; DROP TABLE gone;
CREATE TABLE cut AS SELECT * FROM items LIMIT $((many / 6)); TRUNCATE TABLE cut; INSERT INTO cut SELECT * FROM items LIMIT 10;
CREATE TABLE loaded(id INT PRIMARY KEY, body VARCHAR(500)) ENGINE=InnoDB;
CREATE TABLE kept(id INT PRIMARY KEY, body VARCHAR(300)) ENGINE=InnoDB;
SQL
ask d -e "SELECT id, body FROM items ORDER BY id INTO OUTFILE '$PWD/rows.txt'; LOAD DATA INFILE '$PWD/rows.txt' INTO TABLE loaded;
    DELETE FROM loaded WHERE id % 2 = 0; LOAD DATA LOCAL INFILE '$PWD/rows.txt' IGNORE INTO TABLE loaded"
found >found
cat found
dump "" before.sql
# Who knows nothing of Adit gets the same from the server, and finds the same bytes in the file.
dump outside again.sql
outside cmp before.sql again.sql

# acknowledged FIRST START: two clients insert until the server is killed; what they were told is there after START.
acknowledged() {
    local first=$1 jobs=() client i id
    # Those of the last kill are not to be taken for these.
    rm -f acknowledged-?.log
    for client in 1 2; do
        for i in $(seq 1 5000); do
            id=$((first + client * 10000 + i))
            echo "INSERT INTO kept VALUES($id, REPEAT('$client', $((i % 300)))); SELECT $id;"
        done | ask --unbuffered d >"acknowledged-$client.log" 2>/dev/null &
        jobs+=($!)
    done
    wait_until 40 sh -c 'test $(cat acknowledged-?.log | wc -l) -gt 150'
    kill -9 "$server"
    wait "$server" "${jobs[@]}" 2>/dev/null || true
    "$2"
    ask d -e "SELECT id FROM kept WHERE id > $first" | sort >kept.log
    # The last line of a client may be cut off.
    sort acknowledged-?.log | { grep -xE '[0-9]{6}' || true; } | comm -23 - kept.log >lost.log
    [ ! -s lost.log ] || die "$(wc -l <lost.log) acknowledged rows are lost"
    ask d -e "CHECK TABLE kept EXTENDED; SELECT COUNT(*) FROM kept WHERE body <> REPEAT(id DIV 10000 % 10, id % 10000 % 300)"
    found | cmp - found || die "other tables have changed"
}
acknowledged 100000 direct
acknowledged 200000 plain
dump outside after.sql
# Of the table of the killed clients each run has as many rows as it got to.
for file in before after; do sed -i '/kept/d' $file.sql; done
outside cmp before.sql after.sql && echo "the plain server has everything"
rm after.sql again.sql found
stop
