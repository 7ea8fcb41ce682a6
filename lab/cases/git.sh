#!/bin/bash
# what:   git init, commit, clone, branch, merge, rebase, gc, fsck, status, archive
# needs:  git
# debian: git
# limit:  60
# ignore: */.git/index */.git/logs/* */.git/gc.log *.idx.tmp
export GIT_AUTHOR_NAME=Lab GIT_AUTHOR_EMAIL=lab@example.invalid
export GIT_COMMITTER_NAME=Lab GIT_COMMITTER_EMAIL=lab@example.invalid
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
export GIT_CONFIG_NOSYSTEM=1
git config --global init.defaultBranch main
git config --global pack.threads 1
git config --global gc.auto 0
git config --global advice.detachedHead false

git init -q origin
cd origin
for i in $(seq 1 120); do
    mkdir -p "dir$((i % 7))"
    seq "$i" $((i * 13)) >"dir$((i % 7))/file$i"
done
make_data blob 700 1
git add .
git commit -q -m 'first'
for round in 1 2 3 4 5; do
    for i in $(seq "$round" 11 120); do echo "round $round" >>"dir$((i % 7))/file$i"; done
    git commit -q -a -m "round $round"
done
git switch -q -c side HEAD~2
echo side >side
git add side
git commit -q -m side
git switch -q main
git merge -q --no-edit side
git tag -a -m 'a tag' v1
cd ..

git clone -q origin clone
git clone -q --bare --no-local origin bare.git
cd clone
git fsck --strict --full
git log --format='%H %s'
mv dir1/file1 moved
git add -A
git status --short
git stash -q
git stash pop -q --index
git commit -q -m moved
git push -q origin HEAD:refs/heads/pushed
git rebase -q HEAD~1 >/dev/null
git gc -q --prune=now
git fsck --full
git count-objects -v | grep -E '^(in-pack|packs|garbage)'
git archive --format=tar HEAD | sha256sum
git grep -c 'round 3' | sed -n 1,3p
git status --short
cd ../origin
git gc -q --prune=now
git fsck --full
git rev-parse pushed
# The index holds inode numbers and times: compare what it means.
git ls-files -s | sha256sum
cd ..
rm -rf clone/.git/hooks origin/.git/hooks bare.git/hooks
