# A database in the journal mode that is named first, with a reader beside the writer.
journal=$1
sql() { sqlite3 -batch data.db "$@"; }
sql "pragma journal_mode=$journal; create table t(id integer primary key, k text unique, v text);" | tail -1
sql "pragma synchronous=full; begin;
  with recursive n(i) as (values(1) union all select i+1 from n where i<30000)
  insert into t select i, printf('key-%08d', (i*7919)%100003), printf('%.*c', 100+i%50, 'x') from n;
  commit;"
( for i in 1 2 3 4 5 6 7 8; do sqlite3 -batch -cmd '.timeout 20000' data.db 'pragma quick_check'; done ) >reader.txt &
for i in $(seq 1 120); do
  echo "begin; update t set v='changed $i' where id % 120 = $i % 120; insert into t values(40000+$i, 'new-$i', hex(zeroblob($i))); commit;"
done | sqlite3 -batch -cmd '.timeout 20000' data.db
wait $!
sort -u reader.txt
sql "delete from t where id % 3 = 0; pragma integrity_check; select count(*), sum(length(v)), max(k) from t;"
sql "vacuum; pragma integrity_check;"
sql ".backup copy.db"
sqlite3 -batch copy.db "select count(*), sum(id) from t"
sql .dump >dump.sql
