// Any CSV or JSONL as a trace, by naming its columns:
// --fields=input_length=prompt_tokens,arrival_s=ts. A published format whose rows mean no more than
// their columns is such a text, too: a preset.
//
// Left of each equals sign is a field, right of it the column of a CSV header or the path of a
// JSON field ("usage.prompt"). Fields:
//   input_length, output_length        tokens; both are needed
//   arrival_s, _ms, _us, _ns, arrival  when; the last one is a date and time (line_rows.h),
//                                      counted from midnight (UTC) of the first row's day. Without
//                                      any of them all requests arrive at 0
//   ids                                content ids, of which --trace-block-size says how many
//                                      tokens each stands for: a JSON list, or a text of numbers
//                                      from 0 to 2^64-1 with blanks, commas, ; or | between them
//   id, session, turn, priority, min_tokens, encoder_tokens, tenant, slo_class, adapter, salt
//   think_s, _ms, _us, _ns             after the request before in the session
//   abort_after_s, _ms, _us, _ns
// An empty text or null means that a row does not have the field. A row without arrival or with a
// think time waits for the one before it in its session. Times are rounded to 1 ns. No field and no
// column may be named twice.
//
// Presets have further fields:
//   unix_s         Unix time, counted from midnight (UTC) of the first row's day
//   total_length   a warning where it is not the sum of both lengths
//   model, log_type                    what --model-filter and --log-type select rows by
//   hex_ids, block_tokens              hashes as hexadecimal texts, and tokens per hash, which the
//                                      first good row decides; hashes above 64 bits are hashed
//   prompt         a text, which becomes pseudo-tokens, or a list of token ids; in the whole file
//                  either
// Behind a column, ? says that a file or a JSON row may be without it. Numbers have to be written
// as numbers, whole ones as digits, and a CSV row has a value in each column of numbers.

#ifndef KVBLOCKS_SIM_TRACE_FIELD_MAP_H_
#define KVBLOCKS_SIM_TRACE_FIELD_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

enum class MapTo {
  kInput,
  kOutput,
  kArrival,
  kDate,
  kIds,
  kId,
  kSession,
  kTurn,
  kPriority,
  kMinTokens,
  kEncoderTokens,
  kTenant,
  kSloClass,
  kAdapter,
  kSalt,
  kThink,
  kAbortAfter,
  // Of presets alone.
  kUnix,
  kTotal,
  kModel,
  kLogType,
  kBlockTokens,
  kHexIds,
  kPrompt,
};

struct MapField {
  std::string_view name;
  MapTo to;
  int exponent = 0;  // of times: digits behind the point that are nanoseconds
  bool is_text = false;
  std::string TraceRequest::*text = nullptr;  // where texts go that are nothing more
};

// A field and the column that it is read from.
struct Mapping {
  const MapField* field;
  std::string column;
  bool is_needed = true;  // in a file, and in a JSON row
};

inline bool HasField(const std::vector<Mapping>& map, MapTo to) {
  return std::any_of(map.begin(), map.end(), [to](const Mapping& m) { return m.field->to == to; });
}

inline bool IsArrival(MapTo to) {
  return to == MapTo::kArrival || to == MapTo::kDate || to == MapTo::kUnix;
}

// What is wrong with a map.
absl::Status BadFieldMap(std::string_view got, const std::string& expected);
absl::StatusOr<std::vector<Mapping>> ParseFieldMap(std::string_view text, bool is_preset);

// The JSON records of a format: those that have all of these fields, one of `any` if there are any,
// and none of `none`. "hash_ids is an object" is a field, too.
struct RecordShape {
  std::vector<std::string_view> all = {};
  std::vector<std::string_view> any = {};
  std::vector<std::string_view> none = {};
};

struct FieldPreset {
  std::string_view format;
  std::string_view fields;
  // What a file is recognised by: the begin of a CSV header, or a part of it; or a JSON record.
  std::string_view csv_begin = {};
  std::string_view csv_part = {};
  std::vector<RecordShape> shapes = {};

  bool rounds_times = false;  // to 1 ns; else they must be exact
  int64_t block_tokens = 0;   // until a row says otherwise
  std::string_view zero_output = {};  // the note on rows without output
  std::vector<std::string_view> ignored = {};  // JSON fields of no use here
};

const std::vector<FieldPreset>& FieldPresets();
// Null if there is none of this name.
const FieldPreset* FindFieldPreset(std::string_view format);

// CsvTable: the rows of a CSV file whose first line names its columns.
//
// Fields are separated by commas and may stand in double quotes, within which a quote is written
// twice. A field has no line end in it. Blanks around names of columns do not count. Cost: one pass
// over the line. Single-threaded.
class CsvTable {
 public:
  static constexpr size_t kNoColumn = static_cast<size_t>(-1);

  // Takes the header. Empty, or what is wrong: WHAT: got VALUE, expected EXPECTATION.
  std::string SetHeader(std::string_view line);
  // The place of a column, or kNoColumn.
  size_t ColumnOf(std::string_view name) const;
  const std::vector<std::string>& columns() const { return columns_; }

  // Takes a row; fields() are valid until the next one. Empty, or what is wrong.
  std::string SetRow(std::string_view line);
  const std::vector<std::string_view>& fields() const { return fields_; }

 private:
  bool Split(std::string_view line);

  std::string header_;
  std::vector<std::string> columns_;
  std::vector<std::string_view> fields_;
  std::string unquoted_;  // what fields_ of a line with quotes point into
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_FIELD_MAP_H_
