// The decoder of KV events on any bytes. What it takes must survive another way through the encoder
// unchanged, in both forms, and the index must take it; so must the log's reader, in pieces, give
// what it gives at once.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kvblocks/kv_events.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks;
using namespace kvblocks::events;

void DecodeAndBack(std::string_view payload) {
  const auto batch = DecodeEvents(payload);
  if (!batch.ok()) {
    FUZZ_EXPECT(absl::StartsWith(batch.status().message(), "KV event batch: "), "where it is from");
    return;
  }
  BlockIndex index({.medium = ""});
  index.Apply(index.AddHolder("fuzz"), batch->events);
  FUZZ_EXPECT(index.holder(0).num_blocks >= index.holder(0).num_keys, "counts");
  for (const bool join : {false, true}) {
    std::string bytes;
    EncodeEvents(batch->events,
                 {.timestamp = batch->timestamp,
                  .data_parallel_rank = batch->data_parallel_rank,
                  .hash_form = batch->hash_form,
                  .join_removals = join},
                 &bytes);
    const auto again = DecodeEvents(bytes);
    FUZZ_EXPECT(again.ok(), again.status().ToString());
    FUZZ_EXPECT(again->events == batch->events, "the same events");
    FUZZ_EXPECT(again->data_parallel_rank == batch->data_parallel_rank, "the same rank");
  }
}

std::vector<LoggedMessage> ReadLog(std::string_view bytes, size_t piece) {
  EventLogReader reader;
  std::vector<LoggedMessage> messages;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Feed(bytes.substr(at, piece));
    while (true) {
      auto message = reader.Next();
      if (!message.ok()) return messages;
      if (!*message) break;
      messages.push_back(**std::move(message));
    }
  }
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  DecodeAndBack(bytes);
  std::string log;
  AppendLogHead(&log);
  for (const std::string_view input : {bytes, std::string_view(log.append(bytes))}) {
    FUZZ_EXPECT(ReadLog(input, 1 + size / 3) == ReadLog(input, input.size() + 1), "pieces");
  }
  return 0;
}
