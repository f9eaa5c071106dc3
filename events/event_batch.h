// EventBatch: the KV events of one engine step as they travel, and the forms that they can take.

#ifndef KVBLOCKS_EVENTS_EVENT_BATCH_H_
#define KVBLOCKS_EVENTS_EVENT_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/block_pool/kv_event.h"

namespace kvblocks::events {

// How a stream writes block hashes (BM-29). One form per stream.
struct HashForm {
  // Bytes of a digest: BlockHasher::digest_size(), 1 to 32.
  size_t digest_size = 32;
  // Instead of the bytes the unsigned integer that the last 8 of them are, read big-endian. A
  // decoded integer stands in the last 8 of 32 bytes, all others zero.
  bool as_integers = false;

  friend bool operator==(const HashForm&, const HashForm&) = default;
};

struct EventBatch {
  double timestamp = 0;  // seconds; engines send Unix time
  std::vector<KvEvent> events = {};
  std::optional<int64_t> data_parallel_rank = std::nullopt;

  // Of a decoded batch.
  HashForm hash_form = {};
  int64_t num_unknown_extra_keys = 0;  // of kinds that ExtraKey does not have; left out
  // What string_views in `events` point to beside constants; makes a batch movable only.
  std::vector<std::unique_ptr<const std::string>> texts = {};
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_EVENT_BATCH_H_
