# A server with an append-only file: load it, rewrite the file in a forked child, restart, compare.
socket=$PWD/redis.sock
start() {
  redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync everysec \
    --save '' --daemonize no --logfile server.log &
  server=$!
  for i in $(seq 1 200); do [ "$(redis-cli -s "$socket" ping 2>/dev/null)" = PONG ] && return; sleep 0.05; done
  echo 'the server does not answer'; exit 1
}
trap 'kill $server 2>/dev/null || true' EXIT
contents() {
  echo "$(redis-cli -s "$socket" dbsize) keys"
  redis-cli -s "$socket" --raw mget $(seq -f 'key:%g' 1 37 20000) | sha256sum
  redis-cli -s "$socket" --raw lrange list 0 -1 | sha256sum
  redis-cli -s "$socket" --raw get counter
}
stop() { redis-cli -s "$socket" shutdown nosave >/dev/null 2>&1 || true; wait "$server" || true; }
start
for i in $(seq 1 20000); do
  echo "SET key:$i value-$i-$((i * 7919 % 10007))"; [ $((i % 4)) = 0 ] && echo "RPUSH list $i"; echo 'INCR counter'
done | redis-cli -s "$socket" --pipe | grep -o 'errors: [0-9]*'
contents
redis-cli -s "$socket" bgrewriteaof >/dev/null
for i in $(seq 1 400); do
  redis-cli -s "$socket" info persistence | grep -q 'aof_rewrite_in_progress:0' && break; sleep 0.05
done
redis-cli -s "$socket" set after rewrite
redis-benchmark -s "$socket" -q -n 20000 -d 256 -t set,lpush -P 4 >benchmark.txt
redis-cli -s "$socket" del mylist key:__rand_int__ >/dev/null
stop; start; contents; redis-cli -s "$socket" get after; stop
# A killed server must come back with everything that it wrote.
start; redis-cli -s "$socket" set last one; sleep 1.2; kill -9 "$server"; wait "$server" 2>/dev/null || true
start; redis-cli -s "$socket" get last; contents; stop
rm -rf redis.sock server.log benchmark.txt appendonlydir appendonly.aof dump.rdb
