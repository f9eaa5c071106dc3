// The fields of KvCacheSpecOptions as a table: which kinds have them, how they are called in files
// and messages, and how they merge. Checks, ToString, Merge and the conversion from and to a
// protobuf message all walk it, so that a new field is one row here and one in the message.
//
// For this folder only.

#ifndef KVBLOCKS_SPECS_SPEC_FIELDS_H_
#define KVBLOCKS_SPECS_SPEC_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/kv_cache_spec.h"

namespace kvblocks {

enum class MergeRule {
  kSame,       // all members agree
  kWindow,     // likewise, as a conflict of its own; an unset label agrees with everything
  kAny,        // set if any member sets it
  kAlignment,  // all give the same page
};

struct SpecField {
  std::string_view name;
  // A letter per kind, in the order of KvCacheSpecKind: r required, o optional, . not there.
  std::string_view kinds;
  MergeRule merge;
  std::string_view expected = "";  // what a missing required field should have been

  bool In(KvCacheSpecKind kind) const { return kinds[static_cast<size_t>(kind)] != '.'; }
  bool RequiredIn(KvCacheSpecKind kind) const { return kinds[static_cast<size_t>(kind)] == 'r'; }
};

// Calls visit(field, pointer to member) for each, in the order in which they are printed.
template <typename Visitor>
void ForEachSpecField(Visitor&& visit) {
  using O = KvCacheSpecOptions;
  using enum MergeRule;
  constexpr std::string_view kPositive = "at least 1";
  constexpr std::string_view kBlocks = "a positive multiple of block_size";
  constexpr std::string_view kStorage = "the storage type, \"bf16\" for one";
  // Full, MLA, sink, window, window MLA, chunked, Mamba, cross, encoder-only, hidden, ring.
  visit(SpecField{"block_size", "rrrrrrrrrrr", kSame, kPositive}, &O::block_size);
  visit(SpecField{"num_kv_heads", "r.rr.r.rr..", kSame, kPositive}, &O::num_kv_heads);
  visit(SpecField{"head_size", "rrrrrr.rrrr", kSame, kPositive}, &O::head_size);
  visit(SpecField{"head_size_v", "o.oo...oo..", kSame}, &O::head_size_v);
  visit(SpecField{"states", "......r....", kSame, "at least one"}, &O::states);
  visit(SpecField{"cache_mode", "......o....", kSame}, &O::cache_mode);
  visit(SpecField{"num_speculative_blocks", "......o....", kSame}, &O::num_speculative_blocks);
  visit(SpecField{"num_checkpoint_blocks", "......o....", kSame}, &O::num_checkpoint_blocks);
  visit(SpecField{"dtype", "rrrrrr.rrrr", kSame, kStorage}, &O::dtype);
  visit(SpecField{"quant_mode", "oooooo.oo..", kSame}, &O::quant_mode);
  visit(SpecField{"sliding_window", "o.orr......", kWindow, kPositive}, &O::sliding_window);
  visit(SpecField{"bounded_replay", "....o......", kSame}, &O::bounded_replay);
  visit(SpecField{"extra_retained_tokens", "...oo......", kSame}, &O::extra_retained_tokens);
  visit(SpecField{"output_window", "oo.........", kSame}, &O::output_window);
  visit(SpecField{"attention_chunk_size", "o.o..r.....", kWindow, kBlocks},
        &O::attention_chunk_size);
  visit(SpecField{"sink_length", "..r........", kSame, kBlocks}, &O::sink_length);
  visit(SpecField{"compress_ratio", ".o..o......", kSame}, &O::compress_ratio);
  visit(SpecField{"model_version", ".o..o......", kSame}, &O::model_version);
  visit(SpecField{"alignment", ".o..o.....o", kAlignment}, &O::alignment);
  visit(SpecField{"page_size_padded", "ooooooooooo", kSame}, &O::page_size_padded);
  visit(SpecField{"indexes_kv_by_block_stride", "oooooo.oo..", kSame},
        &O::indexes_kv_by_block_stride);
  visit(SpecField{"non_causal", "ooo........", kAny}, &O::non_causal);
  visit(SpecField{"is_draft", ".o.........", kAny}, &O::is_draft);
  visit(SpecField{"upstream_compatible_page_bytes", "...oo......", kSame}, &O::page_bytes_formula);
}

inline bool KindHasField(KvCacheSpecKind kind, std::string_view name) {
  bool has = false;
  ForEachSpecField(
      [&](const SpecField& field, auto) { has = has || (field.name == name && field.In(kind)); });
  return has;
}

// Values as they are printed and written to files.
std::string FieldText(int64_t value);
std::string FieldText(bool value);
std::string FieldText(DataType value);
std::string FieldText(QuantMode value);
std::string FieldText(ModelVersion value);
std::string FieldText(MambaCacheMode value);
std::string FieldText(PageBytesFormula value);
// "49152xbf16+16x64x128xfp32": the tensors with their dimensions.
std::string FieldText(const std::vector<MambaState>& value);
template <typename T>
std::string FieldText(const std::optional<T>& value) {
  return value.has_value() ? FieldText(*value) : "unset";
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_SPEC_FIELDS_H_
