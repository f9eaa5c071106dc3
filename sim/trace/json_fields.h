// JsonFields: the fields of one kind of JSON object, by a table that says how each is read.
//
//   JsonFields fields({{"timestamp", By(&JsonValue::ReadDecimal, 6, &ns)},
//                      {"created_time", "timestamp"},
//                      {"request.id", By(&JsonValue::ReadName, &id)}}, log);
//   if (fields.ParseLine(text, &row->request, problems)) fields.Require({"timestamp"});
//
// A name with a point goes down into an object. A field may have another name; both in one object,
// or one of them twice, is a problem. null means absent. Fields that are not in the table are
// checked to be JSON and reported to the listener once each, unless they are in the list of those
// that are known to be of no use here.
//
// A value that is wrong becomes a problem "NAME: got VALUE, expected EXPECTATION" and the others
// are still read; text that is not JSON ends the object. Cost: one comparison per name of the table
// and field. Single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_JSON_FIELDS_H_
#define KVBLOCKS_SIM_TRACE_JSON_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

// JSON objects of one line, field by field: strict, exact and without a document tree.
//
// A thin layer over simdjson's on-demand parser. On-demand does not look into values that nobody
// asks for; here they are walked as well, so that a line is accepted only if all of it is JSON.
// Numbers that are times are read as decimal text, never as binary floating point.

// Whether a text is UTF-8, as all texts of JSON are.
bool IsUtf8(std::string_view text);

// A name that may be written as a string or as an integer: 7 and "7" are the same name.
struct JsonId {
  std::string text;
  bool is_integer = false;  // written as an integer
  int64_t integer = 0;
};

// One value. Exactly one of its readers may be called, once. Messages read "got VALUE, expected
// EXPECTATION".
class JsonValue {
 public:
  // `value` is the parser's own type, hidden to keep its header out of this one.
  explicit JsonValue(void* value) : value_(value) {}

  enum class Kind { kNull, kObject, kList, kString, kOther };
  Kind kind();                    // may precede a reader
  absl::StatusOr<bool> IsNull();  // may precede a reader
  absl::Status Skip();
  absl::Status ReadInteger(int64_t min, int64_t max, int64_t* out);
  absl::Status ReadDecimal(int exponent, int64_t* out);  // see ParseScaledDecimal
  absl::Status ReadRounded(int exponent, int64_t* out);  // see ParseRoundedDecimal
  absl::Status ReadText(std::string* out);  // of a string, or a number as it stands there
  absl::Status ReadString(std::string* out);
  absl::Status ReadId(JsonId* out);
  absl::Status ReadName(std::string* out);  // the text of an id
  absl::Status ReadLength(int64_t* out);    // tokens of one prompt or output
  absl::Status ReadNames(std::vector<std::string>* out);
  absl::Status ReadIntegers(std::vector<int64_t>* out);
  absl::Status ReadUint32s(std::vector<uint32_t>* out);
  // Hashes of 64 bits, as numbers from 0 to 2^64-1. Negative ids stand for the same bits.
  absl::Status ReadHashes(std::vector<int64_t>* out);
  absl::Status ReadLengths(std::vector<int64_t>* out);
  absl::Status ReadRoundedList(int exponent, std::vector<int64_t>* out);
  absl::Status ReadStrings(std::vector<std::string>* out);
  // Calls `on_field` for every field of an object, or `on_element` for every element of a list, as
  // JsonObjectReader::ForEachField does. A callback that goes down again bounds the depth itself.
  absl::Status ReadObject(
      const std::function<absl::Status(std::string_view key, JsonValue& value)>& on_field);
  absl::Status ReadList(const std::function<absl::Status(JsonValue& value)>& on_element);

 private:
  void* value_;
};

class JsonObjectReader {
 public:
  JsonObjectReader();
  ~JsonObjectReader();
  JsonObjectReader(const JsonObjectReader&) = delete;
  JsonObjectReader& operator=(const JsonObjectReader&) = delete;

  // Calls `on_field` for every field of the object `text`, in order; it must read or skip the
  // value, and if it fails, that ends the walk. After a reader of JsonValue failed with
  // InvalidArgument the walk may go on. `text` must be followed by `padding` readable bytes. A text
  // that is not JSON is DataLoss; then `column` (from 1, 0 if unknown) is set.
  absl::Status ForEachField(
      std::string_view text, size_t padding,
      const std::function<absl::Status(std::string_view key, JsonValue& value)>& on_field,
      int64_t* column);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

class JsonFields {
 public:
  // Reads one value. What it returns becomes a problem if it is InvalidArgument; other errors end
  // the object.
  using Read = std::function<absl::Status(JsonValue& value)>;
  struct Field {
    Field(std::string_view name, Read how) : path(name), read(std::move(how)) {}
    // Another name of a field that comes before it in the table.
    Field(std::string_view name, const char* other) : path(name), same_as(other) {}

    std::string_view path;
    Read read;
    std::string_view same_as;
  };

  // At most 64 fields; those of `ignored` are paths, too. `log` must outlive this, and so must what
  // the fields are read into.
  JsonFields(std::vector<Field> fields, const RowLog* log,
             std::vector<std::string_view> ignored = {});

  // A whole line, padded as LineReader does. Problems are in the row `at`, and begin with `where`.
  // A line that is not one JSON object is a problem with its column, and false.
  bool ParseLine(std::string_view text, const TraceRequest* at, std::vector<TraceProblem>* problems,
                 std::string where = "");
  // The same, and whether there is no problem at all, missing fields included.
  bool ParseLine(std::string_view text, const TraceRequest* at, std::vector<TraceProblem>* problems,
                 std::initializer_list<std::string_view> required) {
    return ParseLine(text, at, problems) && Require(required) && problems_->empty();
  }
  // An object within a line.
  absl::Status ReadObject(JsonValue& value, const TraceRequest* at,
                          std::vector<TraceProblem>* problems, std::string where = "");

  bool Seen(std::string_view path) const { return (seen_ >> IndexOf(path) & 1) != 0; }
  // What is not there and must be is a problem. True: nothing is missing.
  bool Require(std::initializer_list<std::string_view> paths);
  void Bad(ProblemKind kind, std::string_view text);

  // Names seen in the file so far, a bit for each of the table.
  uint64_t used() const { return used_; }
  const std::vector<Field>& fields() const { return fields_; }

 private:
  void Begin(const TraceRequest* at, std::vector<TraceProblem>* problems, std::string where);
  absl::Status ReadFields(JsonValue& value);
  absl::Status OnField(std::string_view key, JsonValue& value);
  size_t IndexOf(std::string_view path) const;
  absl::Status Skip(std::string_view key, JsonValue& value);
  absl::Status Note(std::string_view name, const absl::Status& status);

  std::vector<Field> fields_;
  std::vector<std::string_view> ignored_;
  const RowLog* log_;
  JsonObjectReader json_;
  std::set<std::string> unknown_;  // fields that were reported
  uint64_t used_ = 0;

  // Of the object being read.
  const TraceRequest* at_ = nullptr;
  std::vector<TraceProblem>* problems_ = nullptr;
  std::string where_;
  std::string prefix_;  // path of the object within the object
  uint64_t seen_ = 0;
};

// A field that a reader of JsonValue reads, with these arguments.
template <typename... Parameters, typename... Arguments>
JsonFields::Read By(absl::Status (JsonValue::*read)(Parameters...), Arguments... arguments) {
  return [=](JsonValue& value) { return (value.*read)(arguments...); };
}

// A whole number of any type.
inline JsonFields::Read Whole(int64_t min, int64_t max, int64_t* out) {
  return By(&JsonValue::ReadInteger, min, max, out);
}
template <typename Int>
JsonFields::Read Whole(int64_t min, int64_t max, Int* out) {
  return [=](JsonValue& value) {
    int64_t number = 0;
    absl::Status status = value.ReadInteger(min, max, &number);
    *out = static_cast<Int>(number);
    return status;
  };
}

// Each element of a list.
inline JsonFields::Read Each(JsonFields::Read read) {
  return [read = std::move(read)](JsonValue& value) { return value.ReadList(read); };
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_JSON_FIELDS_H_
