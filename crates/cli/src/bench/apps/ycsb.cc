// The workloads of YCSB on LevelDB, each timed by itself.
//
//   ycsb run DB RECORDS OPERATIONS SYNC      prints one line for each: NAME NANOSECONDS-PER-OPERATION
//   ycsb check DB                            prints how many records there are and a sum of them
//
// Everything that it writes is a function of its arguments, so two runs leave the same records.

#include <leveldb/db.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace {

constexpr int kValue = 1000;

struct Random {
  uint64_t state = 0x9e3779b97f4a7c15;
  uint64_t Next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  double Unit() { return static_cast<double>(Next() >> 11) / 9007199254740992.0; }
};

// Few records are asked for often, most hardly ever: exponent 0.99, and the popular ones are scattered.
class Zipfian {
 public:
  explicit Zipfian(uint64_t n) : n_(n) {
    for (uint64_t i = 1; i <= n; i++) zeta_ += 1 / std::pow(static_cast<double>(i), kTheta);
    double two = 1 + 1 / std::pow(2.0, kTheta);
    eta_ = (1 - std::pow(2.0 / static_cast<double>(n), 1 - kTheta)) / (1 - two / zeta_);
  }
  uint64_t Rank(Random* random) const {
    double u = random->Unit(), uz = u * zeta_;
    if (uz < 1) return 0;
    if (uz < 1 + std::pow(0.5, kTheta)) return 1;
    auto rank = static_cast<uint64_t>(static_cast<double>(n_) * std::pow(eta_ * u - eta_ + 1, 1 / (1 - kTheta)));
    return rank < n_ ? rank : n_ - 1;
  }

 private:
  static constexpr double kTheta = 0.99;
  uint64_t n_;
  double zeta_ = 0, eta_ = 0;
};

uint64_t Scatter(uint64_t i) {
  i = (i ^ (i >> 33)) * 0xff51afd7ed558ccd;
  i = (i ^ (i >> 33)) * 0xc4ceb9fe1a85ec53;
  return i ^ (i >> 33);
}

std::string Key(uint64_t i) {
  char text[32];
  snprintf(text, sizeof text, "user%016llx", static_cast<unsigned long long>(Scatter(i)));
  return text;
}

// Says whose it is, so that a value under another key is noticed.
std::string Value(const std::string& key, Random* random) {
  std::string value = key;
  value.resize(kValue);
  for (size_t i = key.size(); i + 8 <= value.size(); i += 8) {
    uint64_t word = random->Next();
    memcpy(&value[i], &word, 8);
  }
  return value;
}

void Must(const leveldb::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "ycsb: %s\n", status.ToString().c_str());
  exit(1);
}

class Bench {
 public:
  Bench(leveldb::DB* db, uint64_t records, uint64_t operations, bool sync)
      : db_(db), records_(records), operations_(operations), zipfian_(records) {
    write_.sync = sync;
  }

  void Run() {
    Time("load", records_, [this](uint64_t i) { Insert(i); });
    // Out of a hundred: reads, updates, inserts, scans; the rest read and then update.
    Mix("a", 50, 50, 0, 0);
    Mix("b", 95, 5, 0, 0);
    Mix("c", 100, 0, 0, 0);
    Mix("d", 95, 0, 5, 0);
    Mix("e", 0, 0, 5, 95);
    Mix("f", 50, 0, 0, 0);
  }

 private:
  template <typename Operation>
  void Time(const char* name, uint64_t count, Operation operation) {
    auto begun = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < count; i++) operation(i);
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begun;
    printf("%s %.1f\n", name, took.count() / static_cast<double>(count));
  }

  void Mix(const char* name, uint64_t reads, uint64_t updates, uint64_t inserts, uint64_t scans) {
    bool latest = name[0] == 'd';
    Time(name, operations_, [=, this](uint64_t) {
      uint64_t dice = random_.Below(100), rank = zipfian_.Rank(&random_);
      uint64_t i = latest ? records_ - 1 - rank : rank;
      if (dice < reads) return Read(i);
      if (dice < reads + updates) return Insert(i);
      if (dice < reads + updates + inserts) return Insert(records_++);
      if (dice < reads + updates + inserts + scans) return Scan(i);
      Read(i);
      Insert(i);
    });
  }

  void Insert(uint64_t i) {
    std::string key = Key(i);
    Must(db_->Put(write_, key, Value(key, &random_)));
  }

  void Read(uint64_t i) {
    std::string key = Key(i);
    Must(db_->Get(leveldb::ReadOptions(), key, &found_));
    if (found_.compare(0, key.size(), key) != 0) Must(leveldb::Status::Corruption("a value of another key", key));
  }

  void Scan(uint64_t i) {
    uint64_t left = 1 + random_.Below(100);
    std::unique_ptr<leveldb::Iterator> at(db_->NewIterator(leveldb::ReadOptions()));
    for (at->Seek(Key(i)); at->Valid() && left > 0; at->Next(), left--) found_.assign(at->value().data(), at->value().size());
    Must(at->status());
  }

  leveldb::DB* db_;
  uint64_t records_, operations_;
  Zipfian zipfian_;
  Random random_;
  leveldb::WriteOptions write_;
  std::string found_;
};

void Check(leveldb::DB* db) {
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  uint64_t count = 0, sum = 14695981039346656037u;
  std::unique_ptr<leveldb::Iterator> at(db->NewIterator(options));
  for (at->SeekToFirst(); at->Valid(); at->Next(), count++) {
    if (!at->value().starts_with(at->key())) Must(leveldb::Status::Corruption("a value of another key"));
    for (size_t i = 0; i < at->value().size(); i++) sum = (sum ^ static_cast<unsigned char>(at->value()[i])) * 1099511628211u;
  }
  Must(at->status());
  printf("%llu records, %016llx\n", static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int argc, char** argv) {
  bool run = argc == 6 && strcmp(argv[1], "run") == 0;
  if (!run && !(argc == 3 && strcmp(argv[1], "check") == 0)) {
    fprintf(stderr, "usage: ycsb run DB RECORDS OPERATIONS SYNC | ycsb check DB\n");
    return 2;
  }
  leveldb::Options options;
  options.create_if_missing = run;
  options.paranoid_checks = true;
  leveldb::DB* opened = nullptr;
  Must(leveldb::DB::Open(options, argv[2], &opened));
  std::unique_ptr<leveldb::DB> db(opened);
  if (run) {
    Bench(db.get(), strtoull(argv[3], nullptr, 10), strtoull(argv[4], nullptr, 10), atoi(argv[5]) != 0).Run();
  } else {
    Check(db.get());
  }
  return 0;
}
