// The fields of a JSON object, read one by one, and what is wrong with them in the words of the
// API. Included by api_request.cc alone.

#ifndef KVBLOCKS_SIM_SERVE_API_FIELDS_H_
#define KVBLOCKS_SIM_SERVE_API_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/serve/api_request.h"
#include "simdjson.h"

namespace kvblocks::sim::api_fields {

namespace dom = simdjson::dom;

// What JSON calls the type.
inline const char* TypeName(const dom::element& value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "a list";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a text";
    case dom::element_type::BOOL:
      return "true or false";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

inline std::string Shown(const dom::element& value) {
  if (value.is_array() || value.is_object()) return TypeName(value);
  std::string text = simdjson::minify(value);
  if (text.size() > 40) text = absl::StrCat(text.substr(0, 37), "...");
  return text;
}

// Where the first thing is kept that is wrong with a body; what is wrong after it does not count.
class Problem {
 public:
  void Bad(std::string_view param, std::string message) {
    if (!error_) error_ = {.message = std::move(message), .param = std::string(param)};
  }
  void Wrong(std::string_view param, const dom::element& value, std::string_view expected) {
    Bad(param, absl::StrCat(std::string(param), ": got ", Shown(value), ", expected ",
                            std::string(expected)));
  }
  bool is_none() const { return !error_; }
  std::optional<ApiError> Take() { return std::move(error_); }

 private:
  std::optional<ApiError> error_;
};

// The fields of one object. Readers leave `out` as it is where the field is absent, null or wrong.
class Fields {
 public:
  Fields(const dom::object& object, Problem* problem, std::string prefix = "")
      : object_(object), problem_(*problem), prefix_(std::move(prefix)) {}

  Problem& problem() const { return problem_; }
  const dom::object& object() const { return object_; }

  std::optional<dom::element> Find(std::string_view key) const {
    dom::element value;
    if (object_[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
  }
  template <typename Value>
  std::optional<Value> Find(std::string_view key, std::string_view expected) const {
    const auto value = Find(key);
    Value out;
    if (!value) return std::nullopt;
    if (value->get(out) == simdjson::SUCCESS) return out;
    Wrong(key, *value, expected);
    return std::nullopt;
  }

  void Integer(std::string_view key, int64_t low, int64_t high, int64_t* out) const {
    Number(key, low, high, "a whole number from ", out);
  }
  void Number(std::string_view key, double low, double high, double* out) const {
    Number(key, low, high, "a number from ", out);
  }
  void Flag(std::string_view key, bool* out) const {
    if (const auto flag = Find<bool>(key, "true or false")) *out = *flag;
  }
  void Text(std::string_view key, size_t most_bytes, std::string* out) const {
    const auto text = Find<std::string_view>(key, "a text");
    if (!text) return;
    if (text->size() > most_bytes) {
      return Bad(key, absl::StrCat("got ", text->size(), " bytes, expected at most ", most_bytes));
    }
    *out = std::string(*text);
  }
  // Refuses a field that is set to anything but null, false, 0, "", [] or {}.
  void Refuse(std::string_view key, std::string_view why) const {
    const auto value = Find(key);
    if (!value) return;
    bool flag;
    double number;
    std::string_view text;
    dom::array list;
    dom::object object;
    if ((value->get(flag) == simdjson::SUCCESS && !flag) ||
        (value->get(number) == simdjson::SUCCESS && number == 0) ||
        (value->get(text) == simdjson::SUCCESS && text.empty()) ||
        (value->get(list) == simdjson::SUCCESS && list.begin() == list.end()) ||
        (value->get(object) == simdjson::SUCCESS && object.begin() == object.end())) {
      return;
    }
    Bad(key, absl::StrCat("got ", Shown(*value), ", but ", std::string(why)));
  }

  // What is wrong with the field.
  void Bad(std::string_view key, std::string_view what) const {
    const std::string name = absl::StrCat(prefix_, std::string(key));
    problem_.Bad(name, absl::StrCat(name, ": ", std::string(what)));
  }
  void Wrong(std::string_view key, const dom::element& value, std::string_view expected) const {
    problem_.Wrong(absl::StrCat(prefix_, std::string(key)), value, expected);
  }

 private:
  template <typename Value>
  void Number(std::string_view key, Value low, Value high, const char* expected, Value* out) const {
    const auto value = Find(key);
    if (!value) return;
    Value number;
    if (value->get(number) != simdjson::SUCCESS || !(number >= low && number <= high)) {
      return Wrong(key, *value, absl::StrCat(expected, low, " to ", high));
    }
    *out = number;
  }

  const dom::object& object_;
  Problem& problem_;
  const std::string prefix_;
};

}  // namespace kvblocks::sim::api_fields

#endif  // KVBLOCKS_SIM_SERVE_API_FIELDS_H_
