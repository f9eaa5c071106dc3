// The fields of a JSON object, read one by one: each reader says what is wrong with a value in the words
// of the API. Included by api_request.cc alone.

#ifndef KVBLOCKS_SIM_SERVE_API_FIELDS_H_
#define KVBLOCKS_SIM_SERVE_API_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/serve/api_request.h"
#include "simdjson.h"

namespace kvblocks::sim::api_fields {

namespace dom = simdjson::dom;

inline ApiError Bad(std::string_view param, std::string_view message) {
  return {.message = std::string(message), .param = std::string(param)};
}

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

inline ApiError Wrong(std::string_view param, const dom::element& value, std::string_view expected) {
  return Bad(param, absl::StrCat(std::string(param), ": got ", Shown(value), ", expected ",
                                 std::string(expected)));
}

using Error = std::optional<ApiError>;

// The fields of one object. Readers leave `out` as it is where the field is absent or null.
class Fields {
 public:
  explicit Fields(const dom::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  std::string Name(std::string_view key) const { return absl::StrCat(prefix_, std::string(key)); }

  std::optional<dom::element> Find(std::string_view key) const {
    dom::element value;
    if (object_[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
  }

  Error Integer(std::string_view key, int64_t low, int64_t high, int64_t* out) const {
    const auto value = Find(key);
    if (!value) return std::nullopt;
    int64_t number;
    if (value->get(number) != simdjson::SUCCESS || number < low || number > high) {
      return Wrong(Name(key), *value, absl::StrCat("a whole number from ", low, " to ", high));
    }
    *out = number;
    return std::nullopt;
  }

  Error Number(std::string_view key, double low, double high, double* out) const {
    const auto value = Find(key);
    if (!value) return std::nullopt;
    double number;
    if (value->get(number) != simdjson::SUCCESS || !(number >= low && number <= high)) {
      return Wrong(Name(key), *value, absl::StrCat("a number from ", low, " to ", high));
    }
    *out = number;
    return std::nullopt;
  }

  Error Flag(std::string_view key, bool* out) const {
    const auto value = Find(key);
    if (!value) return std::nullopt;
    if (value->get(*out) != simdjson::SUCCESS) return Wrong(Name(key), *value, "true or false");
    return std::nullopt;
  }

  Error Text(std::string_view key, size_t most_bytes, std::string* out) const {
    const auto value = Find(key);
    if (!value) return std::nullopt;
    std::string_view text;
    if (value->get(text) != simdjson::SUCCESS) return Wrong(Name(key), *value, "a text");
    if (text.size() > most_bytes) {
      return Bad(Name(key), absl::StrCat(Name(key), ": got ", text.size(),
                                         " bytes, expected at most ", most_bytes));
    }
    *out = std::string(text);
    return std::nullopt;
  }

  // Refuses a field that is set to anything but null, false, 0, "", [] or {}.
  Error Refuse(std::string_view key, std::string_view why) const {
    const auto value = Find(key);
    if (!value) return std::nullopt;
    bool flag;
    double number;
    std::string_view text;
    dom::array list;
    dom::object object;
    if (value->get(flag) == simdjson::SUCCESS && !flag) return std::nullopt;
    if (value->get(number) == simdjson::SUCCESS && number == 0) return std::nullopt;
    if (value->get(text) == simdjson::SUCCESS && text.empty()) return std::nullopt;
    if (value->get(list) == simdjson::SUCCESS && list.begin() == list.end()) return std::nullopt;
    if (value->get(object) == simdjson::SUCCESS && object.begin() == object.end()) {
      return std::nullopt;
    }
    return Bad(Name(key), absl::StrCat(Name(key), ": got ", Shown(*value), ", but ",
                                       std::string(why)));
  }

 private:
  const dom::object& object_;
  const std::string prefix_;
};

}  // namespace kvblocks::sim::api_fields

#endif  // KVBLOCKS_SIM_SERVE_API_FIELDS_H_
