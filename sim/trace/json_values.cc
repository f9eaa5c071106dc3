#include <cctype>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/trace/decimal.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/trace_request.h"
#include "simdjson.h"

namespace kvblocks::sim {
namespace {

namespace od = simdjson::ondemand;

constexpr const char* kNotJson = "JSON: got ";
constexpr int kMaxDepth = 64;

absl::Status NotJson(simdjson::error_code error) {
  return absl::DataLossError(absl::StrCat(kNotJson, simdjson::error_message(error),
                                          ", expected one JSON object per line"));
}

std::string_view Token(od::value& value) {
  std::string_view token = value.raw_json_token();
  while (!token.empty() && (token.back() == ' ' || token.back() == '\t' || token.back() == '\r')) {
    token.remove_suffix(1);
  }
  return token;
}

std::string Raw(od::value& value) {
  const std::string_view token = Token(value);
  constexpr size_t kShown = 60;
  return std::string(token.substr(0, kShown)) + (token.size() > kShown ? "..." : "");
}

bool IsJsonNumber(std::string_view text) {
  const std::string_view whole = text.substr(text.starts_with('-') ? 1 : 0);
  const bool has_leading_zero = whole.size() > 1 && whole[0] == '0' && std::isdigit(whole[1]) != 0;
  return IsDecimal(text) && !has_leading_zero;
}

absl::Status Wrong(od::value& value, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat("got ", Raw(value), ", expected ", expected));
}

// Calls read(element) for each element of an array.
template <typename Read>
absl::Status ForEachElement(od::value& value, const char* expected, Read read) {
  od::array array;
  if (auto error = value.get_array().get(array)) {
    if (error == simdjson::INCORRECT_TYPE) return Wrong(value, expected);
    return NotJson(error);
  }
  for (auto element : array) {
    od::value inner;
    if (auto error = element.get(inner)) return NotJson(error);
    KVBLOCKS_RETURN_IF_ERROR(read(inner));
  }
  return absl::OkStatus();
}

// Calls read(key, value) for each field of an object.
template <typename Read>
absl::Status ForEachFieldOf(od::object& object, Read read) {
  for (auto result : object) {
    od::field field;
    if (auto error = std::move(result).get(field)) return NotJson(error);
    std::string_view key;
    if (auto error = field.unescaped_key().get(key)) return NotJson(error);
    od::value inner = field.value();
    KVBLOCKS_RETURN_IF_ERROR(read(key, inner));
  }
  return absl::OkStatus();
}

absl::Status SkipValue(od::value value, int depth) {
  if (depth > kMaxDepth) {
    return absl::DataLossError(
        absl::StrCat(kNotJson, "more than ", kMaxDepth, " nested levels, expected fewer"));
  }
  od::json_type type;
  if (auto error = value.type().get(type)) return NotJson(error);
  simdjson::error_code error = simdjson::SUCCESS;
  switch (type) {
    case od::json_type::array:
      return ForEachElement(
          value, "", [&](od::value& element) { return SkipValue(element, depth + 1); });
    case od::json_type::object: {
      od::object object;
      if ((error = value.get_object().get(object))) break;
      return ForEachFieldOf(object, [&](std::string_view, od::value& inner) {
        return SkipValue(inner, depth + 1);
      });
    }
    case od::json_type::number:
      // Checked as text: a number too large for a double is still JSON.
      if (!IsJsonNumber(Token(value))) error = simdjson::NUMBER_ERROR;
      break;
    case od::json_type::string:
      error = value.get_string().error();
      break;
    case od::json_type::boolean:
      error = value.get_bool().error();
      break;
    case od::json_type::null:
      error = value.is_null().error();
      break;
  }
  return error ? NotJson(error) : absl::OkStatus();
}

bool IsNumber(od::value& value) {
  od::json_type type;
  return !value.type().get(type) && type == od::json_type::number;
}

// A decimal by way of one of the functions of decimal.h.
template <typename Parse>
absl::Status ReadNumber(od::value& value, int exponent, Parse parse, int64_t* out) {
  if (!IsNumber(value)) return Wrong(value, "a number");
  const std::string_view token = Token(value);
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t scaled, parse(token, exponent));
  if (!IsJsonNumber(token)) return Wrong(value, "a JSON number");
  *out = scaled;
  return absl::OkStatus();
}

absl::Status ReadStringFrom(od::value& value, const char* expected, std::string* out) {
  std::string_view text;
  if (value.get_string().get(text)) return Wrong(value, expected);
  *out = std::string(text);
  return absl::OkStatus();
}

od::value& ValueOf(void* value) { return *static_cast<od::value*>(value); }

}  // namespace

bool IsUtf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

absl::StatusOr<bool> JsonValue::IsNull() {
  od::json_type type;
  if (ValueOf(value_).type().get(type)) {
    return absl::DataLossError(
        absl::StrCat("got ", Raw(ValueOf(value_)), ", expected a JSON value"));
  }
  if (type != od::json_type::null) return false;
  bool null;
  if (auto error = ValueOf(value_).is_null().get(null)) return NotJson(error);
  return null;
}

JsonValue::Kind JsonValue::kind() {
  od::json_type type;
  if (ValueOf(value_).type().get(type)) return Kind::kOther;
  return type == od::json_type::null     ? Kind::kNull
         : type == od::json_type::object ? Kind::kObject
         : type == od::json_type::array  ? Kind::kList
         : type == od::json_type::string ? Kind::kString
                                         : Kind::kOther;
}

absl::Status JsonValue::Skip() { return SkipValue(ValueOf(value_), 1); }

absl::Status JsonValue::ReadInteger(int64_t min, int64_t max, int64_t* out) {
  od::value& value = ValueOf(value_);
  if (value.get_int64().get(*out) || *out < min || *out > max) {
    return Wrong(value, absl::StrCat("a whole number from ", min, " to ", max));
  }
  return absl::OkStatus();
}

absl::Status JsonValue::ReadDecimal(int exponent, int64_t* out) {
  return ReadNumber(ValueOf(value_), exponent, ParseScaledDecimal, out);
}

absl::Status JsonValue::ReadRounded(int exponent, int64_t* out) {
  return ReadNumber(ValueOf(value_), exponent, ParseRoundedDecimal, out);
}

absl::Status JsonValue::ReadText(std::string* out) {
  od::value& value = ValueOf(value_);
  if (!IsNumber(value)) return ReadStringFrom(value, "a string or a number", out);
  const std::string_view token = Token(value);
  if (!IsJsonNumber(token)) return Wrong(value, "a JSON number");
  *out = std::string(token);
  return absl::OkStatus();
}

absl::Status JsonValue::ReadString(std::string* out) {
  return ReadStringFrom(ValueOf(value_), "a string", out);
}

absl::Status JsonValue::ReadId(JsonId* out) {
  od::value& value = ValueOf(value_);
  *out = JsonId();
  if (!IsNumber(value)) return ReadStringFrom(value, "a string or a whole number", &out->text);
  if (value.get_int64().get(out->integer)) {
    return Wrong(value, "a string or a whole number below 2^63");
  }
  out->is_integer = true;
  out->text = absl::StrCat(out->integer);
  return absl::OkStatus();
}

absl::Status JsonValue::ReadName(std::string* out) {
  JsonId id;
  KVBLOCKS_RETURN_IF_ERROR(ReadId(&id));
  *out = std::move(id.text);
  return absl::OkStatus();
}

absl::Status JsonValue::ReadLength(int64_t* out) { return ReadInteger(0, kMaxTraceLength, out); }

absl::Status JsonValue::ReadNames(std::vector<std::string>* out) {
  return ForEachElement(ValueOf(value_), "a list of request ids", [&](od::value& element) {
    return JsonValue(&element).ReadName(&out->emplace_back());
  });
}

absl::Status JsonValue::ReadIntegers(std::vector<int64_t>* out) {
  return ForEachElement(ValueOf(value_), "a list of whole numbers", [&](od::value& element) {
    int64_t number;
    if (element.get_int64().get(number)) return Wrong(element, "whole numbers within 64 bits");
    out->push_back(number);
    return absl::OkStatus();
  });
}

absl::Status JsonValue::ReadUint32s(std::vector<uint32_t>* out) {
  constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
  return ForEachElement(ValueOf(value_), "a list of whole numbers", [&](od::value& element) {
    int64_t number;
    KVBLOCKS_RETURN_IF_ERROR(JsonValue(&element).ReadInteger(0, kMax, &number));
    out->push_back(static_cast<uint32_t>(number));
    return absl::OkStatus();
  });
}

absl::Status JsonValue::ReadHashes(std::vector<int64_t>* out) {
  return ForEachElement(ValueOf(value_), "a list of hashes", [&](od::value& element) {
    uint64_t hash;
    int64_t number;
    if (!element.get_uint64().get(hash)) {
      out->push_back(static_cast<int64_t>(hash));
    } else if (!element.get_int64().get(number)) {
      out->push_back(number);
    } else {
      return Wrong(element, "whole numbers from 0 to 2^64-1");
    }
    return absl::OkStatus();
  });
}

absl::Status JsonValue::ReadRoundedList(int exponent, std::vector<int64_t>* out) {
  return ForEachElement(ValueOf(value_), "a list of numbers", [&](od::value& element) {
    return ReadNumber(element, exponent, ParseRoundedDecimal, &out->emplace_back());
  });
}

absl::Status JsonValue::ReadLengths(std::vector<int64_t>* out) {
  return ReadList([&](JsonValue& element) { return element.ReadLength(&out->emplace_back()); });
}

absl::Status JsonValue::ReadStrings(std::vector<std::string>* out) {
  return ReadList([&](JsonValue& element) { return element.ReadString(&out->emplace_back()); });
}

absl::Status JsonValue::ReadObject(
    const std::function<absl::Status(std::string_view key, JsonValue& value)>& on_field) {
  od::value& value = ValueOf(value_);
  od::object object;
  if (auto error = value.get_object().get(object)) {
    if (error == simdjson::INCORRECT_TYPE) return Wrong(value, "an object");
    return NotJson(error);
  }
  return ForEachFieldOf(object, [&](std::string_view key, od::value& inner) {
    JsonValue wrapped(&inner);
    return on_field(key, wrapped);
  });
}

absl::Status JsonValue::ReadList(const std::function<absl::Status(JsonValue& value)>& on_element) {
  return ForEachElement(ValueOf(value_), "a list", [&](od::value& element) {
    JsonValue wrapped(&element);
    return on_element(wrapped);
  });
}

struct JsonObjectReader::Parser {
  od::parser parser;
};

JsonObjectReader::JsonObjectReader() : parser_(std::make_unique<Parser>()) {}
JsonObjectReader::~JsonObjectReader() = default;

absl::Status JsonObjectReader::ForEachField(
    std::string_view text, size_t padding,
    const std::function<absl::Status(std::string_view key, JsonValue& value)>& on_field,
    int64_t* column) {
  *column = 0;
  od::document document;
  od::object object;
  const simdjson::padded_string_view padded(text.data(), text.size(), text.size() + padding);
  if (auto error = parser_->parser.iterate(padded).get(document)) {
    return NotJson(error);
  }
  const auto fail = [&](const absl::Status& problem) {
    // Syntax errors know where they are; wrong values are named by their field.
    const char* at;
    if (problem.code() == absl::StatusCode::kDataLoss && !document.current_location().get(at) &&
        at >= text.data() && at <= text.data() + text.size()) {
      *column = at - text.data() + 1;
    }
    return problem;
  };
  if (auto error = document.get_object().get(object)) return fail(NotJson(error));
  const absl::Status status =
      ForEachFieldOf(object, [&](std::string_view key, od::value& inner) {
        JsonValue value(&inner);
        return on_field(key, value);
      });
  if (!status.ok()) return fail(status);
  const char* rest;
  if (!document.current_location().get(rest)) {
    return fail(absl::DataLossError(
        "JSON: got more after the object's end, expected one JSON object per line"));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
