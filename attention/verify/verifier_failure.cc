// KvCacheVerifier: what went wrong, as exactly as can be told. Slow and rare: a run has one
// failure.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/attention/verify/kv_cache_verifier.h"

namespace kvblocks::attention {

// Completes the failure's text with where it is, and ends the run.
absl::Status KvCacheVerifier::Fail(VerifierFailure failure) {
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
absl::Status KvCacheVerifier::FailedOperation(size_t layer, const char* operation,
                                              const absl::Status& status) {
  if (status.ok()) return status;
  return Fail({.layer = static_cast<int64_t>(layer),
               .text = absl::StrCat(operation, " was refused: ", status.ToString())});
}

std::string KvCacheVerifier::NameOf(uint64_t request) const {
  const auto it = held_.find(request);
  return it == held_.end() ? absl::StrCat("#", request, " (gone)") : it->second->name;
}

// What stands where a row should be, and what happened to its block.
std::string KvCacheVerifier::DescribeRow(size_t layer, const Held& held, int64_t row) const {
  const VerifiedGroup& group = GroupOf(layer);
  const int32_t block = BlockOfRow(layers_[layer].group, held, row);
  const int64_t offset = row % BlockRows(group);
  return absl::StrCat("row ", offset, " of block ", block, ", where token ", TokenOfRow(group, row),
                      " should be, ", DescribeBlock(layer, block, offset));
}

std::string KvCacheVerifier::DescribeBlock(size_t layer, int32_t block, int64_t offset) const {
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

absl::Status KvCacheVerifier::WrongRow(size_t layer, const Part& part, int64_t row) {
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

absl::Status KvCacheVerifier::WrongOutput(size_t layer, const Query& query,
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
