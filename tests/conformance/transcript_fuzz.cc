// Transcript lines: each is refused with the name of a field or gives values in the ranges that
// replaying relies on.

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/conformance/transcript.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::conformance;

// Transcripts are written by our own recorder; the parser makes as many tokens as a line asks for,
// which is slow for numbers of this length.
bool AsksForManyTokens(std::string_view line) {
  const bool has_checksums = line.find("\"q\"") != std::string_view::npos;
  size_t digits = 0;
  for (const char c : line) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > (has_checksums ? 10u : 5u)) return true;
  }
  return false;
}

void CheckIds(const std::vector<kvblocks::BlockId>& ids) {
  for (const kvblocks::BlockId id : ids) FUZZ_EXPECT(id >= 0, "block id");
}

void CheckOperation(const Operation& op) {
  FUZZ_EXPECT(op.num_new >= 0 && op.num_hit_tokens >= 0 && op.hit_tokens >= 0 && op.n >= 0,
              "negative");
  FUZZ_EXPECT(op.op != "get" || op.hits, "hits");
  FUZZ_EXPECT(op.op != "ids" || op.tables, "tables");
  FUZZ_EXPECT(op.op != "digest" || op.digest, "digest");
  CheckIds(op.ids);
  if (!op.state) return;
  for (const TableChange& change : op.state->changes) {
    CheckIds(change.blocks);
    switch (change.kind) {
      case TableChange::Kind::kStored:
        FUZZ_EXPECT(change.from >= 0 && change.to >= change.from, "positions");
        FUZZ_EXPECT(static_cast<int64_t>(change.blocks.size()) == change.to - change.from,
                    "one block per position");
        break;
      case TableChange::Kind::kRemoved:
        FUZZ_EXPECT(change.blocks.size() == 1, "one block");
        break;
      case TableChange::Kind::kStoredTail:
        FUZZ_EXPECT(change.blocks.size() == 1 && change.num_tokens > 0, "one block of some tokens");
        break;
      case TableChange::Kind::kMoved:
        FUZZ_EXPECT(change.blocks.size() == 2, "source and target");
        break;
      case TableChange::Kind::kCleared:
        FUZZ_EXPECT(change.blocks.empty(), "no block");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  std::string_view rest = input.Rest();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto config = ParseConfig(line);
    if (config.ok()) {
      FUZZ_EXPECT(config->num_blocks >= 1 && config->max_model_len >= 1, "config");
      for (const RecordedGroup& group : config->groups) {
        FUZZ_EXPECT(group.block_size >= 1, "block size");
      }
    } else {
      FUZZ_EXPECT(!config.status().message().empty(), "says nothing");
    }
    if (AsksForManyTokens(line)) continue;
    const auto operation = ParseOperation(line);
    if (operation.ok()) CheckOperation(*operation);
  }
  return 0;
}
