#include "sim/trace/json_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

// Fields that are not read: how many different ones are reported.
constexpr size_t kMostUnknownNames = 50;

// Whether `path` is `prefix` + `key`.
bool IsPath(std::string_view path, std::string_view prefix, std::string_view key) {
  return path.size() == prefix.size() + key.size() && path.substr(prefix.size()) == key &&
         path.substr(0, prefix.size()) == prefix;
}

// Whether `path` is inside the object `prefix` + `key`.
bool IsWithin(std::string_view path, std::string_view prefix, std::string_view key) {
  const size_t size = prefix.size() + key.size();
  return path.size() > size && path[size] == '.' && IsPath(path.substr(0, size), prefix, key);
}

std::string_view TextOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace

JsonFields::JsonFields(std::vector<Field> fields, const RowLog* log,
                       std::vector<std::string_view> ignored)
    : fields_(std::move(fields)), ignored_(std::move(ignored)), log_(log) {}

// Of a field that is there.
size_t JsonFields::IndexOf(std::string_view path) const {
  return static_cast<size_t>(
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) { return f.path == path; }) -
      fields_.begin());
}

void JsonFields::Begin(const TraceRequest* at, std::vector<TraceProblem>* problems,
                       std::string where) {
  at_ = at;
  problems_ = problems;
  where_ = std::move(where);
  prefix_.clear();
  seen_ = 0;
}

void JsonFields::Bad(ProblemKind kind, std::string_view text) {
  problems_->push_back(RowProblem(
      kind, *at_, where_.empty() ? std::string(text) : absl::StrCat(where_, View(text))));
}

bool JsonFields::ParseLine(std::string_view text, const TraceRequest* at,
                           std::vector<TraceProblem>* problems, std::string where) {
  Begin(at, problems, std::move(where));
  int64_t column = 0;
  const absl::Status status = json_.ForEachField(
      text, LineReader::kPadding,
      [&](std::string_view key, JsonValue& value) { return OnField(key, value); }, &column);
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return true;
  Bad(ProblemKind::kSyntax, TextOf(status));
  problems_->back().column = column;
  return false;
}

absl::Status JsonFields::ReadObject(JsonValue& value, const TraceRequest* at,
                                    std::vector<TraceProblem>* problems, std::string where) {
  Begin(at, problems, std::move(where));
  return ReadFields(value);
}

absl::Status JsonFields::ReadFields(JsonValue& value) {
  return value.ReadObject(
      [&](std::string_view key, JsonValue& inner) { return OnField(key, inner); });
}

absl::Status JsonFields::OnField(std::string_view key, JsonValue& value) {
  size_t index = 0;
  bool is_within = false;
  for (; index < fields_.size(); ++index) {
    const std::string_view path = fields_[index].path;
    if (IsPath(path, prefix_, key)) break;
    is_within = is_within || IsWithin(path, prefix_, key);
  }
  if (index == fields_.size() && !is_within) return Skip(key, value);
  // `key` points into the parser's buffer for strings, which reading the value may overwrite.
  const std::string name =
      index < fields_.size() ? std::string() : absl::StrCat(prefix_, View(key));
  const std::string_view path = index < fields_.size() ? fields_[index].path : name;
  absl::StatusOr<bool> null = value.IsNull();
  if (!null.ok()) {
    return absl::Status(null.status().code(),
                        absl::StrCat(View(path), ": ", null.status().message()));
  }
  if (*null) return absl::OkStatus();
  if (index == fields_.size()) {
    const size_t size = prefix_.size();
    prefix_ = absl::StrCat(name, ".");
    const absl::Status status = ReadFields(value);
    prefix_.resize(size);
    // Problems within the object were reported under their own names.
    return status.code() == absl::StatusCode::kInvalidArgument ? Note(name, status) : status;
  }
  const std::string_view other = fields_[index].same_as;
  const size_t field = other.empty() ? index : IndexOf(other);
  if ((seen_ >> field & 1) != 0) {
    Bad(ProblemKind::kRepeatedField,
        absl::StrCat("field ", View(path), ": got it twice (or under two names), expected once"));
    return value.Skip();
  }
  seen_ |= uint64_t{1} << field;
  used_ |= uint64_t{1} << index;
  return Note(path, fields_[field].read(value));
}

// Fails only if the text is not JSON or not worth reading on.
absl::Status JsonFields::Note(std::string_view name, const absl::Status& status) {
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  const std::string text = absl::StrCat(View(name), ": ", status.message());
  if (status.code() != absl::StatusCode::kInvalidArgument) return absl::Status(status.code(), text);
  Bad(ProblemKind::kValue, text);
  return absl::OkStatus();
}

absl::Status JsonFields::Skip(std::string_view key, JsonValue& value) {
  const bool is_ignored = std::any_of(ignored_.begin(), ignored_.end(), [&](std::string_view path) {
    return IsPath(path, prefix_, key);
  });
  if (is_ignored || log_->listener == nullptr || unknown_.size() >= kMostUnknownNames) {
    return value.Skip();
  }
  const std::string name = Shown(absl::StrCat(prefix_, View(key)));
  absl::Status status = value.Skip();
  if (status.ok() && unknown_.insert(name).second) {
    log_->Notify(
        RowProblem(ProblemKind::kUnknownField, *at_,
                   absl::StrCat("field: got ", name, ", expected one that is read (it is ignored)"),
                   ProblemSeverity::kNote));
  }
  return status;
}

bool JsonFields::Require(std::initializer_list<std::string_view> paths) {
  bool all = true;
  for (const std::string_view path : paths) {
    if (Seen(path)) continue;
    all = false;
    Bad(ProblemKind::kMissingField,
        absl::StrCat("field ", View(path), ": got nothing, expected a value"));
  }
  return all;
}

}  // namespace kvblocks::sim
