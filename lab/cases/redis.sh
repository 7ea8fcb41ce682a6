#!/bin/bash
# what:   redis-server with append-only file: load, kill -9, restart, every acknowledged key is there
# needs:  redis-server redis-cli redis-benchmark
# debian: redis-server redis-tools
# limit:  120
# ignore: appendonlydir appendonlydir/* dump.rdb *.log

socket=$LAB_SCRATCH/redis.sock
# start POLICY: the server, with that policy of syncing its append-only file.
start() {
    redis-server --port 0 --unixsocket "$socket" --appendonly yes --appendfsync "$1" --save '' \
        --dir "$PWD" --daemonize no --auto-aof-rewrite-percentage 0 --logfile "$PWD/redis.log" &
    server=$!
    # It answers before it has loaded its data; only then is the answer PONG.
    wait_until 20 sh -c "redis-cli -s '$socket' ping | grep -qx PONG"
}
crash() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    rm -f "$socket"
}
ask() { redis-cli -s "$socket" "$@"; }

# With `appendfsync no` and `always` the server answers only after it has written the record to its file.
# With `everysec` it may answer first, while an fsync is under way: nothing could be asked of a crash then.
load() {
    for i in $(seq 1 "$2"); do echo "SET $1:$i value-$1-$i"; done | ask | grep -c '^OK$'
}

start no
redis-benchmark -s "$socket" -t set,incr,lpush -n 20000 -c 10 -P 4 -r 5000 -d 200 -q >/dev/null
load first 2000
sum=$(ask debug digest)
crash
start no
test "$(ask debug digest)" = "$sum" && echo "the same digest after kill -9"
ask exists first:1 first:1000 first:2000

# A rewrite replaces the file under the server; a crash follows.
ask bgrewriteaof >/dev/null
wait_until 20 sh -c "redis-cli -s '$socket' info persistence | grep -q aof_rewrite_in_progress:0"
load second 500
sum=$(ask debug digest)
crash

# Each record synced, and a snapshot made by a forked child.
start always
test "$(ask debug digest)" = "$sum" && echo "the same digest after rewrite and kill -9"
load third 300
ask save
sum=$(ask debug digest)
test -s dump.rdb && redis-check-rdb dump.rdb | grep -o 'RDB looks OK'
crash

# A forked child saves while clients write on. In modes that stage the log stays staged meanwhile, or the write would be
# refused.
ADIT_REQUIRE=1 start always
ask config set rdb-key-save-delay 200 >/dev/null
ask bgsave >/dev/null
load beside 20
ask info persistence | grep -o 'rdb_bgsave_in_progress:1'
load beside2 80
wait_until 20 sh -c "redis-cli -s '$socket' info persistence | grep -q rdb_bgsave_in_progress:0"
ask info persistence | grep -oE '(rdb_last_bgsave|aof_last_write)_status:[a-z]+'
sum=$(ask debug digest)
crash

# Killed while clients write: what was acknowledged is there, whatever else is.
start no
test "$(ask debug digest)" = "$sum" && echo "the same digest with appendfsync always"
(for i in $(seq 1 100000); do echo "SET last:$i $i"; done | ask >acknowledged.log 2>/dev/null) &
client=$!
wait_until 20 sh -c 'test $(wc -l <acknowledged.log) -gt 500'
crash
wait "$client" || true
acknowledged=$(grep -c '^OK$' acknowledged.log)
start no
for i in 1 2 3 "$((acknowledged / 2))" "$((acknowledged - 1))" "$acknowledged"; do
    test "$(ask get "last:$i")" = "$i" || die "acknowledged key last:$i of $acknowledged is lost"
done
test "$(ask --scan --pattern 'last:*' | wc -l)" -ge "$acknowledged" || die "acknowledged keys are lost"
ask exists third:300
for file in appendonlydir/*.incr.aof; do redis-check-aof "$file" >/dev/null || die "$file is damaged"; done
ask shutdown nosave || true
wait "$server"
echo done
