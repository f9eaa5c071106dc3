#include "specs/catalogue/config_fields.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/field_error.h"
#include "simdjson.h"

namespace kvblocks {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxDepth = 32;
// Of lists that are read; no model has more layers.
constexpr size_t kMaxElements = 20'000;
constexpr size_t kShown = 60;

std::string Shown(const dom::element& element) {
  std::string text = simdjson::minify(element);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

// The key of an object that occurs twice in it, if any.
std::optional<std::string> DuplicateKey(const dom::element& element) {
  dom::object object;
  dom::array array;
  if (!element.get(object)) {
    std::set<std::string_view> keys;
    for (const dom::key_value_pair field : object) {
      if (!keys.insert(field.key).second) return std::string(field.key);
      if (auto key = DuplicateKey(field.value)) return key;
    }
  } else if (!element.get(array)) {
    for (const dom::element inner : array) {
      if (auto key = DuplicateKey(inner)) return key;
    }
  }
  return std::nullopt;
}

std::string RangeText(const char* what, int64_t low, int64_t high) {
  return std::string(what) + " from " + std::to_string(low) + " to " + std::to_string(high);
}

std::optional<dom::element> Find(const dom::object& object, std::string_view field) {
  dom::element element;
  if (object.at_key(field).get(element) || element.is_null()) return std::nullopt;
  return element;
}

bool ToInt(const dom::element& element, int64_t low, int64_t high, int64_t* out) {
  return !element.get(*out) && *out >= low && *out <= high;
}

}  // namespace

struct ConfigFields::Document {
  dom::parser parser;
  dom::object whole;
  dom::object entered;

  // The object that a nested field is looked for in: the entered one's, else the whole's.
  std::optional<dom::element> In(std::string_view name, std::string_view field) const {
    const std::string pointer = "/" + std::string(name) + "/" + std::string(field);
    for (const dom::object& outer : {entered, whole}) {
      dom::element found;
      if (outer.at_pointer(pointer).get(found) == simdjson::SUCCESS && !found.is_null()) {
        return found;
      }
    }
    return std::nullopt;
  }
};

ConfigFields::ConfigFields(std::unique_ptr<Document> document) : document_(std::move(document)) {}
ConfigFields::ConfigFields(ConfigFields&&) = default;
ConfigFields& ConfigFields::operator=(ConfigFields&&) = default;
ConfigFields::~ConfigFields() = default;

absl::StatusOr<ConfigFields> ConfigFields::Parse(std::string_view json_text) {
  if (json_text.size() > kMaxBytes) {
    return FieldError("JSON", std::to_string(json_text.size()) + " bytes",
                      "at most " + std::to_string(kMaxBytes));
  }
  if (json_text.empty()) return FieldError("JSON", "nothing", "one JSON object");
  auto document = std::make_unique<Document>();
  simdjson::error_code error = document->parser.allocate(json_text.size(), kMaxDepth);
  dom::element element;
  if (!error) {
    error = document->parser.parse(json_text.data(), json_text.size()).get(element);
  }
  if (error) {
    return FieldError("JSON", simdjson::error_message(error),
                      "one JSON object of at most " + std::to_string(kMaxDepth) + " levels");
  }
  if (element.get(document->whole)) {
    return FieldError("JSON", Shown(element), "an object");
  }
  if (const auto key = DuplicateKey(element)) {
    return FieldError(*key, "the key twice in one object", "each key once");
  }
  document->entered = document->whole;
  return ConfigFields(std::move(document));
}

void ConfigFields::Enter(std::string_view field) {
  const auto element = Find(document_->whole, field);
  if (!element) return;
  dom::object object;
  if (element->get(object)) return Refuse(field, Shown(*element), "an object");
  document_->entered = object;
  prefix_ = std::string(field) + '.';
}

std::string ConfigFields::NameOf(std::string_view field) const {
  return prefix_ + std::string(field);
}

void ConfigFields::Refuse(std::string_view field, std::string_view got, std::string_view expected,
                          std::string_view hint) {
  if (status_.ok()) status_ = FieldError(NameOf(field), got, expected, hint);
}

void ConfigFields::RefuseIfPresent(std::string_view field, std::string_view expected) {
  if (const auto element = Find(document_->entered, field)) {
    Refuse(field, Shown(*element), expected);
  }
}

bool ConfigFields::Has(std::string_view field) const {
  return Find(document_->entered, field).has_value();
}

std::optional<int64_t> ConfigFields::OptionalInt(std::string_view field, int64_t low,
                                                 int64_t high) {
  const auto element = Find(document_->entered, field);
  if (!element) return std::nullopt;
  int64_t value = low;
  if (!ToInt(*element, low, high, &value)) {
    Refuse(field, Shown(*element), RangeText("a whole number", low, high));
    return low;
  }
  return value;
}

int64_t ConfigFields::Int(std::string_view field, int64_t low, int64_t high) {
  const auto value = OptionalInt(field, low, high);
  if (!value) Refuse(field, "nothing", RangeText("a whole number", low, high));
  return value.value_or(low);
}

int64_t ConfigFields::Int(std::string_view field, int64_t low, int64_t high,
                          int64_t default_value) {
  return OptionalInt(field, low, high).value_or(default_value);
}

double ConfigFields::Number(std::string_view field, double low, double high, double default_value) {
  const auto element = Find(document_->entered, field);
  double value = default_value;
  if (!element || (!element->get(value) && value >= low && value <= high)) return value;
  Refuse(field, Shown(*element), absl::StrCat("a number from ", low, " to ", high));
  return default_value;
}

std::string ConfigFields::Word(std::string_view field, const std::vector<std::string>& words) {
  const auto element = Find(document_->entered, field);
  std::string_view value;
  if (!element) return words.front();
  if (!element->get(value) && std::ranges::find(words, value) != words.end()) {
    return std::string(value);
  }
  Refuse(field, Shown(*element), absl::StrCat("one of ", absl::StrJoin(words, ", ")));
  return words.front();
}

std::optional<ConfigFields> ConfigFields::Object(std::string_view field) const {
  const auto element = Find(document_->entered, field);
  if (!element || !element->is_object()) return std::nullopt;
  return Parse(simdjson::minify(*element)).value();
}

// Of the entered object or, if it lacks an inherited field, of the whole.
template <typename T>
std::optional<T> ConfigFields::Value(std::string_view field, bool inherited,
                                     std::string_view expected) {
  auto element = Find(document_->entered, field);
  std::string name = NameOf(field);
  if (!element && inherited) {
    element = Find(document_->whole, field);
    name = field;
  }
  if (!element) return std::nullopt;
  T value{};
  if (!element->get(value)) return value;
  if (status_.ok()) status_ = FieldError(name, Shown(*element), expected);
  return std::nullopt;
}

bool ConfigFields::Bool(std::string_view field, bool default_value) {
  return Value<bool>(field, /*inherited=*/false, "true or false").value_or(default_value);
}

bool ConfigFields::InheritedBool(std::string_view field, bool default_value) {
  return Value<bool>(field, /*inherited=*/true, "true or false").value_or(default_value);
}

std::optional<std::string> ConfigFields::String(std::string_view field) {
  const auto value = Value<std::string_view>(field, /*inherited=*/false, "a string");
  return value ? std::optional<std::string>(*value) : std::nullopt;
}

std::optional<std::string> ConfigFields::InheritedString(std::string_view field) {
  const auto value = Value<std::string_view>(field, /*inherited=*/true, "a string");
  return value ? std::optional<std::string>(*value) : std::nullopt;
}

template <typename T, typename Get>
std::optional<std::vector<T>> ConfigFields::List(std::string_view field, std::string_view expected,
                                                 Get get) {
  const auto element = Find(document_->entered, field);
  if (!element) return std::nullopt;
  std::vector<T> values;
  dom::array array;
  bool good = !element->get(array) && array.size() <= kMaxElements;
  if (good) {
    for (const dom::element inner : array) good = good && get(inner, values.emplace_back());
  }
  if (good) return values;
  Refuse(field, Shown(*element), expected);
  return std::nullopt;
}

std::optional<std::vector<int64_t>> ConfigFields::Ints(std::string_view field, int64_t low,
                                                       int64_t high) {
  return List<int64_t>(
      field, RangeText("a list of whole numbers", low, high),
      [&](const dom::element& inner, int64_t& value) { return ToInt(inner, low, high, &value); });
}

std::optional<std::vector<std::string>> ConfigFields::Strings(std::string_view field) {
  return List<std::string>(field, "a list of strings",
                           [](const dom::element& inner, std::string& value) {
                             std::string_view text;
                             if (inner.get(text)) return false;
                             value = text;
                             return true;
                           });
}

std::optional<std::string> ConfigFields::StringIn(std::string_view object, std::string_view field) {
  const auto element = document_->In(object, field);
  std::string_view value;
  if (!element || element->get(value)) return std::nullopt;
  return std::string(value);
}

std::optional<int64_t> ConfigFields::IntIn(std::string_view object, std::string_view field,
                                           int64_t low, int64_t high) {
  const auto element = document_->In(object, field);
  int64_t value = 0;
  if (!element || !ToInt(*element, low, high, &value)) return std::nullopt;
  return value;
}

}  // namespace kvblocks
