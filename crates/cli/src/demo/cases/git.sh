# A repository: many files, commits, a merge, packing, a clone and the check of every object.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a
export GIT_COMMITTER_EMAIL=a@example.org GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q -b main repo; cd repo
git config pack.threads 1; git config gc.auto 0
for d in $(seq 1 20); do
  mkdir -p "d$d"
  for f in $(seq 1 20); do seq "$d" $((d * f + 50)) >"d$d/f$f.txt"; done
done
head -c 3000000 /dev/zero | tr '\0' 'z' >large.bin
git add -A; git commit -qm first
git checkout -qb side; for f in $(seq 1 20); do echo side >>"d1/f$f.txt"; done; git commit -qam side
git checkout -q main; for f in $(seq 1 20); do echo main >>"d2/f$f.txt"; done; git commit -qam main
git merge -q --no-edit side
git gc -q; git fsck --full 2>&1
git status --short; git log --format='%H %s' --graph
git count-objects -v | grep -v size
git cat-file --batch-check --batch-all-objects | sort >../objects.txt
cd ..; git clone -q --no-hardlinks repo clone; git -C clone fsck --full; git -C clone log -1 --format=%H
# The index holds inode numbers and times, which are never the same twice.
rm -f repo/.git/index clone/.git/index repo/.git/ORIG_HEAD
