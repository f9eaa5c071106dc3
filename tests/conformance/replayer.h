// Replayer: makes the calls of a transcript on a KV-cache manager and compares every answer with the
// recorded one.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_
#define KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/tests/conformance/replayed_cache.h"
#include "kvblocks/tests/conformance/transcript.h"

namespace kvblocks::conformance {

class Replayer {
 public:
  static absl::StatusOr<std::unique_ptr<Replayer>> Create(const TranscriptConfig& config,
                                                          const MakeReplayedCache& make_cache);

  // Runs one operation. FailedPrecondition names what differs, with both answers; InvalidArgument
  // means that the transcript itself makes no sense (an unknown request, for one). Later operations
  // depend on this one: stop at the first error.
  absl::Status Run(const Operation& operation);

 private:
  // A request, and what the transcript says of its content.
  struct Entry {
    std::unique_ptr<ReplayedCache::Sequence> sequence;
    std::vector<TokenId> tokens = {};
    std::string lora = {}, salt = {};

    ExtraKeys ExtraKeysOf(int64_t first_token) const;
  };

  explicit Replayer(std::unique_ptr<ReplayedCache> cache);

  absl::StatusOr<Entry*> Find(const std::string& id);
  absl::Status RunNew(const Operation& operation);
  absl::Status RunAllocate(const Operation& operation, Entry& entry);
  absl::Status RunOnRequest(const Operation& operation, Entry& entry);
  absl::Status RunOnPool(const Operation& operation);
  absl::Status CheckState(const RecordedState& recorded, const Entry* entry);
  absl::Status CheckChanges(const RecordedState& recorded, const Entry* entry);
  absl::Status CheckDigest(const RecordedDigest& recorded);

  std::unique_ptr<ReplayedCache> cache_;
  std::map<std::string, Entry> requests_;
  std::vector<BlockHash> last_hash_;  // per block: the hash it was last registered under
};

struct ReplayResult {
  int64_t num_lines = 0;
  int64_t differing_line = 0;  // 1-based; 0: every line agreed
  std::string difference;
};

// Replays a whole file. An error status means that it could not be read or makes no sense, and
// names the line.
absl::StatusOr<ReplayResult> ReplayFile(const std::string& path,
                                        const MakeReplayedCache& make_cache = MakeLibraryCache);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_REPLAYER_H_
