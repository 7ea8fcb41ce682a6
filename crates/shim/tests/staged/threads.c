// Four threads write records of a page's part to one description, without a lock of their own.
//   threads FILE RECORDS   each thread's number of records of 16 bytes, the thread's letter and a newline
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fd, records;

static void *write_records(void *letter) {
    char record[16];
    memset(record, *(char *)letter, 15);
    record[15] = '\n';
    for (int i = 0; i < records; i++) {
        if (write(fd, record, 16) != 16) {
            perror("write");
            exit(1);
        }
    }
    return 0;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    records = atoi(args[2]);
    fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, write_records, &"abcd"[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%ld\n", (long)lseek(fd, 0, SEEK_CUR));
    return close(fd) != 0;
}
