#include "sim/example/example_workload.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/checked_int64.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kDurationMs = 600000;
constexpr int kNumChats = 68;
constexpr int kNumDocuments = 12;

struct Row {
  int64_t timestamp_ms;
  int64_t input_length;
  int64_t output_length;
  int64_t session;
  std::vector<int64_t> ids;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  std::vector<Row> Run() {
    constexpr std::array<int64_t, 4> kSystemBlocks = {32, 24, 16, 8};
    for (const int64_t blocks : kSystemBlocks)
      Extend(blocks * kBlockTokens, &systems_.emplace_back());
    for (int i = 0; i < kNumChats; ++i) AddChat(i + 1);
    for (int i = 0; i < kNumDocuments; ++i) AddDocument();
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.timestamp_ms < b.timestamp_ms; });
    return std::move(rows_);
  }

 private:
  // A prompt so far: its tokens, and one id per block begun. A block keeps its id while it fills
  // up.
  struct Prompt {
    int64_t tokens = 0;
    std::vector<int64_t> ids;
  };

  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  void Extend(int64_t tokens, Prompt* prompt) {
    prompt->tokens += tokens;
    const int64_t blocks = CeilDiv(prompt->tokens, kBlockTokens);
    while (static_cast<int64_t>(prompt->ids.size()) < blocks) prompt->ids.push_back(next_id_++);
  }

  // The first is as popular as the others together.
  const Prompt& DrawSystem() {
    constexpr std::array<int64_t, 4> kFrom = {0, 48, 72, 88};  // of 96: 1/2, 1/4, 1/6, 1/12
    const int64_t draw = Draw(0, 95);
    size_t i = kFrom.size() - 1;
    while (draw < kFrom[i]) --i;
    return systems_[i];
  }

  void AddChat(int64_t session) {
    Prompt prompt = DrawSystem();
    int64_t time = Draw(0, kDurationMs * 8 / 10);
    const int64_t turns = Draw(2, 7);
    for (int64_t turn = 0; turn < turns && time < kDurationMs; ++turn) {
      Extend(Draw(20, 240), &prompt);
      const int64_t reply = Draw(40, 320);
      rows_.push_back({time, prompt.tokens, reply, session, prompt.ids});
      Extend(reply, &prompt);
      time += Draw(8000, 60000);
    }
  }

  // All questions about a document come within a few minutes, out of line with each other.
  void AddDocument() {
    Prompt document = systems_.back();
    Extend(Draw(60, 250) * kBlockTokens, &document);
    const int64_t begin = Draw(0, kDurationMs / 2);
    const int64_t questions = Draw(5, 14);
    for (int64_t i = 0; i < questions; ++i) {
      Prompt prompt = document;
      Extend(Draw(15, 70), &prompt);
      rows_.push_back(
          {begin + Draw(0, kDurationMs / 2 - 1), prompt.tokens, Draw(60, 240), 0, prompt.ids});
    }
  }

  std::mt19937_64 random_;
  int64_t next_id_ = 0;
  std::vector<Prompt> systems_;
  std::vector<Row> rows_;
};

}  // namespace

std::string MakeExampleWorkload(uint64_t seed) {
  std::string out;
  std::map<int64_t, int64_t> numbers;  // ids by first appearance
  for (Row& row : Generator(seed).Run()) {
    for (int64_t& id : row.ids) {
      id = numbers.try_emplace(id, static_cast<int64_t>(numbers.size())).first->second;
    }
    absl::StrAppend(&out, "{\"timestamp\": ", row.timestamp_ms);
    if (row.session != 0) absl::StrAppend(&out, ", \"session_id\": ", row.session);
    absl::StrAppend(&out, ", \"input_length\": ", row.input_length,
                    ", \"output_length\": ", row.output_length, ", \"block_size\": ", kBlockTokens,
                    ", \"hash_ids\": [", absl::StrJoin(row.ids, ", "), "]}\n");
  }
  return out;
}

}  // namespace kvblocks::sim
