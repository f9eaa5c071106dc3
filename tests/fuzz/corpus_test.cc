// Runs a fuzzer's LLVMFuzzerTestOneInput without libFuzzer: over every file of its corpus, then
// over mutations of them that are the same on every machine. See kv_fuzz_test in fuzz.bzl.
//
// KVBLOCKS_FUZZ_CORPUS names the folder of the corpus, KVBLOCKS_FUZZ_MUTATIONS how many mutations
// to run. If an input stops the process, it is kept as `crash` among the test's outputs; so is one
// that takes more than kMostSeconds of processor time: more than tools/fuzz.sh allows, since this
// also runs where sanitizers and other tests slow it down.

#include <sys/time.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace kvblocks::fuzz {
namespace {

constexpr size_t kMostBytes = 1 << 16;
constexpr int kMostSeconds = 20;  // of processor time per input

std::string current_name;
std::string current_input;
std::string crash_path;

// Not async-signal-safe, but the process is lost anyway and its one thread runs this.
void KeepCrash() {
  if (current_name.empty()) return;
  std::FILE* file = std::fopen(crash_path.c_str(), "wb");
  if (file != nullptr) {
    std::fwrite(current_input.data(), 1, current_input.size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "The input was %s; its %zu bytes are kept in %s\n", current_name.c_str(),
               current_input.size(), crash_path.c_str());
  current_name.clear();
}

void OnSignal(int signal) {
  KeepCrash();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Begins to count; then SIGPROF comes after `seconds` of processor time, and 0 switches it off.
void LimitTime(int seconds) {
  const itimerval timer = {.it_interval = {0, 0}, .it_value = {seconds, 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void OnTimeLimit(int) {
  std::fprintf(stderr, "One input took more than %d s of processor time.\n", kMostSeconds);
  std::abort();  // keeps the input
}

void RunInput(std::string name, std::string input) {
  current_name = std::move(name);
  current_input = std::move(input);
  // A copy of exactly the input's size, so that AddressSanitizer sees a read past its end.
  const std::vector<uint8_t> bytes(current_input.begin(), current_input.end());
  LimitTime(kMostSeconds);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  LimitTime(0);
  current_name.clear();
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string Next() {
    std::string input = corpus_[Below(corpus_.size())];
    for (uint64_t n = 1 + Below(4); n > 0; --n) Change(input);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    return input;
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  size_t Place(const std::string& input) { return static_cast<size_t>(Below(input.size() + 1)); }

  void Change(std::string& input) {
    static constexpr const char* kWords[] = {"-1",
                                             "0",
                                             "9223372036854775807",
                                             "18446744073709551616",
                                             "1e999",
                                             "\"",
                                             "{",
                                             "}",
                                             "\n\n",
                                             ",",
                                             "[",
                                             "null",
                                             "\xff\xff\xff\xff\xff",
                                             "\r\n",
                                             "\xef\xbb\xbf",
                                             "2147483648"};
    const size_t at = Place(input);
    switch (Below(8)) {
      case 0:  // one bit
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
        break;
      case 1:  // one byte
        if (at < input.size()) input[at] = static_cast<char>(Below(256));
        break;
      case 2:  // cut off
        if (Below(4) == 0) input.resize(at);
        break;
      case 3:  // leave some bytes out
        input.erase(at, static_cast<size_t>(1 + Below(16)));
        break;
      case 4:  // a word that parsers stumble over
        input.insert(at, kWords[Below(std::size(kWords))]);
        break;
      case 5: {  // repeat a piece
        const std::string piece = input.substr(at, static_cast<size_t>(1 + Below(64)));
        input.insert(Place(input), piece);
        break;
      }
      case 6: {  // a piece of another file
        const std::string& other = corpus_[Below(corpus_.size())];
        input.insert(at, other.substr(Place(other), static_cast<size_t>(1 + Below(64))));
        break;
      }
      default:  // another digit
        for (size_t i = at; i < input.size(); ++i) {
          if (input[i] < '0' || input[i] > '9') continue;
          input[i] = static_cast<char>('0' + Below(10));
          break;
        }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_{20231};  // its output is fixed by the standard
};

class FuzzTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("KVBLOCKS_FUZZ_CORPUS");
    ASSERT_NE(folder, nullptr) << "set by kv_fuzz_test";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) names_.push_back(entry.path().string());
    }
    std::sort(names_.begin(), names_.end());
    for (const std::string& name : names_) {
      std::ifstream file(name, std::ios::binary);
      corpus_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    ASSERT_FALSE(corpus_.empty()) << folder;

    const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    crash_path = (outputs != nullptr ? std::string(outputs) : testing::TempDir()) + "/crash";
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(KeepCrash);
    std::signal(SIGABRT, OnSignal);
    std::signal(SIGPROF, OnTimeLimit);
    if (__sanitizer_set_death_callback == nullptr) {  // else the sanitizer handles it
      std::signal(SIGSEGV, OnSignal);
      std::signal(SIGFPE, OnSignal);
    }
  }

  std::vector<std::string> names_;
  std::vector<std::string> corpus_;
};

TEST_F(FuzzTest, EmptyInputAndEveryFileOfTheCorpus) {
  RunInput("the empty input", "");
  for (size_t i = 0; i < names_.size(); ++i) RunInput(names_[i], corpus_[i]);
}

TEST_F(FuzzTest, MutationsOfTheCorpus) {
  const char* wanted = std::getenv("KVBLOCKS_FUZZ_MUTATIONS");
  ASSERT_NE(wanted, nullptr) << "set by kv_fuzz_test";
  const int count = std::atoi(wanted);
  ASSERT_GT(count, 0);
  Mutator mutator(corpus_);
  for (int i = 0; i < count; ++i) RunInput("mutation " + std::to_string(i), mutator.Next());
}

}  // namespace
}  // namespace kvblocks::fuzz
