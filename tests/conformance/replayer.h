// Replayer: makes the calls of a transcript on a KV-cache manager and compares every answer with
// the recorded one.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_
#define KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/replayed_cache.h"
#include "tests/conformance/transcript.h"

namespace kvblocks::conformance {

class Replayer {
 public:
  static absl::StatusOr<std::unique_ptr<Replayer>> Create(const TranscriptConfig& config,
                                                          Recorder recorder);

  // Runs one operation. FailedPrecondition names what differs, with both answers; InvalidArgument
  // means that the transcript itself makes no sense (an unknown request, for one). Later operations
  // depend on this one: stop at the first error.
  absl::Status Run(const Operation& operation);

 private:
  // A request, and what the transcript says of its content.
  struct Entry {
    std::unique_ptr<ReplayedSequence> sequence;
    std::vector<TokenId> tokens = {};
    std::string lora = {}, salt = {};

    ExtraKeys ExtraKeysOf(int64_t first_token) const;
  };

  Replayer(const TranscriptConfig& config, std::unique_ptr<ReplayedCache> cache, Recorder recorder);

  absl::StatusOr<Entry*> Find(const std::string& id);
  absl::Status RunNew(const Operation& operation);
  absl::Status RunAllocate(const Operation& operation, Entry& entry);
  absl::Status RunOnRequest(const Operation& operation, Entry& entry);
  absl::Status RunOnPool(const Operation& operation);
  absl::Status CheckState(const RecordedState& recorded, const Entry* entry);
  absl::Status CheckChanges(const RecordedState& recorded, const Entry* entry);
  absl::Status AddStored(const TableChange& change, const Entry& entry,
                         std::vector<KvEvent>& expected);
  absl::Status AddStoredTail(const TableChange& change, const Entry& entry,
                             std::vector<KvEvent>& expected);
  absl::Status AddRemoved(const TableChange& change, std::vector<KvEvent>& expected);
  BlockStored StoredBy(const Entry& entry, GroupId group) const;
  void AddHash(const BlockHash& hash, const Entry& entry, int64_t begin, int64_t end,
               BlockStored& event) const;
  absl::Status CheckDigest(const RecordedDigest& recorded);

  std::unique_ptr<ReplayedCache> cache_;
  std::map<std::string, Entry> requests_;
  const Recorder recorder_;
  const int64_t hash_lookahead_;
  const bool records_boundaries_;
  std::vector<BlockCopy> copies_;  // since the last release
  // Per block: the hash it was last registered under, and the further ones beside it.
  struct Keys {
    BlockHash first;
    std::vector<BlockHash> further;
  };
  std::vector<Keys> keys_;
};

struct ReplayResult {
  int64_t num_lines = 0;
  int64_t differing_line = 0;  // 1-based; 0: every line agreed
  std::string difference;
  Recorder recorder = Recorder::kVllm033;  // as which the file was replayed
};

// Replays a whole file as recorded by an engine; without one as by vLLM 0.33, and if that differs
// by 0.25, and the result is of the one that agrees for longer. An error status means that the file
// could not be read or makes no sense, and names the line.
absl::StatusOr<ReplayResult> ReplayFile(const std::string& path,
                                        std::optional<Recorder> recorder = std::nullopt);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_
