// What a decode step costs through the C interface, beside the same step in C++.
//
//   bazel run -c opt //bench:c_interface
//   c_interface LIBRARY [--check]     // --check: exit status 1 if C costs more than 5 ns more
//
// The shared library is opened as a program would find it, so that calls go through pointers.
// Rounds of both alternate, and the difference is the median over the pairs of neighbouring rounds:
// what the machine does meanwhile hits both.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/library_engine.h"
#include "bench/thread_time.h"
#include "kvblocks/c/kvblocks.h"
#include "kvblocks/check.h"

namespace kvblocks::bench {
namespace {

constexpr int kRounds = 301;
constexpr int64_t kRunning = 256;  // requests of a decode batch
constexpr int64_t kPromptTokens = 1025;
constexpr int64_t kSteps = 14;  // to the end of the block
constexpr double kMostExtraNs = 5;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The functions of the shared library that a step takes.
struct CInterface {
  decltype(&kvb_manager_create) manager_create;
  decltype(&kvb_request_create_from_hashes) create_from_hashes;
  decltype(&kvb_request_lookup) lookup;
  decltype(&kvb_request_allocate) allocate;
  decltype(&kvb_request_set_num_computed_tokens) set_num_computed_tokens;
  decltype(&kvb_request_get_blocks) get_blocks;
  decltype(&kvb_last_error) last_error;

  explicit CInterface(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    KVBLOCKS_CHECK(library != nullptr, dlerror());
    const auto load = [&](const char* name, auto& function) {
      void* found = dlsym(library, name);
      KVBLOCKS_CHECK(found != nullptr, name);
      std::memcpy(&function, &found, sizeof(found));
    };
    load("kvb_manager_create", manager_create);
    load("kvb_request_create_from_hashes", create_from_hashes);
    load("kvb_request_lookup", lookup);
    load("kvb_request_allocate", allocate);
    load("kvb_request_set_num_computed_tokens", set_num_computed_tokens);
    load("kvb_request_get_blocks", get_blocks);
    load("kvb_last_error", last_error);
  }
  void Require(kvb_status status) const { KVBLOCKS_CHECK(status == KVB_OK, last_error()); }
};

// The same pool and the same running requests on both sides.
class Pair {
 public:
  explicit Pair(const CInterface& c) : c_(c), engine_({}) {
    const std::string config =
        "cache { num_blocks: 100000 groups { num_layers: 1 spec { full_attention { block_size: 16 "
        "num_kv_heads: 1 head_size: 8 dtype: \"bf16\" } } } }\n"
        "options { max_model_len: 1073741824 hash_seed: \"bench\" }";
    kvb_manager* manager = nullptr;
    c_.Require(c_.manager_create(config.data(), config.size(), KVB_FORMAT_TEXT, &manager));
    for (int64_t r = 0; r < kRunning; ++r) {
      std::vector<BlockHash> hashes(kPromptTokens / kBlockSize);
      for (size_t i = 0; i < hashes.size(); ++i) {
        hashes[i] = BlockHash::FromUint128(absl::MakeUint128(static_cast<uint64_t>(r), i + 1));
      }
      kvb_request* request = nullptr;
      c_.Require(c_.create_from_hashes(manager, "", kPromptTokens,
                                       reinterpret_cast<const kvb_hash*>(hashes.data()),
                                       hashes.size(), &request));
      int64_t hit = 0;
      c_.Require(c_.lookup(request, &hit));
      kvb_allocation step = KVB_INIT(kvb_allocation);
      step.num_new_tokens = kPromptTokens;
      step.use_hits = 1;
      c_.Require(c_.allocate(request, &step));
      requests_.push_back(request);

      sequences_.push_back(engine_.New(kPromptTokens, hashes));
      engine_.Lookup(sequences_.back());
      KVBLOCKS_CHECK(engine_.AllocateFirst(sequences_.back(), kPromptTokens), "set-up");
    }
  }

  // Steps of all requests, none of which takes a block. Nanoseconds per step.
  double RunCpp() {
    const double start = ThreadSeconds();
    for (int64_t step = 0; step < kSteps; ++step) {
      for (auto& sequence : sequences_) {
        KVBLOCKS_CHECK(engine_.Step(sequence, kPromptTokens + step, 1), "a step");
      }
    }
    return (ThreadSeconds() - start) * 1e9 / (kRunning * kSteps);
  }
  double RunC() {
    const double start = ThreadSeconds();
    for (int64_t step = 0; step < kSteps; ++step) {
      for (kvb_request* request : requests_) {
        kvb_allocation allocation = KVB_INIT(kvb_allocation);
        allocation.num_new_tokens = 1;
        c_.set_num_computed_tokens(request, kPromptTokens + step);
        c_.Require(c_.allocate(request, &allocation));
      }
    }
    return (ThreadSeconds() - start) * 1e9 / (kRunning * kSteps);
  }

 private:
  const CInterface& c_;
  LibraryEngine engine_;
  std::vector<LibraryEngine::Sequence> sequences_;
  std::vector<kvb_request*> requests_;
};

}  // namespace
}  // namespace kvblocks::bench

int main(int argc, char** argv) {
  using namespace kvblocks::bench;
  if (argc < 2 || argc > 3 || (argc == 3 && std::string(argv[2]) != "--check")) {
    std::fprintf(stderr, "usage: c_interface LIBRARY [--check]\n");
    return 2;
  }
  const CInterface c(argv[1]);
  Pair pair(c);
  std::vector<double> cpp, in_c, extra, ratio;
  for (int round = 0; round < kRounds; ++round) {
    cpp.push_back(pair.RunCpp());
    in_c.push_back(pair.RunC());
    extra.push_back(in_c.back() - cpp.back());
    ratio.push_back(in_c.back() / cpp.back());
  }
  std::printf("decode step: C++ %.1f ns, C %.1f ns, %+.1f ns, x%.2f (medians of %d pairs)\n",
              Median(cpp), Median(in_c), Median(extra), Median(ratio), kRounds);
  if (argc == 3 && Median(extra) > kMostExtraNs) {
    std::printf("the C interface costs more than %.0f ns\n", kMostExtraNs);
    return 1;
  }
}
