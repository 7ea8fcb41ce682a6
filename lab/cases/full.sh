#!/bin/bash
# what:   disks that fill up and a quota that is used up: every acknowledged byte is in the file when there is room again
# needs:  python3 mount mkfs.ext4 mkfs.btrfs btrfs losetup
# debian: python3-minimal mount e2fsprogs btrfs-progs util-linux
# media:  ext4
# limit:  360
# root:   yes

cat >fill.py <<'EOF'
import errno, os, subprocess, sys, time
name, said, *make_room = sys.argv[1:]
block = bytes(i * 7 & 255 for i in range(1 << 16))
fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
acknowledged, refused = 0, []

def told(what, *arguments):
    """A pool that cannot grow has no space, whoever refused it; one that could not be synced is another error."""
    try:
        return what(*arguments)
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO), error
        refused.append(error.errno)

# Who is refused comes back, as a server does.
while len(refused) < 3:
    acknowledged += told(os.write, fd, block) or 0
assert errno.EIO not in refused, refused
print("refused, and much was acknowledged:", acknowledged > 8 << 20)
if make_room:
    told(os.fsync, fd)
    subprocess.run(make_room, check=True)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        more = told(os.write, fd, block[acknowledged % len(block):])
        acknowledged += more or 0
        before = len(refused)
        told(os.fsync, fd)
        if more and len(refused) == before:
            print("goes on")
            break
        time.sleep(0.1)
told(os.fsync, fd)
told(os.close, fd)
with open(said, "w") as out:
    out.write(str(acknowledged))
EOF
cat >whole.py <<'EOF'
import sys
data, block = open(sys.argv[1], "rb").read(), bytes(i * 7 & 255 for i in range(1 << 16))
acknowledged = int(open(sys.argv[2]).read())
wanted = (block * (acknowledged // len(block) + 1))[:acknowledged]
sys.exit(data[:acknowledged] != wanted)
EOF

cat >later.py <<'EOF'
import sys
with open(sys.argv[1], "w") as later:
    later.write("later")
EOF

# tried NAME COMMAND...: fills the file, goes on when the command has made room, and waits for all of it.
tried() {
    local name=$1
    shift
    echo "$name:"
    python3 fill.py mounted/file "$name.said" "$@"
    wait_until 30 outside python3 whole.py mounted/file "$name.said"
    rm mounted/file
}

# left NAME COMMAND...: fills the file and ends; the command makes room for what is not published yet.
left() {
    local name=$1
    shift
    echo "$name, left:"
    python3 fill.py mounted/file "$name.said"
    "$@"
    wait_until 30 outside python3 whole.py mounted/file "$name.said"
    rm mounted/file
    python3 fill.py mounted/file "$name.said" >/dev/null
    "$@"
    # Removed before it was published: nobody waits for it.
    rm mounted/file
    sync -f mounted
    # The space comes back within a tenth of a second or two (docs/posix.md).
    wait_until 5 python3 later.py mounted/later
    cat mounted/later
    echo
    rm "$name.said"
}

# held: fills the disk with one transaction, which is then durable and in the file although nobody makes room.
held() {
    python3 - mounted/file held.said <<'END'
import os, sys
block, written = bytes(i * 7 & 255 for i in range(1 << 16)), 0
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
try:
    while True:
        written += os.write(fd, block)
except OSError as error:
    print(os.strerror(error.errno), written > 64 << 20)
os.fsync(fd)
os.close(fd)
with open(sys.argv[2], "w") as out:
    out.write(str(written))
END
    outside python3 whole.py mounted/file held.said && echo held
    rm mounted/file held.said
}

# What an administrator removes.
ballast() {
    outside head -c 40M /dev/zero >mounted/ballast
    outside sync -f mounted
}
remove_ballast() {
    outside rm -f mounted/ballast
    outside sync -f mounted
}

mkdir mounted top
trap 'umount -l mounted top 2>/dev/null || true' EXIT
for kind in ext4 btrfs; do
    truncate -s 180M disk
    "mkfs.$kind" -q disk >/dev/null
    mount_loop disk mounted
    ballast
    tried "$kind" env -u LD_PRELOAD rm mounted/ballast
    ballast
    left "$kind" remove_ballast
    wait_until 30 umount mounted
    rm disk
done

truncate -s 300M disk
mkfs.ext4 -q disk
mount_loop disk mounted
held
wait_until 30 umount mounted
rm disk

truncate -s 200M disk
mkfs.btrfs -q disk >/dev/null
mount_loop disk mounted
btrfs quota enable mounted
btrfs subvolume create mounted/home >/dev/null
mount --bind mounted top
umount mounted
mount -o subvol=home "$(findmnt -no SOURCE top)" mounted
# Asked of the whole, which is not at its limit.
btrfs qgroup limit 80M 0/256 top
tried quota btrfs qgroup limit none 0/256 top
btrfs qgroup limit 80M 0/256 top
left quota btrfs qgroup limit none 0/256 top
wait_until 30 umount mounted
wait_until 30 umount top
rm disk
