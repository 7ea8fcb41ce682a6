# Random and sequential writes that fio itself verifies, by several engines and processes.
job() {
  fio --minimal --output=result.txt --directory=. --size=16m --randseed=11 --verify=crc32c \
    --verify_fatal=1 --do_verify=1 --group_reporting "$@" >/dev/null && echo "$* verified" || {
    echo "$* FAILED"; cat result.txt; exit 1; }
  rm -f verify.*
}
job --name=verify --ioengine=psync --rw=randwrite --bs=4k
job --name=verify --ioengine=psync --rw=randrw --bs=512-64k --bs_unaligned=1
job --name=verify --ioengine=sync --rw=write --bs=16k --numjobs=3
job --name=verify --ioengine=vsync --rw=write --bs=8k
job --name=verify --ioengine=pvsync --rw=randwrite --bs=8k --thread --numjobs=2
job --name=verify --ioengine=psync --rw=randwrite --bs=4k --overwrite=1 --fsync=64
job --name=verify --ioengine=mmap --rw=randwrite --bs=4k
rm -f result.txt
