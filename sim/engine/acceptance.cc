#include "sim/engine/acceptance.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

constexpr int kBits = 53;

// A bijection of 64-bit words whose output bits depend on all input bits.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}

// Stands for a request in whatever order it comes. An id that is a number stands for itself: that
// is how rows without a name are called.
uint64_t KeyOf(const TraceRequest& request) {
  const std::string& id = request.id;
  if (id.empty()) return static_cast<uint64_t>(request.row);
  uint64_t number;
  if (absl::SimpleAtoi(id, &number) && absl::StrCat(number) == id) return number;
  return XXH3_64bits(id.data(), id.size());
}

}  // namespace

absl::Status Validate(const AcceptanceModel& model, int64_t num_draft_tokens) {
  const size_t count = model.probabilities.size();
  switch (model.kind) {
    case AcceptanceModel::Kind::kFixed:
      if (model.fixed < 0 || model.fixed > num_draft_tokens) {
        return InvalidArgument("scheduler.acceptance.fixed is ", model.fixed, ", expected 0 to ",
                               num_draft_tokens, ", the number of draft tokens");
      }
      if (count != 0) {
        return InvalidArgument("scheduler.acceptance.probabilities has ", count,
                               " entries, expected none for a fixed number");
      }
      return absl::OkStatus();
    case AcceptanceModel::Kind::kIid:
      if (count != 1) {
        return InvalidArgument("scheduler.acceptance.probabilities has ", count,
                               " entries, expected 1 for iid");
      }
      break;
    case AcceptanceModel::Kind::kTable:
      if (count != static_cast<size_t>(num_draft_tokens)) {
        return InvalidArgument("scheduler.acceptance.probabilities has ", count,
                               " entries, expected ", num_draft_tokens, ", one per draft token");
      }
      break;
  }
  for (size_t j = 0; j < count; ++j) {
    const double p = model.probabilities[j];
    if (!(p >= 0.0 && p <= 1.0)) {  // also refuses NaN
      return InvalidArgument("scheduler.acceptance.probabilities[", j, "] is ", p,
                             ", expected 0 to 1");
    }
  }
  return absl::OkStatus();
}

AcceptanceSampler::AcceptanceSampler(const AcceptanceModel& model, int64_t num_draft_tokens)
    : fixed_(model.fixed), seed_(model.seed) {
  if (model.kind == AcceptanceModel::Kind::kFixed) return;
  for (int64_t j = 0; j < num_draft_tokens; ++j) {
    const size_t entry = model.kind == AcceptanceModel::Kind::kIid ? 0 : static_cast<size_t>(j);
    // Scaling by a power of two is exact.
    thresholds_.push_back(static_cast<uint64_t>(std::ldexp(model.probabilities[entry], kBits)));
  }
}

int64_t AcceptanceSampler::NumAccepted(const SimRequest& request, int64_t num_verified) const {
  const auto& list = request.spec.accepted_drafts;
  const size_t index = static_cast<size_t>(request.num_verifications);
  if (index < list.size()) return std::min<int64_t>(list[index], num_verified);
  if (thresholds_.empty()) return std::min(fixed_, num_verified);

  const uint64_t stream =
      Mix(Mix(Mix(seed_ + 0x9e3779b97f4a7c15u) + KeyOf(request.spec)) +
          static_cast<uint64_t>(index));
  const int64_t limit = std::min(num_verified, static_cast<int64_t>(thresholds_.size()));
  int64_t accepted = 0;
  while (accepted < limit) {
    const uint64_t draw = Mix(stream + static_cast<uint64_t>(accepted) + 1) >> (64 - kBits);
    if (draw >= thresholds_[static_cast<size_t>(accepted)]) break;
    ++accepted;
  }
  return accepted;
}

}  // namespace kvblocks::sim
