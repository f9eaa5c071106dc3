#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/content_keys.h"
#include "kvblocks/sim/trace/trace_writer.h"

namespace kvblocks::sim {
namespace {

// Cache simulators of objects take one record per access: time in seconds (4 bytes), object (8), its
// size (4), and the number of the record that accesses it next, from 1, or -1 (8); little-endian,
// without gaps. The last of these is known at the end only, so the records wait in memory.
class OracleWriter : public TraceWriter {
 public:
  explicit OracleWriter(std::unique_ptr<ByteSink> sink) : sink_(std::move(sink)) {}

  absl::Status Begin(const TraceInfo& info) override {
    if (info.block_tokens == 0) {
      return absl::InvalidArgumentError(
          "content: got a trace of lengths only, expected one with content ids, whose blocks are "
          "the objects");
    }
    info_ = info;
    losses_.insert("everything but the blocks of prompts, their tokens and arrivals");
    return absl::OkStatus();
  }

  absl::Status Write(const TraceRequest& r) override {
    const int64_t seconds = r.arrival_ns / 1'000'000'000;
    if (seconds > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("arrival: got ", seconds,
                                                     " s, expected at most 4294967295 s (--rebase "
                                                     "makes the first arrival 0)"));
    }
    absl::uint128 path = ScopeKey(info_, r);
    int64_t begin = 0;
    for (const int64_t id : r.content_ids) {
      if (begin >= r.input_length) break;
      path = PathKey(path, id);
      const int64_t tokens = std::min(info_.block_tokens, r.input_length - begin);
      begin += tokens;
      const uint64_t object = absl::Uint128Low64(path);
      const auto [last, is_new] = last_use_.try_emplace(object, accesses_.size());
      if (!is_new) {
        accesses_[last->second].next = static_cast<int64_t>(accesses_.size()) + 1;
        last->second = accesses_.size();
      }
      accesses_.push_back({.object = object,
                           .next = -1,
                           .time = static_cast<uint32_t>(seconds),
                           .size = static_cast<uint32_t>(tokens)});
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    constexpr size_t kChunk = 1 << 20;
    std::string bytes;
    const auto append = [&](uint64_t value, int num_bytes) {
      for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> (8 * i));
    };
    for (const Access& access : accesses_) {
      append(access.time, 4);
      append(access.object, 8);
      append(access.size, 4);
      append(static_cast<uint64_t>(access.next), 8);
      if (bytes.size() < kChunk) continue;
      if (absl::Status status = sink_->Write(bytes); !status.ok()) return status;
      bytes.clear();
    }
    if (absl::Status status = sink_->Write(bytes); !status.ok()) return status;
    return sink_->Close();
  }

 private:
  struct Access {
    uint64_t object;
    int64_t next;
    uint32_t time, size;
  };

  std::unique_ptr<ByteSink> sink_;
  TraceInfo info_;
  std::vector<Access> accesses_;
  absl::flat_hash_map<uint64_t, size_t> last_use_;  // by object
};

}  // namespace

std::unique_ptr<TraceWriter> MakeOracleWriter(std::unique_ptr<ByteSink> sink) {
  return std::make_unique<OracleWriter>(std::move(sink));
}

}  // namespace kvblocks::sim
