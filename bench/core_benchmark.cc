// What the calls on a scheduler's path cost, each beside a naive implementation of the same rules.
//
//   bazel run -c opt //bench:core
//   bazel run -c opt //bench:core -- --benchmark_filter=decode --benchmark_repetitions=5
//
// Set-up is never timed: every benchmark measures whole batches of operations with the clock
// outside of them, so that reading it costs nothing per operation. A pool has 100,000 blocks of 16
// tokens.

#include <malloc.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "bench/library_engine.h"
#include "bench/naive_engine.h"
#include "bench/ratio_reporter.h"
#include "bench/thread_time.h"
#include "benchmark/benchmark.h"
#include "kvblocks/block.h"

namespace kvblocks::bench {
namespace {

// Runs `prepare` untimed, then `batch` timed, until enough time was measured.
template <typename Prepare, typename Batch>
void TimeBatches(benchmark::State& state, int64_t operations_per_batch, Prepare prepare,
                 Batch batch) {
  for (auto _ : state) {
    prepare();
    const double start = ThreadSeconds();
    batch();
    state.SetIterationTime(ThreadSeconds() - start);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * operations_per_batch);
}

// Block hashes that never repeat, the same in every run.
std::vector<BlockHash> FreshHashes(int64_t count) {
  static uint64_t next = 0;
  std::vector<BlockHash> hashes(static_cast<size_t>(count));
  for (BlockHash& hash : hashes) {
    for (uint64_t& word : hash.words) {
      uint64_t z = (next += 0x9e3779b97f4a7c15u);  // splitmix64
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }
  return hashes;
}

template <typename Engine>
typename Engine::Sequence Fresh(Engine& engine, int64_t num_tokens) {
  return engine.New(num_tokens, FreshHashes(num_tokens / kBlockSize));
}

template <typename Engine>
std::vector<typename Engine::Sequence> Several(Engine& engine, int64_t count, int64_t num_tokens) {
  std::vector<typename Engine::Sequence> sequences;
  for (int64_t i = 0; i < count; ++i) sequences.push_back(Fresh(engine, num_tokens));
  return sequences;
}

void Require(bool condition) { KVBLOCKS_CHECK(condition, "the benchmark's set-up is wrong"); }

// Prefill and free, so that the sequences' blocks are cached and unreferenced.
template <typename Engine>
void MakeCached(Engine& engine, std::vector<typename Engine::Sequence>& sequences,
                int64_t num_tokens) {
  for (auto& s : sequences) {
    engine.Lookup(s);
    Require(engine.AllocateFirst(s, num_tokens));
  }
  for (auto& s : sequences) engine.Free(s);
}

// Every block of the pool is cached.
template <typename Engine>
void FillCache(Engine& engine, int64_t num_blocks) {
  while (engine.num_keyed_blocks() < num_blocks - 1) {
    const int64_t missing = num_blocks - 1 - engine.num_keyed_blocks();
    std::vector<typename Engine::Sequence> one;
    one.push_back(Fresh(engine, missing * kBlockSize));
    MakeCached(engine, one, missing * kBlockSize);
  }
}

constexpr int64_t kRunning = 256;  // requests of a decode batch
constexpr int64_t kPromptTokens = 1025;

template <typename Engine>
void BM_DecodeStep(benchmark::State& state) {
  Engine engine({});
  auto running = Several(engine, kRunning, kPromptTokens);
  for (auto& s : running) {
    engine.Lookup(s);
    Require(engine.AllocateFirst(s, kPromptTokens));
  }
  constexpr int64_t kSteps = 14;  // to the end of the block
  TimeBatches(
      state, kRunning * kSteps, [] {},
      [&] {
        for (int64_t step = 0; step < kSteps; ++step) {
          for (auto& s : running) {
            benchmark::DoNotOptimize(engine.Step(s, kPromptTokens + step, 1));
          }
        }
      });
}

// Every step crosses into a new block; `window` adds that one leaves the window.
template <typename Engine>
void DecodeTakingBlocks(benchmark::State& state, int64_t window) {
  Engine engine({.window = window});
  auto running = Several(engine, kRunning, kPromptTokens);
  constexpr int64_t kLongest = kPromptTokens + 256 * kBlockSize;
  int64_t computed = kLongest;
  bool holds = false;
  TimeBatches(
      state, kRunning,
      [&] {
        computed += kBlockSize;
        if (computed < kLongest) return;
        computed = kPromptTokens + kBlockSize - 1;
        for (auto& s : running) {
          if (holds) engine.Free(s);
          const int64_t hit = engine.Lookup(s);
          Require(engine.AllocateFirst(s, kPromptTokens - hit));
        }
        holds = true;
      },
      [&] {
        for (auto& s : running) benchmark::DoNotOptimize(engine.Step(s, computed, 1));
      });
}
template <typename Engine>
void BM_DecodeStepTakingABlock(benchmark::State& state) {
  DecodeTakingBlocks<Engine>(state, 0);
}
template <typename Engine>
void BM_WindowStepTrimmingABlock(benchmark::State& state) {
  DecodeTakingBlocks<Engine>(state, 512);
}

constexpr int64_t kLargeTokens = 256 * kBlockSize;

template <typename Engine>
void AllocateLarge(benchmark::State& state, bool enable_caching, bool register_blocks) {
  const EngineOptions options{.enable_caching = enable_caching};
  Engine engine(options);
  if (enable_caching) FillCache(engine, options.num_blocks);
  constexpr int64_t kBatch = 16;
  std::vector<typename Engine::Sequence> sequences;
  TimeBatches(
      state, kBatch,
      [&] {
        for (auto& s : sequences) {
          if (enable_caching && !register_blocks) engine.Register(s, kLargeTokens);
          engine.Free(s);
        }
        sequences = Several(engine, kBatch, kLargeTokens);
        for (auto& s : sequences) engine.Lookup(s);
      },
      [&] {
        for (auto& s : sequences) {
          benchmark::DoNotOptimize(engine.AllocateFirst(s, kLargeTokens, register_blocks));
        }
      });
}
template <typename Engine>
void BM_Allocate256Evicting(benchmark::State& state) {
  AllocateLarge<Engine>(state, true, false);
}
template <typename Engine>
void BM_Allocate256EvictingAndRegistering(benchmark::State& state) {
  AllocateLarge<Engine>(state, true, true);
}
template <typename Engine>
void BM_Allocate256CachingOff(benchmark::State& state) {
  AllocateLarge<Engine>(state, false, false);
}

template <typename Engine>
void LookUp(benchmark::State& state, int64_t window) {
  Engine engine({.window = window});
  constexpr int64_t kTokens = 1'024 * kBlockSize + 1;
  auto sequences = Several(engine, 64, kTokens);
  MakeCached(engine, sequences, kTokens);
  for (auto& s : sequences) Require(engine.Lookup(s) == kTokens - 1);
  TimeBatches(
      state, static_cast<int64_t>(sequences.size()), [] {},
      [&] {
        for (auto& s : sequences) benchmark::DoNotOptimize(engine.Lookup(s));
      });
}
template <typename Engine>
void BM_LookUp1024Hits(benchmark::State& state) {
  LookUp<Engine>(state, 0);
}
template <typename Engine>
void BM_WindowLookUp1024Positions(benchmark::State& state) {
  LookUp<Engine>(state, 1'024);
}

// The explanation of a hit of all 1,024 blocks, and of a miss of all.
void BM_Explain1024(benchmark::State& state, bool cached) {
  RememberingEngine engine({});
  constexpr int64_t kTokens = 1'024 * kBlockSize + 1;
  auto sequences = Several(engine, 8, kTokens);
  if (cached) MakeCached(engine, sequences, kTokens);
  TimeBatches(
      state, static_cast<int64_t>(sequences.size()), [] {},
      [&] {
        for (auto& s : sequences) benchmark::DoNotOptimize(engine.Explain(s));
      });
}

// Requests whose 256 full blocks are cached; `time_free` times giving them back instead of taking.
template <typename Engine>
void TakeAndFreeHits(benchmark::State& state, bool time_free) {
  Engine engine({});
  constexpr int64_t kTokens = kLargeTokens + 1;
  auto sequences = Several(engine, 64, kTokens);
  MakeCached(engine, sequences, kTokens);
  const auto look_up = [&] {
    for (auto& s : sequences) Require(engine.Lookup(s) == kLargeTokens);
  };
  const auto take = [&] {
    for (auto& s : sequences) benchmark::DoNotOptimize(engine.AllocateFirst(s, 1));
  };
  const auto free = [&] {
    for (auto& s : sequences) engine.Free(s);
  };
  const int64_t count = static_cast<int64_t>(sequences.size());
  if (time_free) {
    TimeBatches(
        state, count,
        [&] {
          look_up();
          take();
        },
        free);
    return;
  }
  bool holds = false;
  TimeBatches(
      state, count,
      [&] {
        if (holds) free();
        holds = true;
        look_up();
      },
      take);
}
template <typename Engine>
void BM_Allocate256HitsAndOneNew(benchmark::State& state) {
  TakeAndFreeHits<Engine>(state, false);
}
template <typename Engine>
void BM_Free256Cached(benchmark::State& state) {
  TakeAndFreeHits<Engine>(state, true);
}

template <typename Engine>
void BM_ResetOf100kCached(benchmark::State& state) {
  const EngineOptions options;
  Engine engine(options);
  TimeBatches(
      state, 1, [&] { FillCache(engine, options.num_blocks); }, [&] { Require(engine.Reset()); });
}

// Requests of 8 conversations with growing histories, 32 at a time: look-up, prefill, 40 decode
// steps, free. The operation counted is one request.
template <typename Engine>
void BM_ReplayOfARequest(benchmark::State& state) {
  Engine engine({.num_blocks = 20'000});
  constexpr int64_t kConcurrent = 32;
  constexpr int64_t kConversations = 8;
  constexpr int64_t kDecodeSteps = 40;
  std::vector<std::vector<BlockHash>> histories(kConversations);
  std::vector<typename Engine::Sequence> sequences;
  std::vector<int64_t> lengths;
  int64_t round = 0;
  TimeBatches(
      state, kConcurrent,
      [&] {
        sequences.clear();
        lengths.clear();
        for (int64_t i = 0; i < kConcurrent; ++i) {
          auto& history = histories[static_cast<size_t>((i + round) % kConversations)];
          if (history.size() > 300) history.clear();
          const auto more = FreshHashes(16);
          history.insert(history.end(), more.begin(), more.end());
          const int64_t tokens = static_cast<int64_t>(history.size()) * kBlockSize + 5;
          sequences.push_back(engine.New(tokens, history));
          lengths.push_back(tokens);
        }
        ++round;
      },
      [&] {
        for (size_t i = 0; i < sequences.size(); ++i) {
          const int64_t hit = engine.Lookup(sequences[i]);
          Require(engine.AllocateFirst(sequences[i], lengths[i] - hit));
        }
        for (int64_t step = 0; step < kDecodeSteps; ++step) {
          for (size_t i = 0; i < sequences.size(); ++i) {
            Require(engine.Step(sequences[i], lengths[i] + step, 1));
          }
        }
        for (auto& s : sequences) engine.Free(s);
      });
}

// --- Hashing of one 16-token block behind its parent ---

template <typename Hash>
void TimeNaiveHash(benchmark::State& state, BlockHash parent, Hash hash) {
  std::vector<TokenId> tokens(kBlockSize);
  std::iota(tokens.begin(), tokens.end(), 1'000);
  constexpr int64_t kChain = 256;
  TimeBatches(
      state, kChain, [] {},
      [&] {
        for (int64_t i = 0; i < kChain; ++i) parent = hash(parent, tokens);
        benchmark::DoNotOptimize(parent);
      });
}

void LibraryHash(benchmark::State& state, HashAlgorithm algorithm, size_t num_lookahead) {
  constexpr int64_t kChain = 256;
  const BlockHasher hasher(algorithm, "bench");
  std::vector<TokenId> tokens(kChain * kBlockSize + num_lookahead);
  // All over a vocabulary of 128,000: CBOR encodes them in 1 to 5 bytes each.
  uint32_t next = 1;
  for (TokenId& token : tokens)
    token = static_cast<TokenId>((next *= 2'654'435'761u) >> 8) % 128'000;
  std::vector<BlockHash> hashes(kChain);
  TimeBatches(
      state, kChain, [] {},
      [&] {
        hasher.HashChain(hashes.back(), tokens, absl::MakeSpan(hashes), num_lookahead);
        benchmark::DoNotOptimize(hashes.back());
      });
}

// The encoding in a string, through the libraries' general interfaces.
std::string Encoded(const BlockHash& parent, const std::vector<TokenId>& tokens) {
  std::string input(reinterpret_cast<const char*>(parent.words.data()), sizeof(parent));
  input += std::to_string(tokens.size()) + "/";
  for (TokenId token : tokens) input += std::to_string(token) + ",";
  return input;
}

void BM_Sha256Block_Naive(benchmark::State& state) {
  TimeNaiveHash(state, {}, [](const BlockHash& parent, const std::vector<TokenId>& tokens) {
    const std::string input = Encoded(parent, tokens);
    BlockHash hash;
    EVP_Digest(input.data(), input.size(), reinterpret_cast<unsigned char*>(hash.words.data()),
               nullptr, EVP_sha256(), nullptr);
    return hash;
  });
}
void BM_Xxh3Block_Naive(benchmark::State& state) {
  TimeNaiveHash(state, {}, [](const BlockHash& parent, const std::vector<TokenId>& tokens) {
    const std::string input = Encoded(parent, tokens);
    const XXH128_hash_t digest = XXH3_128bits(input.data(), input.size());
    return BlockHash{{digest.low64, digest.high64, 0, 0}};
  });
}

// --- Memory ---

int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// Everything the engine holds per block once all of them are cached: records, hashes, table.
template <typename Engine>
double BytesPerBlock() {
  const EngineOptions options;
  const int64_t before = HeapBytes();
  Engine engine(options);
  FillCache(engine, options.num_blocks);
  return static_cast<double>(HeapBytes() - before) / static_cast<double>(options.num_blocks);
}

#define KVBLOCKS_BENCHMARK(operation)                                                      \
  BENCHMARK(BM_##operation<LibraryEngine>)->Name(#operation "/kvblocks")->UseManualTime(); \
  BENCHMARK(BM_##operation<NaiveEngine>)->Name(#operation "/naive")->UseManualTime()

KVBLOCKS_BENCHMARK(DecodeStep);
KVBLOCKS_BENCHMARK(DecodeStepTakingABlock);
KVBLOCKS_BENCHMARK(WindowStepTrimmingABlock);
KVBLOCKS_BENCHMARK(Allocate256Evicting);
KVBLOCKS_BENCHMARK(Allocate256EvictingAndRegistering);
KVBLOCKS_BENCHMARK(Allocate256CachingOff);
KVBLOCKS_BENCHMARK(LookUp1024Hits);
// What lookup_history_blocks costs: compare with the rows of the same names above.
BENCHMARK(BM_Allocate256Evicting<RememberingEngine>)
    ->Name("Allocate256EvictingRemembering/kvblocks")
    ->UseManualTime();
BENCHMARK(BM_LookUp1024Hits<RememberingEngine>)
    ->Name("LookUp1024HitsRemembering/kvblocks")
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_Explain1024, hits, true)->Name("Explain1024Hits/kvblocks")->UseManualTime();
BENCHMARK_CAPTURE(BM_Explain1024, misses, false)
    ->Name("Explain1024Misses/kvblocks")
    ->UseManualTime();
KVBLOCKS_BENCHMARK(WindowLookUp1024Positions);
KVBLOCKS_BENCHMARK(Allocate256HitsAndOneNew);
KVBLOCKS_BENCHMARK(Free256Cached);
BENCHMARK(BM_ResetOf100kCached<LibraryEngine>)
    ->Name("ResetOf100kCached/kvblocks")
    ->UseManualTime()
    ->Iterations(10);
BENCHMARK(BM_ResetOf100kCached<NaiveEngine>)
    ->Name("ResetOf100kCached/naive")
    ->UseManualTime()
    ->Iterations(10);
KVBLOCKS_BENCHMARK(ReplayOfARequest);
#define KVBLOCKS_HASH_BENCHMARK(name, algorithm, num_lookahead)                 \
  BENCHMARK_CAPTURE(LibraryHash, name, HashAlgorithm::algorithm, num_lookahead) \
      ->Name(#name "/kvblocks")                                                 \
      ->UseManualTime()

KVBLOCKS_HASH_BENCHMARK(Sha256Block, kSha256, 0);
BENCHMARK(BM_Sha256Block_Naive)->Name("Sha256Block/naive")->UseManualTime();
KVBLOCKS_HASH_BENCHMARK(Sha256BlockLookingAhead1, kSha256, 1);
KVBLOCKS_HASH_BENCHMARK(Sha256BlockLookingAhead3, kSha256, 3);
KVBLOCKS_HASH_BENCHMARK(Sha256CborBlock, kSha256Cbor, 0);
KVBLOCKS_HASH_BENCHMARK(Sha256CborBlockLookingAhead1, kSha256Cbor, 1);
KVBLOCKS_HASH_BENCHMARK(Sha256CborBlockLookingAhead3, kSha256Cbor, 3);
KVBLOCKS_HASH_BENCHMARK(Xxh3Block, kXxh3_128, 0);
BENCHMARK(BM_Xxh3Block_Naive)->Name("Xxh3Block/naive")->UseManualTime();
KVBLOCKS_HASH_BENCHMARK(Xxh3BlockLookingAhead1, kXxh3_128, 1);
KVBLOCKS_HASH_BENCHMARK(Xxh3CborBlock, kXxh3_128Cbor, 0);
KVBLOCKS_HASH_BENCHMARK(Xxh3CborBlockLookingAhead1, kXxh3_128Cbor, 1);

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  RatioReporter reporter;
  const size_t num_run = benchmark::RunSpecifiedBenchmarks(&reporter);
  const double library = BytesPerBlock<LibraryEngine>();
  const double naive = BytesPerBlock<NaiveEngine>();
  std::printf("%-40s %14.1f %14.1f %7.1fx\n", "bytes per block, all cached", library, naive,
              naive / library);
  return num_run == 0 || reporter.had_error() ? 1 : 0;
}

}  // namespace
}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
