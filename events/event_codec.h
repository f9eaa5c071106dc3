// KV events as vLLM 0.33 puts them on the wire (V-60, V-64): MessagePack, byte for byte.
//
//   std::string payload;
//   EncodeEvents(manager->TakeEvents(), {.timestamp = now}, &payload);
//   absl::StatusOr<EventBatch> batch = DecodeEvents(payload);
//
// A batch is an array of time, events and rank; an event is a map whose first key is its type. The
// reason of a removal does not travel: upstream has no field for it.
//
// Encoding: 10 to 20 ns per hash or token. Decoding is for bytes from anywhere: it either gives a
// batch or says at which byte what is wrong; it refuses what would take more memory than
// kFreeDecodedBytes and kDecodedBytesPerByte times its size. Both may be called from any thread.

#ifndef KVBLOCKS_EVENTS_EVENT_CODEC_H_
#define KVBLOCKS_EVENTS_EVENT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/events/event_batch.h"

namespace kvblocks::events {

struct EncodeOptions {
  double timestamp = 0;
  std::optional<int64_t> data_parallel_rank = std::nullopt;
  HashForm hash_form = {};
  // Consecutive removals that differ in their hash only travel as one event with several hashes,
  // which upstream's consumers read as well; upstream's own publisher writes one event per hash.
  bool join_removals = false;
};

// Appends the batch to `out`. REQUIRES: hash_form.digest_size from 1 to 32 (with integers from 8).
void EncodeEvents(absl::Span<const KvEvent> events, const EncodeOptions& options, std::string* out);

// Most events of a batch, removals of several hashes counted per hash.
inline constexpr size_t kMaxEventsPerBatch = size_t{1} << 20;

// Memory that a decoded batch may take: so much for any, and so much more for each byte of the
// payload. What engines send takes 2 to 5 bytes per byte; removals joined into one event take 42
// as integers and 11 as digests, so the free part is for 170,000 of those.
inline constexpr size_t kFreeDecodedBytes = size_t{64} << 20;
inline constexpr size_t kDecodedBytesPerByte = 8;

// InvalidArgument: "KV event batch: event 2: token_ids[4]: got a text, expected ... (byte 118)".
// A removal of several hashes becomes that many events. Keys that are not known are passed over
// (V-64); an array in the place of an event's map is refused, as upstream refuses it. Texts are not
// checked to be UTF-8.
absl::StatusOr<EventBatch> DecodeEvents(std::string_view payload);

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_EVENT_CODEC_H_
