#include "sim/report/metric_list.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumValueDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

// Where in the message the walk is.
struct Place {
  std::string name;
  std::string list;
  int64_t element = 0;

  Place Field(const std::string& field) const {
    return With(absl::StrCat(name.empty() ? "" : ".", field));
  }
  Place Named(const std::string& text) const { return With(absl::StrCat("[", text, "]")); }
  Place Indexed(int64_t index) const {
    // The outermost index stands for the place in the list.
    Place place = Named(absl::StrCat(index));
    if (list.empty()) place.list = name + "[]", place.element = index;
    return place;
  }

 private:
  Place With(const std::string& part) const {
    return {name + part, list.empty() ? list : list + part, element};
  }
};

// The field that names elements of a list: the first text, the elements' own or that of the first
// message in them. Null if they have none.
const FieldDescriptor* NameField(const Descriptor* type) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field->is_repeated()) return field;
  }
  return nullptr;
}

std::string RawElementName(const Message& element) {
  if (const FieldDescriptor* field = NameField(element.GetDescriptor())) {
    return element.GetReflection()->GetString(element, field);
  }
  const FieldDescriptor* first = element.GetDescriptor()->field(0);
  const Message& inner = element.GetReflection()->GetMessage(element, first);
  return inner.GetReflection()->GetString(inner, NameField(inner.GetDescriptor()));
}

// Printable, and without the brackets that stand around it.
std::string ElementName(const Message& element) {
  constexpr size_t kMost = 80;
  return absl::StrReplaceAll(absl::CHexEscape(RawElementName(element).substr(0, kMost)),
                             {{"[", "\\x5b"}, {"]", "\\x5d"}});
}

bool HasName(const Descriptor* type) {
  if (NameField(type) != nullptr) return true;
  if (type->field_count() == 0) return false;
  const FieldDescriptor* first = type->field(0);
  return first->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !first->is_repeated() &&
         NameField(first->message_type()) != nullptr;
}

class Walk {
 public:
  explicit Walk(std::vector<Metric>* out) : out_(out) {}

  bool is_full() const { return num_bytes_ > kMostMetricBytes; }

  void Visit(const Message& message, const Place& place, const std::vector<std::string>& skip) {
    const Descriptor* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count() && !is_full(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (std::ranges::find(skip, field->name()) != skip.end()) continue;
      const Place here = place.Field(field->name());
      if (field->is_repeated()) {
        VisitList(message, field, here);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (message.GetReflection()->HasField(message, field)) {
          Visit(message.GetReflection()->GetMessage(message, field), here, {});
        }
      } else if (!field->has_presence() || message.GetReflection()->HasField(message, field)) {
        Add(message, field, -1, here);
      }
    }
  }

 private:
  void VisitList(const Message& message, const FieldDescriptor* field, const Place& place) {
    const Reflection* reflection = message.GetReflection();
    const int size = reflection->FieldSize(message, field);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < size && !is_full(); ++i) Add(message, field, i, place.Indexed(i));
      return;
    }
    const bool has_name = HasName(field->message_type());
    std::map<std::string, int> seen;
    for (int i = 0; i < size && !is_full(); ++i) {
      const Message& element = reflection->GetRepeatedMessage(message, field, i);
      if (!has_name) {
        Visit(element, place.Indexed(i), {});
        continue;
      }
      std::string name = ElementName(element);
      const int count = ++seen[name];
      if (count > 1) absl::StrAppend(&name, "#", count);
      Visit(element, place.Named(name), {});
    }
  }

  void Put(const Place& place, std::variant<__int128, double, std::string, bool> value) {
    const std::string* text = std::get_if<std::string>(&value);
    num_bytes_ += sizeof(Metric) + place.name.size() + place.list.size();
    if (text != nullptr) num_bytes_ += text->size();
    out_->push_back({place.name, place.list, place.element, std::move(value)});
  }

  // `i`: of a list, the element; -1: the field is none.
  void Add(const Message& message, const FieldDescriptor* field, int i, const Place& place) {
    const Reflection* r = message.GetReflection();
    const auto get = [&](auto of_field, auto of_list) {
      return i < 0 ? (r->*of_field)(message, field) : (r->*of_list)(message, field, i);
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(place, __int128{get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32)});
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(place, __int128{get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64)});
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(place, __int128{get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32)});
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(place, __int128{get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64)});
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Put(place, get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(place, double{get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat)});
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(place, get(&Reflection::GetBool, &Reflection::GetRepeatedBool));
      case FieldDescriptor::CPPTYPE_ENUM:
        return Put(place, get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name());
      case FieldDescriptor::CPPTYPE_STRING:
        return Put(place, get(&Reflection::GetString, &Reflection::GetRepeatedString));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return;
    }
  }

  std::vector<Metric>* out_;
  size_t num_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Metric>> ListMetrics(const Message& message,
                                                const std::vector<std::string>& skip) {
  std::vector<Metric> metrics;
  Walk walk(&metrics);
  walk.Visit(message, {}, skip);
  if (walk.is_full()) {
    return ResourceExhausted("metrics: got more than ", kMostMetricBytes,
                             " bytes of names and values, expected a report of a replay");
  }
  return metrics;
}

std::string ExactText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string ExactText(__int128 value) {
  // Differences of 64-bit numbers have at most 20 digits.
  char text[24];
  const bool is_negative = value < 0;
  auto rest = static_cast<unsigned __int128>(is_negative ? -value : value);
  char* begin = text + sizeof(text);
  do {
    *--begin = static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  return absl::StrCat(is_negative ? "-" : "",
                      std::string(begin, static_cast<size_t>(text + sizeof(text) - begin)));
}

std::string MetricText(const Metric& metric) {
  if (const auto* whole = std::get_if<__int128>(&metric.value)) return ExactText(*whole);
  if (const auto* real = std::get_if<double>(&metric.value)) return ExactText(*real);
  if (const auto* flag = std::get_if<bool>(&metric.value)) return *flag ? "true" : "false";
  return std::get<std::string>(metric.value);
}

}  // namespace kvblocks::sim
