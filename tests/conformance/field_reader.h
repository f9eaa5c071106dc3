// FieldReader: typed fields of one JSON object, for files that anybody may have written; and their
// lines.
//
// The first problem is kept in status() and later reads give defaults, so a caller reads all fields
// and looks once. A number outside its range, a list that is none and a missing field are problems;
// messages name the field and what was expected.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_FIELD_READER_H_
#define KVBLOCKS_TESTS_CONFORMANCE_FIELD_READER_H_

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/block.h"

namespace kvblocks::conformance {

using BlockLists = std::vector<std::vector<BlockId>>;  // one per group

// A group of KV caches as recordings have it.
struct RecordedGroup {
  std::string kind;
  int64_t block_size = 0;
  std::optional<int64_t> sliding_window = std::nullopt;
  std::optional<int64_t> attention_chunk_size = std::nullopt;
  bool is_draft = false;
  int64_t num_retained_tokens = 0;     // below a window
  std::string mamba_mode = {};         // align or none
  int64_t num_speculative_blocks = 0;  // of states
};

// Tokens start .. start + count - 1 of a document.
struct TokenSegment {
  int64_t document = 0;
  int64_t start = 0;
  int64_t count = 0;
};

class FieldReader {
 public:
  using Element = simdjson::dom::element;

  explicit FieldReader(simdjson::dom::object fields) : fields_(fields) {}

  const absl::Status& status() const { return status_; }
  bool Has(const char* name) const { return !Field(name).error(); }
  // There, and not null.
  bool HasValue(const char* name) const;

  int64_t Int(const char* name, int64_t low = 0,
              int64_t high = std::numeric_limits<int64_t>::max());
  int64_t IntOr(const char* name, int64_t fallback) { return Has(name) ? Int(name) : fallback; }
  std::optional<int64_t> OptionalInt(const char* name);
  bool Bool(const char* name);
  bool BoolOr(const char* name, bool fallback) { return Has(name) ? Bool(name) : fallback; }
  std::string String(const char* name);
  std::string StringOrEmpty(const char* name) {
    return HasValue(name) ? String(name) : std::string();
  }
  double Double(const char* name);

  std::vector<Element> Array(const char* name);
  std::optional<simdjson::dom::object> Object(const char* name);
  // Empty if `value` is no list.
  std::vector<Element> ItemsOf(Element value, const char* name);
  // Empty if `value` is no object, which is a problem.
  std::optional<simdjson::dom::object> ObjectOf(Element value, const char* name);

  std::vector<int64_t> Ints(const char* name) { return IntsOf(Array(name), name); }
  std::vector<int64_t> IntsOf(const std::vector<Element>& list, const char* name);
  std::vector<BlockId> BlockIds(const std::vector<Element>& list, const char* name);
  BlockLists ListsOf(const std::vector<Element>& list, const char* name);
  BlockLists Lists(const char* name) { return ListsOf(Array(name), name); }
  // [[document, start, count], ...], of at most 2^24 tokens in all.
  std::vector<TokenSegment> Segments(const std::vector<Element>& list, const char* name);

  // A problem if the object has a field that was not read: its writer meant something by it.
  void RefuseOthers();
  void Fail(const char* name, const char* expected);
  // Keeps a problem found by a reader of an object inside this one.
  void Adopt(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  simdjson::simdjson_result<Element> Field(const char* name) const {
    asked_.insert(name);
    return fields_[name];
  }

  simdjson::dom::object fields_;
  mutable std::set<std::string_view> asked_;
  absl::Status status_;
};

// InvalidArgument if the line is no JSON object. It lives as long as the parser.
absl::StatusOr<simdjson::dom::object> ParseObject(simdjson::dom::parser& parser,
                                                  const std::string& line);

// --- Files ---

// NotFound if the file cannot be opened, DataLoss if its compressed data is damaged or cut off,
// ResourceExhausted beyond 1 GiB of text.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// The paths of a folder's *.gz, sorted; none if there is no such folder.
std::vector<std::string> CompressedFilesIn(const std::filesystem::path& folder);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_FIELD_READER_H_
