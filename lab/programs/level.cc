// Exercises a LevelDB database and checks what it holds; prints only what must be equal in every run.
//
//   level fill|overwrite|verify DB COUNT    level acknowledge DB COUNT    level check DB <acknowledged
//   level commit DB COUNT [sync]            level committed DB

#include <leveldb/db.h>
#include <leveldb/write_batch.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

namespace {

std::string Key(int i) {
  char text[32];
  snprintf(text, sizeof text, "key%08d", i);
  return text;
}

// A value that tells its key and generation, with a length of its own.
std::string Value(int i, int generation) {
  return Key(i) + "/" + std::to_string(generation) + "/" + std::string(i * 7919 % 400, 'a' + i % 26);
}

void Must(const leveldb::Status& status) {
  if (!status.ok()) {
    fprintf(stderr, "level: %s\n", status.ToString().c_str());
    exit(1);
  }
}

// Which keys of the generation are deleted, so that verify knows what to miss.
bool Deleted(int i) { return i % 11 == 3; }

void Fill(leveldb::DB* db, int count) {
  for (int i = 0; i < count; i += 10) {
    leveldb::WriteBatch batch;
    for (int j = i; j < i + 10 && j < count; j++) batch.Put(Key(j), Value(j, 1));
    Must(db->Write(leveldb::WriteOptions(), &batch));
  }
}

void Overwrite(leveldb::DB* db, int count) {
  // An order without pattern, so that compaction has work.
  for (int n = 0; n < count; n++) {
    int i = static_cast<int>(static_cast<long long>(n) * 7919 % count);
    if (i % 3 == 0) Must(db->Put(leveldb::WriteOptions(), Key(i), Value(i, 1)));
    if (Deleted(i)) Must(db->Delete(leveldb::WriteOptions(), Key(i)));
  }
  Must(db->Put(leveldb::WriteOptions(), "overwritten", "yes"));
  db->CompactRange(nullptr, nullptr);
}

void Verify(leveldb::DB* db, int count) {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  std::string value;
  bool deletions = db->Get(options, "overwritten", &value).ok();
  int found = 0, wrong = 0;
  for (int i = 0; i < count; i++) {
    leveldb::Status status = db->Get(options, Key(i), &value);
    bool expected = !(deletions && Deleted(i));
    if (status.ok() != expected || (status.ok() && value != Value(i, 1))) wrong++;
    found += status.ok();
  }
  int walked = 0;
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
  for (it->Seek("key"); it->Valid() && it->key().starts_with("key"); it->Next()) walked++;
  Must(it->status());
  printf("found %d walked %d wrong %d\n", found, walked, wrong);
  if (wrong) exit(1);
}

void Acknowledge(leveldb::DB* db, int count) {
  leveldb::WriteOptions sync;
  for (int i = 0; i < count; i++) {
    sync.sync = i % 4 == 0;
    Must(db->Put(sync, "ack" + Key(i), Value(i, 2)));
    printf("%d\n", i);
    fflush(stdout);
  }
}

void Check(leveldb::DB* db) {
  // The last line may be cut short by the kill: it was not acknowledged.
  int i, lost = 0;
  std::string line, value;
  while (std::getline(std::cin, line)) {
    if (std::cin.eof()) break;
    i = std::stoi(line);
    if (!db->Get(leveldb::ReadOptions(), "ack" + Key(i), &value).ok() || value != Value(i, 2)) lost++;
  }
  printf("lost %d\n", lost);
  if (lost) exit(1);
}

// Batch N: three keys of some length, and the number of the last batch.
void Commit(leveldb::DB* db, int count, bool sync) {
  leveldb::WriteOptions options;
  options.sync = sync;
  for (int i = 1; i <= count; i++) {
    leveldb::WriteBatch batch;
    for (int part = 0; part < 3; part++) batch.Put(Key(i) + "." + std::to_string(part), Value(i, part));
    batch.Put("last", std::to_string(i));
    Must(db->Write(options, &batch));
    printf("%d\n", i);
    fflush(stdout);
  }
}

// The number of the last batch, if all batches up to it are whole, and there is no other.
void Committed(leveldb::DB* db) {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  std::string value;
  int last = db->Get(options, "last", &value).ok() ? std::stoi(value) : 0;
  int found = 0;
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
  for (it->Seek("key"); it->Valid() && it->key().starts_with("key"); it->Next(), found++) {
    int i = found / 3 + 1, part = found % 3;
    if (it->key().ToString() == Key(i) + "." + std::to_string(part) && it->value().ToString() == Value(i, part)) continue;
    printf("%s is in the place of part %d of batch %d\n", it->key().ToString().c_str(), part, i);
    exit(1);
  }
  Must(it->status());
  if (found != 3 * last) {
    printf("%d keys after %d batches\n", found, last);
    exit(1);
  }
  printf("%d\n", last);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: level fill|overwrite|verify|acknowledge|check|commit|committed DB [COUNT] [sync]\n");
    return 2;
  }
  std::string command = argv[1];
  int count = argc > 3 ? atoi(argv[3]) : 0;
  leveldb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  options.write_buffer_size = 256 << 10;
  options.max_file_size = 1 << 20;
  leveldb::DB* opened = nullptr;
  Must(leveldb::DB::Open(options, argv[2], &opened));
  std::unique_ptr<leveldb::DB> db(opened);
  if (command == "fill") Fill(db.get(), count);
  if (command == "overwrite") Overwrite(db.get(), count);
  if (command == "verify") Verify(db.get(), count);
  if (command == "acknowledge") Acknowledge(db.get(), count);
  if (command == "check") Check(db.get());
  if (command == "commit") Commit(db.get(), count, argc > 4 && std::string(argv[4]) == "sync");
  if (command == "committed") Committed(db.get());
  return 0;
}
