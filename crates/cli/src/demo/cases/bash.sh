# Redirections, shared offsets, subshells and background jobs that append to one file.
exec 3<>both; echo first >&3; echo second >&3
( echo from a subshell >&3 ); echo after it >&3; exec 3>&-; cat both
{ echo one; (echo two); echo three; cat <<<four; } >group; cat group
seq 1 2000 >in; { head -c 4096 >/dev/null; read -r line; echo "line: $line"; } <in
exec 4<in; for i in 1 2 3; do read -r x <&4; echo "x $x"; done; ( read -r y <&4; echo "y $y" ); read -r z <&4; echo "z $z"; exec 4<&-
for job in 1 2 3 4; do
  ( for i in $(seq 1 300); do echo "job $job line $i" >>appended; done ) &
done
wait; wc -l <appended; sort appended -o appended; grep -c 'job 3' appended
log() { echo "$@" >>log; }
for i in $(seq 1 200); do log "entry $i"; done; ( for i in $(seq 1 100); do echo "child $i"; done ) >>log; tail -1 log
echo overwritten >log2; echo more 1<>log2; cat log2 >/dev/null
while read -r l; do echo "[$l]"; done < <(head -3 in) >processed; cat processed
set -C; echo x >noclobber; (echo y >noclobber) 2>/dev/null || echo refused; set +C
exec 5>>tail; for i in $(seq 1 500); do echo "$i" >&5; [ "$i" = 250 ] && sh -c 'echo middle >&5'; done; exec 5>&-; sed -n '249,252p' tail
mkfifo pipe; cat in >pipe & md5sum <pipe; wait; rm pipe
: >emptied; echo gone >emptied; : >emptied; stat -c %s emptied
