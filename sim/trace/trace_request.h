// TraceRequest and TraceInfo: one request of a workload trace, and what holds for all of its
// requests.
//
// Every reader, whatever the file format, yields these. Times are integer nanoseconds since trace
// start, lengths are tokens. The prompt's content has one of three forms, distinguished by
// TraceInfo::block_tokens:
//   0    lengths only; content_ids is empty and nobody shares anything,
//   1    content_ids are token ids, one per prompt token,
//   Bt   content_ids are block ids; each stands for the next Bt tokens of the prompt. There are
//        ceil(input / Bt) of them (the last one may be partial) or floor(input / Bt) (the rest of
//        the prompt is then shared with nobody).
// With ids_cover_output they go on behind the prompt and stand for its tokens and the output's as
// one text, so that a later prompt can repeat both; the counts are then those of input + output.
// What an id means depends on the ids before it; see content_keys.h.
//
// Plain values: copy, move and store them as you like.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_REQUEST_H_
#define KVBLOCKS_SIM_TRACE_TRACE_REQUEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvblocks::sim {

// The largest prompt or output length that a trace may state.
inline constexpr int64_t kMaxTraceLength = 2147483647;

struct TraceRequest {
  // Submission index: the position among the file's requests, from 0, in file order. Rows that were
  // skipped or not selected leave gaps. Ties between equal arrivals are broken by it.
  int64_t row = 0;
  int64_t line = 0;  // physical line (text formats) or record number (native), from 1
  std::string id;    // as the trace gives it; the decimal row if it gives none

  // Never decreases from one request of a reader to the next. With dependencies the request arrives
  // at max(arrival_ns, last finish of waits_for + think_ns).
  int64_t arrival_ns = 0;
  // False: only the dependencies decide the arrival; arrival_ns is the latest arrival among them.
  bool has_arrival = true;

  int64_t input_length = 0;
  int64_t output_length = 0;
  std::vector<int64_t> content_ids;
  bool ids_cover_output = false;     // then output_ids is empty
  std::vector<uint32_t> output_ids;  // empty, or one token id per output token
  int64_t min_tokens = 0;
  // Of the encoder's input, of encoder-decoder models; nothing: the trace does not say.
  std::optional<int64_t> encoder_tokens;

  int32_t priority = 0;  // smaller is more urgent
  // 0: none; otherwise numbered by first appearance, or as the native file says.
  uint64_t session = 0;
  uint32_t turn = 0;               // position in the session, from 0
  std::vector<int64_t> waits_for;  // rows, all smaller than this row; ascending, each once
  int64_t think_ns = 0;        // user think time plus tool time after the last dependency finished
  int64_t abort_after_ns = 0;  // after the arrival; 0: never
  std::string tenant;
  std::string slo_class;
  std::string adapter;  // separates cached content, as the salt does
  std::string salt;
  std::vector<uint32_t> accepted_drafts;  // per step with drafts

  std::string unknown_fields;  // serialized fields of a newer native format, kept when the file is
                               // rewritten

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

// Within which requests equal content ids mean equal content.
enum class ContentScope { kGlobal = 0, kSession = 1, kTenant = 2 };

struct TraceInfo {
  std::string format;  // "mooncake", "azure", ...: one of TraceFormats()
  std::string name;
  std::string source;
  std::string license;
  int64_t block_tokens = 0;  // Bt
  ContentScope scope = ContentScope::kGlobal;
  bool sorted = false;         // the file promises arrival order
  bool pseudo_tokens = false;  // lengths come from text, not from a tokenizer
  uint64_t num_requests = 0;   // as the file states it; 0: unknown
  std::map<std::string, std::string> notes;
  std::string unknown_fields;

  friend bool operator==(const TraceInfo&, const TraceInfo&) = default;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_REQUEST_H_
