# Positional, vectored and mapped access, shared offsets, forks, locks and zip archives.
cat >program.py <<'P'
import os, mmap, sys, fcntl, zipfile, tempfile, shutil, subprocess, hashlib, random, io
random.seed(7)
def digest(path):
    return hashlib.sha256(open(path, 'rb').read()).hexdigest()[:16]
data = bytes(random.getrandbits(8) for _ in range(1 << 20))
with open('a', 'wb', buffering=0) as f:
    f.write(data); print(f.tell(), f.seek(-10, 2), f.write(b'0123456789'), f.tell())
fd = os.open('a', os.O_RDWR)
for _ in range(3):                                  # enough use to be adopted
    os.lseek(fd, 0, 0)
    while os.read(fd, 65536): pass
for _ in range(3000):
    at = random.randrange(1 << 20); n = random.randrange(1, 9000); block = bytes([at % 251]) * n
    assert os.pwrite(fd, block, at) == n
    assert os.pread(fd, n, at) == block
print(os.fstat(fd).st_size, os.lseek(fd, 0, 1), os.lseek(fd, 5, 0), len(os.read(fd, 100)), os.lseek(fd, 0, 1))
twin = os.dup(fd); os.lseek(twin, 1000, 0); print(os.lseek(fd, 0, 1)); os.close(twin)
print(os.writev(fd, [b'one', b'', b'three']), [bytes(b) for b in (lambda l: (os.lseek(fd, 1000, 0), os.readv(fd, l), l)[2])([bytearray(3), bytearray(5)])])
m = mmap.mmap(fd, 0); m[10:14] = b'MMAP'; print(os.pread(fd, 8, 8)); os.pwrite(fd, b'WRITE', 20); print(m[18:27]); m.flush(); m.close()
os.ftruncate(fd, 5000); print(os.fstat(fd).st_size, os.pread(fd, 10, 4995), os.pread(fd, 10, 5000)); os.ftruncate(fd, 9000); print(os.pread(fd, 4, 8000))
os.lseek(fd, 100, 0)
if os.fork() == 0:
    os.read(fd, 50); os.write(fd, b'child'); os._exit(0)
os.wait(); print(os.lseek(fd, 0, 1), os.pread(fd, 5, 150))
print(subprocess.run(['sh', '-c', 'head -c 4 >/dev/null; cat <&%d | head -c 5' % fd], pass_fds=[fd], stdin=subprocess.DEVNULL, capture_output=True).stdout)
os.close(fd)
log = os.open('log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for child in range(4):
    if os.fork() == 0:
        for i in range(500): os.write(log, b'%d %05d\n' % (child, i))
        os._exit(0)
for child in range(4): os.wait()
lines = open('log').read().splitlines(); print(len(lines), len(set(lines))); open('log', 'w').write('\n'.join(sorted(lines)))
with open('locked', 'w+') as f:
    fcntl.lockf(f, fcntl.LOCK_EX); f.write('x' * 10000); f.flush(); fcntl.lockf(f, fcntl.LOCK_UN); f.seek(9990); print(f.read())
with zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as z:
    for i in range(50): z.writestr(zipfile.ZipInfo('f%d' % i), data[:i * 1000])
with zipfile.ZipFile('z.zip') as z: print(z.testzip(), len(z.namelist()))
src, dst = os.open('z.zip', os.O_RDONLY), os.open('sent', os.O_RDWR | os.O_CREAT, 0o644)
n = 0
while (k := os.sendfile(dst, src, n, 100000)): n += k
print(n == os.fstat(src).st_size); os.copy_file_range(src, dst, 500, 0, 50); os.close(src); os.close(dst)
with tempfile.TemporaryFile(dir='.') as t:
    t.write(data); t.seek(0); print(hashlib.sha256(t.read()).hexdigest()[:16])
fd = os.open('holes', os.O_RDWR | os.O_CREAT, 0o644); os.pwrite(fd, b'end', 1 << 20); os.pwrite(fd, b'start', 0)
print(os.pread(fd, 5, 500000), os.lseek(fd, 0, os.SEEK_DATA), os.fstat(fd).st_size); os.close(fd)
for bad in (lambda: os.read(999, 1), lambda: os.pread(os.open('a', os.O_WRONLY), 1, 0), lambda: os.write(os.open('a', os.O_RDONLY), b'x'), lambda: os.open('missing/x', os.O_RDONLY)):
    try: bad(); print('no error')
    except OSError as e: print(e.errno)
r = open('a', 'r+b'); r.seek(100); r.write(b'buffered'); r.seek(0); print(r.read(120)[96:110]); r.close()
shutil.copytree('.', '../copied-tree', dirs_exist_ok=True); shutil.move('../copied-tree', 'tree')
print(digest('a'), digest('z.zip'), digest('sent'), digest('tree/a'))
P
python3 program.py
