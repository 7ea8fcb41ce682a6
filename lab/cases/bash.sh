#!/bin/bash
# what:   redirections, here-documents, subshells on one offset, background appenders, exec 3<>
# debian: bash coreutils
# limit:  60

# Plain redirections, in every direction and combination.
echo one >out
echo two >>out
cat <out >copy
ls no-such-file >both 2>&1 || echo "ls failed" >>both
{ echo to-out; echo to-err >&2; } >split.out 2>split.err
echo clobbered >|out.clobber
: >empty
printf 'no newline at the end' >unfinished

# Here-documents and here-strings.
cat >here <<EOF
expanded: $((6 * 7))
EOF
cat >>here <<'EOF'
kept: $((6 * 7))
EOF
tr a-z A-Z <<<"here string" >>here

# One description, several processes: the offset is shared, so nothing overwrites anything.
{
    echo parent
    (echo subshell; (echo subsubshell))
    /bin/echo external
    echo parent again
} >shared
exec 4>shared2
for i in 1 2 3 4 5; do
    echo "builtin $i" >&4
    /bin/echo "external $i" >&4
    (echo "subshell $i" >&4)
done
exec 4>&-

# `read` leaves the offset right behind the line it took, for the next process to go on there.
seq 1 2000 >numbers
{
    read -r first
    read -r second
    head -c 9 | tr '\n' ' '
    echo
    cat | tail -n 2
    echo "$first $second"
} <numbers >mixed

total=0
while read -r n; do
    total=$((total + n))
    # A child in the loop's body inherits the loop's standard input and must not move it.
    if ((n % 500 == 0)); then /bin/true; fi
done <numbers
echo "total $total"

# Reading and writing one description.
printf 'abcdefghij\nsecond line\n' >rw
exec 3<>rw
read -r -n 3 -u 3 head
printf 'XY' >&3
read -r -u 3 rest
printf 'Z' >&3
exec 3>&-
echo "$head $rest"

# Duplicates and moves of descriptors.
exec 5>dup 6>&5
echo five >&5
echo six >&6
exec 7>&5-
echo seven >&7
exec 6>&- 7>&-

# Background jobs that append to one file: every record arrives whole.
for job in 1 2 3 4; do
    (
        for i in $(seq 1 150); do
            echo "job $job record $i $(printf '%0*d' $((i % 50 + 1)) 0)"
        done >>log
    ) &
done
for job in 5 6; do
    (for i in $(seq 1 60); do echo "job $job record $i reopened" >>log; done) &
done
wait
sort log >log.sorted
wc -l <log
rm log

# Pipes, process substitution, coproc and traps that write.
seq 1 5000 | tee numbers.tee | grep -c 7
diff <(sort -n numbers) <(head -n 2000 numbers.tee) && echo "substitution equal"
coproc tr a-z A-Z
echo through the coproc >&"${COPROC[1]}"
exec {COPROC[1]}>&-
cat <&"${COPROC[0]}" >coproc
wait
(trap 'echo leaving >>trap' EXIT; echo inside >trap)

# A script that is read while it runs and that its own commands extend.
cat >grow.sh <<'EOF'
echo first
echo 'echo appended' >>grow.sh
echo second
EOF
bash grow.sh

set -o noclobber
(echo refused >out) 2>/dev/null || echo "noclobber held"
set +o noclobber
truncate -s 3 out
cat out
