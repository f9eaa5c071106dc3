// KvCacheVerifier: what it is made from, and what it says of a failure.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/verify/verifier_run.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::attention {

namespace {

// Of heads, values, tokens per block and layers: the floats of a page fit into int64.
constexpr int64_t kMaxSize = int64_t{1} << 20;

absl::Status Bad(const std::string& field, int64_t got, const char* expected) {
  return InvalidArgument(field, ": got ", got, ", expected ", expected);
}

absl::Status CheckGroup(const VerifiedGroup& group, const std::string& field,
                        const VerifierOptions& options) {
  if (group.block_size < 1 || group.block_size > kMaxSize) {
    return Bad(field + ".block_size", group.block_size, "1 to 2^20");
  }
  if (group.num_layers < 0 || group.num_layers > kMaxSize) {
    return Bad(field + ".num_layers", group.num_layers, "0 to 2^20");
  }
  if (group.compress_ratio < 1 || group.block_size % group.compress_ratio != 0) {
    return Bad(field + ".compress_ratio", group.compress_ratio, "a divisor of the block size");
  }
  if (group.window < 0) return Bad(field + ".window", group.window, "at least 0");
  if (group.chunk < 0 || group.chunk % group.block_size != 0) {
    return Bad(field + ".chunk", group.chunk, "a multiple of the block size");
  }
  if ((group.is_state || group.is_cross) &&
      (group.is_state == group.is_cross || group.is_mla || group.window > 0 || group.chunk > 0 ||
       group.compress_ratio > 1 || !group.sink_blocks.empty() || !group.sinks.empty())) {
    return InvalidArgument(field, group.is_state ? ".is_state" : ".is_cross",
                           ": expected no latent rows, window, chunk, compression or sinks, and ",
                           "either states or an encoder's rows");
  }
  const bool is_local = group.window > 0 || group.chunk > 0;
  if (group.window > 0 && group.chunk > 0)
    return Bad(field + ".chunk", group.chunk, "no window, too");
  if (is_local && group.compress_ratio > 1) {
    return Bad(field + ".compress_ratio", group.compress_ratio, "1 with a window or chunks");
  }
  if (is_local && !group.sink_blocks.empty()) {
    return Bad(field + ".sink_blocks", static_cast<int64_t>(group.sink_blocks.size()),
               "none with a window or chunks");
  }
  if (!group.sinks.empty() && static_cast<int64_t>(group.sinks.size()) != options.num_heads) {
    return Bad(field + ".sinks", static_cast<int64_t>(group.sinks.size()), "one per head, or none");
  }
  for (const int32_t block : group.sink_blocks) {
    if (block <= kNullBlock || block >= options.num_blocks) {
      return Bad(field + ".sink_blocks", block, "blocks of the pool");
    }
  }
  return absl::OkStatus();
}

}  // namespace

RowShape ShapeOf(const VerifiedGroup& group, const VerifierOptions& options) {
  const int64_t size = options.head_size;
  if (group.is_state) return {.num_heads = 1, .num_kv_heads = 1, .key_size = size};
  RowShape shape = {.is_mla = group.is_mla,
                    .num_heads = options.num_heads,
                    .num_kv_heads = group.is_mla ? 1 : options.num_kv_heads,
                    .key_size = group.is_mla ? size + size / 2 : size,
                    .value_size = size};
  return shape;
}

absl::StatusOr<std::unique_ptr<KvCacheVerifier>> KvCacheVerifier::Create(VerifierOptions options) {
  if (options.ops == nullptr) return InvalidArgument("ops is null, expected a backend");
  if (options.num_blocks < 1 || options.num_blocks > INT32_MAX) {
    return Bad("num_blocks", options.num_blocks, "1 to 2^31 - 1");
  }
  if (options.groups.empty()) return Bad("groups", 0, "at least 1");
  if (options.num_kv_heads < 1) return Bad("num_kv_heads", options.num_kv_heads, "at least 1");
  if (options.num_heads < 1 || options.num_heads % options.num_kv_heads != 0) {
    return Bad("num_heads", options.num_heads, "a multiple of num_kv_heads");
  }
  if (options.head_size < 2 || options.head_size % 2 != 0) {
    return Bad("head_size", options.head_size, "an even number, at least 2");
  }
  if (options.max_rows_per_step < 0) {
    return Bad("max_rows_per_step", options.max_rows_per_step, "at least 0");
  }
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>("num_heads", options.num_heads),
        {"head_size", options.head_size}}) {
    if (value > kMaxSize) return Bad(field, value, "at most 2^20");
  }
  if (!(options.tolerance >= 0) || std::isinf(options.tolerance)) {
    return InvalidArgument("tolerance: got ", options.tolerance,
                           ", expected a finite number, at least 0");
  }
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const std::string field = absl::StrCat("groups[", g, "]");
    KVBLOCKS_RETURN_IF_ERROR(CheckGroup(options.groups[g], field, options));
  }
  auto verifier = std::make_unique<VerifierRun>(std::move(options));
  KVBLOCKS_RETURN_IF_ERROR(verifier->Prepare());
  return verifier;
}

// Places the layers.
absl::Status VerifierRun::Prepare() {
  std::vector<PagedMemory::Layer> layers;
  for (size_t g = 0; g < options_.groups.size(); ++g) {
    const VerifiedGroup& group = options_.groups[g];
    for (int64_t i = 0; i < group.num_layers; ++i) {
      layers_.push_back({g, i});
      layers.push_back({g, Shape(group), group.is_state ? 1 : BlockRows(group)});
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckJoints());
  KVBLOCKS_RETURN_IF_ERROR(CheckCompressors());
  for (size_t i = 0; i < options_.joints.size(); ++i) {
    const VerifiedJoint& joint = options_.joints[i];
    for (size_t a = 0; a < layers_.size(); ++a) {
      for (size_t b = 0; b < layers_.size(); ++b) {
        const Layer &window = layers_[a], &rows = layers_[b];
        if (window.group == joint.window_group && rows.group == joint.rows_group &&
            window.index == rows.index) {
          joints_.push_back({a, b, i});
        }
      }
    }
  }
  KVBLOCKS_ASSIGN_OR_RETURN(memory_,
                            PagedMemory::Create(options_.num_blocks, layers, options_.memory));
  if (options_.on_memory) {
    for (const absl::Span<std::byte> piece : memory_.allocations()) {
      KVBLOCKS_RETURN_IF_ERROR(options_.on_memory(piece));
    }
  }
  if (options_.poison) memory_.Record(kNullBlock, {}, true);
  WriteSinkRows();
  return absl::OkStatus();
}

// Completes the failure's text with where it is, and ends the run.
absl::Status VerifierRun::Fail(VerifierFailure failure) {
  failure.step = stats_.num_steps;
  if (failure.layer >= 0) failure.layer_name = LayerName(static_cast<size_t>(failure.layer));
  std::string where = absl::StrCat("step ", failure.step);
  if (!failure.request.empty()) absl::StrAppend(&where, ", request ", failure.request);
  if (failure.layer >= 0) absl::StrAppend(&where, ", ", failure.layer_name);
  if (failure.position >= 0) absl::StrAppend(&where, ", position ", failure.position);
  if (failure.block >= 0) absl::StrAppend(&where, ", block ", failure.block);
  failure.text = absl::StrCat(where, ": ", failure.text);
  failure_ = std::move(failure);
  return absl::DataLossError(failure_->text);
}

// What the backend refuses, other than misuse of this class, is a batch made of impossible tables.
absl::Status VerifierRun::FailedOperation(size_t layer, const char* operation,
                                              const absl::Status& status) {
  if (status.ok()) return status;
  return Fail({.layer = static_cast<int64_t>(layer),
               .text = absl::StrCat(operation, " was refused: ", status.ToString())});
}

std::string VerifierRun::NameOf(uint64_t request) const {
  const auto it = held_.find(request);
  return it == held_.end() ? absl::StrCat("#", request, " (gone)") : it->second->name;
}

// What stands where a row should be, and what happened to its block.
std::string VerifierRun::DescribeRow(size_t layer, const Held& held, int64_t row) const {
  const VerifiedGroup& group = GroupOf(layer);
  const int32_t block = BlockOfRow(layers_[layer].group, held, row);
  const int64_t offset = row % BlockRows(group);
  return absl::StrCat("row ", offset, " of block ", block, ", where token ", TokenOfRow(group, row),
                      " should be, ", DescribeBlock(layer, block, offset));
}

std::string VerifierRun::DescribeBlock(size_t layer, int32_t block, int64_t offset) const {
  std::string text = absl::StrCat(
      "holds ", memory_.IsPoisoned(layer, block, offset) ? "poison" : "other numbers");
  const BlockHistory& history = memory_.history(block);
  switch (history.event) {
    case BlockEvent::kNone:
      absl::StrAppend(&text, "; the block was never handed out");
      break;
    case BlockEvent::kHandedOut:
      absl::StrAppend(&text, "; the block was last handed out to request ", NameOf(history.request),
                      " in step ", history.step);
      break;
    case BlockEvent::kLost:
      absl::StrAppend(&text, "; the block was left by its last holder before the end of step ",
                      history.step, " and was not cached");
      break;
    case BlockEvent::kDropped:
      absl::StrAppend(&text, "; the engine dropped the block's content at step ", history.step);
      break;
  }
  absl::StrAppend(&text, "; tables of live requests name it ",
                  num_holders_[static_cast<size_t>(block)], " times");
  return text;
}

absl::Status VerifierRun::WrongRow(size_t layer, const Part& part, int64_t row) {
  return Fail({.request = part.held->name,
               .layer = static_cast<int64_t>(layer),
               .key_position = TokenOfRow(GroupOf(layer), row),
               .block = BlockOfRow(layers_[layer].group, *part.held, row),
               .text = absl::StrCat(
                   GroupOf(layer).is_cross
                       ? std::string("what the encoder wrote in the request's first step")
                       : absl::StrCat("the prefix of ", part.num_computed,
                                      " tokens that the request came in with"),
                   " is not there: ", DescribeRow(layer, *part.held, row))});
}

absl::Status VerifierRun::WrongOutput(size_t layer, const Query& query,
                                          absl::Span<const float> got) {
  const VerifiedGroup& group = GroupOf(layer);
  const RowShape& shape = Shape(group);
  const Held& held = *query.part->held;
  const size_t g = layers_[layer].group;
  const int64_t first = FirstVisible(group, query.position);
  const int64_t end = RowsSeen(group, held, query.position + 1);
  std::vector<double> expected(got.size());
  AttendReference(layer, query, first, true, absl::MakeSpan(expected));
  size_t worst = 0;
  while (std::abs(static_cast<double>(got[worst]) - expected[worst]) <= options_.tolerance) ++worst;

  VerifierFailure failure{.request = held.name,
                          .layer = static_cast<int64_t>(layer),
                          .position = query.position,
                          .block = BlockOfRow(g, held, end - 1)};
  failure.text = absl::StrFormat(
      "head %d, value %d is %.9g, expected %.9g from the %d rows in sight; ",
      worst / static_cast<size_t>(shape.value_size), worst % static_cast<size_t>(shape.value_size),
      got[worst], expected[worst], end - first);

  // A row that is not what its token wrote.
  for (int64_t row = first; row < end; ++row) {
    if (IsAsWritten(layer, held, row)) continue;
    failure.key_position = TokenOfRow(group, row);
    failure.block = BlockOfRow(g, held, row);
    absl::StrAppend(&failure.text, DescribeRow(layer, held, row));
    return Fail(std::move(failure));
  }

  // All rows are right, so it is how they were attended to: with other rows in sight, or sinks left
  // out.
  const auto is_result_of = [&](int64_t from, bool with_sinks) {
    AttendReference(layer, query, from, with_sinks, absl::MakeSpan(expected));
    return LargestError(got, expected) <= options_.tolerance;
  };
  if (!group.sinks.empty() && is_result_of(first, false)) {
    absl::StrAppend(&failure.text, "all rows are right; it is the result without the sinks");
    return Fail(std::move(failure));
  }
  const int64_t reach = 2 * BlockRows(group);
  for (int64_t from = std::max<int64_t>(0, first - reach); from < std::min(end, first + reach);
       ++from) {
    if (from == first || !is_result_of(from, true)) continue;
    failure.key_position = TokenOfRow(group, std::min(from, first));
    failure.block = BlockOfRow(g, held, std::min(from, first));
    absl::StrAppend(&failure.text, "all rows are right; it is the result with token ",
                    TokenOfRow(group, from), " as the first in sight, not ",
                    TokenOfRow(group, first));
    return Fail(std::move(failure));
  }
  if (std::any_of(got.begin(), got.end(), [](float value) { return std::isnan(value); }) &&
      first > 0) {
    failure.key_position = TokenOfRow(group, first - 1);
    failure.block = BlockOfRow(g, held, first - 1);
    absl::StrAppend(&failure.text,
                    "all rows are right; void rows out of sight were read, of which ",
                    "the nearest is token ", failure.key_position);
    return Fail(std::move(failure));
  }
  absl::StrAppend(&failure.text, "all rows are right, the attention over them is not");
  return Fail(std::move(failure));
}

}  // namespace kvblocks::attention
