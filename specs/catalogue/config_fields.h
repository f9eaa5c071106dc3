// ConfigFields: the fields of a configuration's JSON object, read strictly.
//
// Each reader checks type and range; null counts as absent. The first problem stays and every later
// reader returns a default, so that a configuration is read straight through and status() asked
// once. The whole text is checked first: its size and depth, that it is JSON, and that no object
// has a key twice.
//
// The text must outlive nothing: all of it is copied.

#ifndef KVBLOCKS_SPECS_CATALOGUE_CONFIG_FIELDS_H_
#define KVBLOCKS_SPECS_CATALOGUE_CONFIG_FIELDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/model_facts.h"

namespace kvblocks {

class ConfigFields {
 public:
  static absl::StatusOr<ConfigFields> Parse(std::string_view json_text);

  ConfigFields(ConfigFields&&);
  ConfigFields& operator=(ConfigFields&&);
  ~ConfigFields();

  // From now on fields are read from the object `field` of the whole, if there is one.
  void Enter(std::string_view field);

  bool Has(std::string_view field) const;  // not null
  // A number in [low, high]. Without a default the field is required.
  int64_t Int(std::string_view field, int64_t low, int64_t high);
  int64_t Int(std::string_view field, int64_t low, int64_t high, int64_t default_value);
  std::optional<int64_t> OptionalInt(std::string_view field, int64_t low, int64_t high);
  double Number(std::string_view field, double low, double high, double default_value);
  bool Bool(std::string_view field, bool default_value);
  // One of `words`, by default the first.
  std::string Word(std::string_view field, const std::vector<std::string>& words);
  // The fields of an object in the entered one, if there is one; its status is its own.
  std::optional<ConfigFields> Object(std::string_view field) const;
  std::optional<std::string> String(std::string_view field);
  std::optional<std::vector<int64_t>> Ints(std::string_view field, int64_t low, int64_t high);
  std::optional<std::vector<std::string>> Strings(std::string_view field);

  // The same of the whole configuration where the entered object lacks the field.
  bool InheritedBool(std::string_view field, bool default_value);
  std::optional<std::string> InheritedString(std::string_view field);
  // Of the object `object`, of the whole or of the entered one; "a/b" is an object in another.
  std::optional<std::string> StringIn(std::string_view object, std::string_view field);
  std::optional<int64_t> IntIn(std::string_view object, std::string_view field, int64_t low,
                               int64_t high);

  // Notes a problem with a field: "FIELD: got GOT, expected EXPECTED (HINT)".
  void Refuse(std::string_view field, std::string_view got, std::string_view expected,
              std::string_view hint = "");
  // Notes a problem that somebody else found.
  void Refuse(const absl::Status& status) { status_.Update(status); }
  // Refuses a field that must not be there.
  void RefuseIfPresent(std::string_view field, std::string_view expected);

  const absl::Status& status() const { return status_; }

 private:
  struct Document;

  explicit ConfigFields(std::unique_ptr<Document> document);
  std::string NameOf(std::string_view field) const;
  template <typename T>
  std::optional<T> Value(std::string_view field, bool inherited, std::string_view expected);
  template <typename T, typename Get>
  std::optional<std::vector<T>> List(std::string_view field, std::string_view expected, Get get);

  std::unique_ptr<Document> document_;
  std::string prefix_;
  absl::Status status_;
};

// How many layers the model has.
inline int64_t ReadNumLayers(ConfigFields& fields) {
  return fields.Int("num_hidden_layers", 1, kMaxLayers);
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_CONFIG_FIELDS_H_
