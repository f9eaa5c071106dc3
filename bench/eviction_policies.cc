// Hit rates of the block pool's eviction policies on traces, in order mode: requests are
// instantaneous, one after the other, and only their prompts' full blocks count.
//
//   bazel run -c opt //bench:eviction_policies                 the example workload
//   bazel run -c opt //bench:eviction_policies -- --sizes=3000,10000 --block-size=512 TRACE
//
// Beside the policies stand two that know the future. Belady's bound: among the blocks that the
// current request does not need, the one whose next use is farthest goes, the deepest first. And
// the best fixed set: the blocks that the whole trace uses most are kept for good, and nothing else
// is. The columns "of the way" tell which share of the way from LRU to Belady's bound each goes.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "bench/command_line.h"
#include "bench/thread_time.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/eviction.h"
#include "sim/commands/option_parser.h"

namespace kvblocks::bench {
namespace {

struct Prompts {
  std::vector<PrefixContent> contents;
  std::vector<std::vector<int32_t>> blocks;  // the same, numbered by first appearance
  int64_t num_references = 0;
  int32_t num_distinct = 0;
};

struct Hits {
  int64_t all = 0;
  int64_t second_half = 0;  // of the requests
  double seconds = 0;

  void Add(int64_t hits, size_t request, size_t num_requests) {
    all += hits;
    if (request >= num_requests / 2) second_half += hits;
  }
};

absl::StatusOr<Prompts> Read(const std::string& path, int64_t block_size) {
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kXxh3_128, std::string_view("0")),
                    .hash_block_size = block_size});
  Prompts prompts;
  absl::flat_hash_map<absl::uint128, int32_t> numbers;
  const absl::Status status = ForEachPrompt(
      path, block_size, [&](const sim::TraceRequest&, const std::vector<absl::uint128>& keys) {
        std::vector<BlockHash> hashes;
        std::vector<int32_t> blocks;
        for (const absl::uint128 key : keys) {
          hashes.push_back(BlockHash::FromUint128(key));
          const auto next = static_cast<int32_t>(numbers.size());
          blocks.push_back(numbers.try_emplace(key, next).first->second);
        }
        prompts.num_references += static_cast<int64_t>(blocks.size());
        prompts.num_distinct = static_cast<int32_t>(numbers.size());
        const int64_t num_tokens = static_cast<int64_t>(hashes.size()) * block_size;
        auto content = PrefixContent::FromHashes(num_tokens, std::move(hashes), hashing);
        if (!content.ok()) return content.status();
        prompts.contents.push_back(*std::move(content));
        prompts.blocks.push_back(std::move(blocks));
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return prompts;
}

absl::StatusOr<Hits> Replay(const Prompts& prompts, const EvictionPolicyFactory& policy,
                            int64_t num_blocks, int64_t block_size) {
  auto pool = BlockPool::Create({.num_blocks = num_blocks + 1, .eviction_policy = policy});
  if (!pool.ok()) return pool.status();
  Hits hits;
  std::vector<BlockId> table;
  const double start = ThreadSeconds();
  for (size_t r = 0; r < prompts.contents.size(); ++r) {
    const PrefixContent& content = prompts.contents[r];
    const auto size = static_cast<int64_t>(prompts.blocks[r].size());
    if (size > num_blocks) continue;  // would never be admitted
    table.resize(static_cast<size_t>(size));
    const auto found = static_cast<int64_t>(
        (*pool)->FindCachedRun(content, 0, 1, /*group=*/0, absl::MakeSpan(table)));
    table.resize(static_cast<size_t>(found));
    (*pool)->Touch(table);
    (*pool)->GetNewBlocks(size - found, table);
    (*pool)->CacheFullBlocks(content, table, found, size, block_size, /*group=*/0);
    (*pool)->FreeBlocksReversed(table);
    hits.Add(found, r, prompts.contents.size());
  }
  hits.seconds = ThreadSeconds() - start;
  return hits;
}

Hits Belady(const Prompts& prompts, int64_t num_blocks) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const auto count = static_cast<size_t>(prompts.num_distinct);
  std::vector<std::vector<int64_t>> next_uses(prompts.blocks.size());
  std::vector<int64_t> next(count, kNever);
  for (size_t r = prompts.blocks.size(); r-- > 0;) {
    if (static_cast<int64_t>(prompts.blocks[r].size()) > num_blocks) continue;
    for (const int32_t block : prompts.blocks[r]) {
      next_uses[r].push_back(
          std::exchange(next[static_cast<size_t>(block)], static_cast<int64_t>(r)));
    }
  }
  using Entry = std::tuple<int64_t, int64_t, int32_t>;  // next use, depth, block
  std::set<Entry> cached;
  std::vector<Entry> entry_of(count, Entry{-1, 0, 0});
  Hits hits;
  for (size_t r = 0; r < prompts.blocks.size(); ++r) {
    const std::vector<int32_t>& blocks = prompts.blocks[r];
    if (static_cast<int64_t>(blocks.size()) > num_blocks) continue;
    size_t found = 0;
    while (found < blocks.size() &&
           std::get<0>(entry_of[static_cast<size_t>(blocks[found])]) >= 0) {
      ++found;
    }
    for (size_t i = 0; i < found; ++i) cached.erase(entry_of[static_cast<size_t>(blocks[i])]);
    while (static_cast<int64_t>(cached.size() + blocks.size()) > num_blocks) {
      const auto farthest = std::prev(cached.end());
      std::get<0>(entry_of[static_cast<size_t>(std::get<2>(*farthest))]) = -1;
      cached.erase(farthest);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Entry entry{next_uses[r][i], static_cast<int64_t>(i), blocks[i]};
      entry_of[static_cast<size_t>(blocks[i])] = entry;
      cached.insert(entry);
    }
    hits.Add(static_cast<int64_t>(found), r, prompts.blocks.size());
  }
  return hits;
}

// The most used blocks, the shallowest first: no other set of that size hits more.
Hits BestFixedSet(const Prompts& prompts, int64_t num_blocks) {
  struct Block {
    int64_t uses = 0;
    int64_t depth = 0;
    bool is_kept = false;
    bool is_computed = false;
  };
  std::vector<Block> blocks(static_cast<size_t>(prompts.num_distinct));
  for (const std::vector<int32_t>& prompt : prompts.blocks) {
    for (size_t i = 0; i < prompt.size(); ++i) {
      Block& block = blocks[static_cast<size_t>(prompt[i])];
      ++block.uses;
      block.depth = static_cast<int64_t>(i);
    }
  }
  std::vector<Block*> by_uses;
  for (Block& block : blocks) by_uses.push_back(&block);
  std::stable_sort(by_uses.begin(), by_uses.end(), [](const Block* a, const Block* b) {
    return std::tie(b->uses, a->depth) < std::tie(a->uses, b->depth);
  });
  by_uses.resize(std::min(by_uses.size(), static_cast<size_t>(num_blocks)));
  for (Block* block : by_uses) block->is_kept = true;
  Hits hits;
  for (size_t r = 0; r < prompts.blocks.size(); ++r) {
    int64_t found = 0;
    for (const int32_t id : prompts.blocks[r]) {
      Block& block = blocks[static_cast<size_t>(id)];
      found += block.is_kept && block.is_computed ? 1 : 0;
      block.is_computed = true;
    }
    hits.Add(found, r, prompts.blocks.size());
  }
  return hits;
}

// One row of the table; percentages of all references, and of those of the second half.
void Print(const char* name, const Hits& hits, const Prompts& prompts, const Hits& lru,
           const Hits& bound) {
  int64_t late = 0;
  for (size_t r = prompts.blocks.size() / 2; r < prompts.blocks.size(); ++r) {
    late += static_cast<int64_t>(prompts.blocks[r].size());
  }
  const auto percent = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::printf(
      "| %s | %.2f %% | %.2f %% | %.1f %% | %.1f %% | %.0f |\n", name,
      percent(hits.all, prompts.num_references), percent(hits.second_half, late),
      percent(hits.all - lru.all, bound.all - lru.all),
      percent(hits.second_half - lru.second_half, bound.second_half - lru.second_half),
      hits.seconds * 1e9 / static_cast<double>(std::max<int64_t>(1, prompts.num_references)));
  std::fflush(stdout);
}

}  // namespace

int Main(int argc, char** argv) {
  sim::OptionParser options("eviction_policies",
                            "Hit rates of the eviction policies on a trace, in order mode.");
  std::string trace;
  std::string sizes = "1000,3000,10000";
  int64_t block_size = 512;
  AddTrace(options, &trace);
  options.Add({.name = "--sizes", .unit = "LIST", .help = "blocks in the pool [1000,3000,10000]"},
              &sizes);
  AddBlockSize(options, &block_size);
  if (const auto status = ParseOrPrint(options, argc, argv)) return *status;
  const auto prompts = Read(trace, block_size);
  if (!prompts.ok()) return Fail(prompts.status());
  absl::PrintF("%zu requests, %d references to %d blocks of %d tokens\n", prompts->blocks.size(),
               prompts->num_references, prompts->num_distinct, block_size);
  for (const std::string& size : std::vector<std::string>(absl::StrSplit(sizes, ','))) {
    int64_t num_blocks = 0;
    if (!absl::SimpleAtoi(size, &num_blocks) || num_blocks < 1 || num_blocks > (1 << 30)) {
      return Fail(
          absl::InvalidArgumentError("--sizes: \"" + size + "\", expected 1 to 1073741824 blocks"));
    }
    absl::PrintF(
        "\n%d blocks:\n\n| policy | hits | second half | of the way | second half | "
        "ns per reference |\n|---|---|---|---|---|---|\n",
        num_blocks);
    const Hits bound = Belady(*prompts, num_blocks);
    const auto lru = Replay(*prompts, {}, num_blocks, block_size);
    if (!lru.ok()) return Fail(lru.status());
    Print("lru", *lru, *prompts, *lru, bound);
    const std::string names = EvictionPolicyNames(/*with_retention=*/false);
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, '|'))) {
      if (name == "lru") continue;
      const auto hits = Replay(*prompts, *ParseEvictionPolicy(name), num_blocks, block_size);
      if (!hits.ok()) return Fail(hits.status());
      Print(name.c_str(), *hits, *prompts, *lru, bound);
    }
    Print("best fixed set", BestFixedSet(*prompts, num_blocks), *prompts, *lru, bound);
    Print("belady", bound, *prompts, *lru, bound);
  }
  return 0;
}

}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
