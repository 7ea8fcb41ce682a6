// streams: served
// C++ streams: libstdc++ opens with fopen and then reads and writes the descriptor itself.
#include <cstdint>
#include <cstdio>
#include <ext/stdio_filebuf.h>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
static uint64_t state;
static unsigned rnd(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 33) % n;
}
static uint64_t sum(const std::string &text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  return h;
}
static void random_steps(unsigned seed) {
  using std::ios;
  state = seed * 0x9e3779b97f4a7c15ull;
  std::cout << "seed " << seed << '\n';
  const std::string name = "f" + std::to_string(seed % 3);
  {
    std::ofstream make(name, ios::trunc);
    for (int i = 0; i < 20000; i++) make << "line " << i * seed << '\n';
  }
  static const ios::openmode modes[] = {ios::in, ios::in | ios::out, ios::out | ios::app, ios::in | ios::out | ios::app, ios::in | ios::out | ios::trunc, ios::in | ios::binary};
  std::fstream f;
  std::vector<char> room(100000);
  for (int step = 0; step < 300; step++) {
    std::cout << step << ' ';
    if (!f.is_open()) {
      f.clear();
      if (rnd(4) == 0) f.rdbuf()->pubsetbuf(rnd(2) ? nullptr : room.data(), rnd(2) ? 0 : 1 + rnd(20000));
      f.open(name, modes[rnd(6)]);
    }
    std::string text(rnd(3) ? rnd(200) : rnd(30000), 'a' + rnd(26));
    switch (rnd(12)) {
      case 0: case 1: f.seekg(rnd(200000)); break;
      case 2: f.seekp(rnd(200000)); break;
      case 3: f.seekg(-(long)rnd(2000), ios::end); break;
      case 4: case 5: {
        std::getline(f, text);
        std::cout << text.size() << ' ' << sum(text);
        break;
      }
      case 6: {
        text.assign(1 + rnd(50000), 0);
        f.read(&text[0], text.size());
        text.resize(f.gcount());
        std::cout << text.size() << ' ' << sum(text);
        break;
      }
      case 7: case 8: f.seekp(0, ios::cur); f << text << 42 << '\n'; break;
      case 9: f.flush(); break;
      case 10: if (rnd(3) == 0) f.close(); break;
      default: std::cout << f.tellg() << ' ' << f.peek();
    }
    std::cout << ' ' << f.rdstate() << '\n';
    if (rnd(3)) f.clear();
  }
  f.close();
}
int main() {
  for (unsigned seed = 1; seed <= 30; seed++) random_steps(seed);
  {
    // A descriptor and a C stream below a C++ one.
    int fd = open("f1", O_RDWR);
    __gnu_cxx::stdio_filebuf<char> over(fd, std::ios::in | std::ios::out);
    std::iostream io(&over);
    std::string line;
    std::getline(io, line);
    std::cout << line << '\n';
    FILE *c = fopen("f2", "r+");
    __gnu_cxx::stdio_filebuf<char> above(c, std::ios::in | std::ios::out);
    std::iostream mixed(&above);
    std::getline(mixed, line);
    mixed.seekp(100);
    mixed << "through both" << std::flush;
    std::cout << line << ' ' << ftell(c) << '\n';
    fclose(c);
  }
  std::wofstream wide("wide");
  wide << L"wide text\n";
  static std::ofstream left("left");
  left << "flushed at the end";
  std::ofstream shared("shared");
  shared << "before the fork" << std::flush;
  if (fork() == 0) {
    shared << " child" << std::flush;
    _exit(0);
  }
  wait(nullptr);
  shared << " parent";
  return 0;
}
