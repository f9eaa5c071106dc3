#include "kvblocks/split_planner.h"

#include <utility>

#include "checks/ceil_div.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kMaxPieces = int64_t{1} << 26;

// Tiles of a request, at least one: an empty request still writes its output.
int64_t NumTiles(const KvGroupKey& type, absl::Span<const int32_t> seq_lens,
                 absl::Span<const int32_t> extra_lens, size_t b, int64_t tile) {
  int64_t tiles = CeilDiv(seq_lens[b] - FirstKey(seq_lens[b], type), tile);
  if (!extra_lens.empty()) tiles += CeilDiv(extra_lens[b], tile);
  return std::max<int64_t>(1, tiles);
}

absl::Status CheckSameSize(const char* operation, absl::Span<const int32_t> seq_lens,
                           absl::Span<const int32_t> extra_lens) {
  if (extra_lens.empty() || extra_lens.size() == seq_lens.size()) return absl::OkStatus();
  return InvalidArgument(operation, ": extra_lens has ", extra_lens.size(), " entries, seq_lens ",
                         seq_lens.size(), "; they must be as many, or extra_lens empty");
}

// Keys per tile as the policy counts them.
int64_t TileOf(const SplitPlanInput& input) {
  if (input.policy.kind == SplitPolicy::Kind::kFixed) return input.policy.value;
  const bool whole_blocks =
      input.policy.kind == SplitPolicy::Kind::kCount && input.type.block_size > 0;
  return whole_blocks ? input.type.block_size : input.tile;
}

// Tiles and pieces are numbered in 32 bits; kMaxPieces bounds memory besides.
absl::Status CheckPieces(const SplitPlanInput& input) {
  int64_t pieces = input.policy.kind == SplitPolicy::Kind::kAuto ? input.num_parts : 0;
  for (size_t b = 0; b < input.seq_lens.size(); ++b) {
    const int64_t tiles = NumTiles(input.type, input.seq_lens, input.extra_lens, b, TileOf(input));
    if (tiles > kMaxInt32) {
      return InvalidArgument("PlanDecode: request ", b, " has ", tiles, " tiles; at most ",
                             kMaxInt32, ", take larger ones");
    }
    if (input.policy.kind == SplitPolicy::Kind::kFixed) {
      pieces += tiles;
    } else if (input.policy.kind == SplitPolicy::Kind::kCount) {
      pieces += std::min(tiles, input.policy.value);
    } else {
      ++pieces;
    }
  }
  if (pieces <= kMaxPieces) return absl::OkStatus();
  return InvalidArgument("PlanDecode: a plan of up to ", pieces, " pieces; at most ", kMaxPieces,
                         ", take fewer parts or larger pieces");
}

absl::Status CheckInput(const SplitPlanInput& input) {
  KVBLOCKS_RETURN_IF_ERROR(CheckSameSize("PlanDecode", input.seq_lens, input.extra_lens));
  for (const absl::Span<const int32_t> lens : {input.seq_lens, input.extra_lens}) {
    for (size_t b = 0; b < lens.size(); ++b) {
      if (lens[b] >= 0) continue;
      return InvalidArgument("PlanDecode: request ", b, " has length ", lens[b],
                             "; it must not be negative");
    }
  }
  if (input.tile < 1 || input.tile > kMaxInt32 || input.overhead < 0 ||
      input.overhead > kMaxInt32 || input.num_parts < 1) {
    return InvalidArgument("PlanDecode: tile is ", input.tile, ", overhead ", input.overhead,
                           ", num_parts ", input.num_parts,
                           "; tile and num_parts must be at least 1, overhead not negative");
  }
  const int64_t block_size = input.type.block_size;
  if (block_size < 0 || input.type.window < 0) {
    return InvalidArgument("PlanDecode: type is ", DebugString(input.type),
                           "; nothing in it may be negative");
  }
  const int64_t value = input.policy.value;
  if (input.policy.kind == SplitPolicy::Kind::kFixed &&
      (value < 1 || value > kMaxInt32 || (block_size > 0 && value % block_size != 0))) {
    return InvalidArgument("PlanDecode: pieces of Fixed(", value,
                           ") tokens; they must be a positive multiple of the block size ",
                           block_size);
  }
  if (input.policy.kind == SplitPolicy::Kind::kCount && value < 1) {
    return InvalidArgument("PlanDecode: Count(", value, ") pieces; there must be at least 1");
  }
  return CheckPieces(input);
}

}  // namespace

std::string DebugString(const KvGroupKey& key) {
  return absl::StrCat("{block_size=", key.block_size, ", window=", key.window,
                      ", compression_ratio=", key.compression_ratio, "}");
}

int32_t NumParts(int32_t num_multiprocessors, int64_t num_kv_heads, int64_t rows,
                 int64_t rows_per_tile) {
  return static_cast<int32_t>(
      std::max<int64_t>(1, num_multiprocessors / (num_kv_heads * CeilDiv(rows, rows_per_tile))));
}

void AppendCuts(const SplitPlan& plan, int64_t request, int64_t seq_len,
                std::vector<int64_t>& cuts) {
  const int64_t first_key = FirstKey(seq_len, plan.type);
  for (int32_t s = plan.split_offsets[request] + 1; s < plan.split_offsets[request + 1]; ++s) {
    cuts.push_back(first_key + plan.ranges[s].begin_tile * plan.tile);
  }
}

SplitPlanner::SplitPlanner(int64_t max_num_reqs, int64_t max_num_parts) {
  ranges_.reserve(static_cast<size_t>(max_num_reqs + max_num_parts));
  parts_.reserve(static_cast<size_t>(max_num_reqs + max_num_parts));
  split_offsets_.reserve(static_cast<size_t>(max_num_reqs) + 1);
  split_offsets_.push_back(0);
  plan_.split_offsets = split_offsets_;
}

absl::Status SplitPlanner::Plan(const SplitPlanInput& input) {
  KVBLOCKS_RETURN_IF_ERROR(CheckInput(input));
  ranges_.clear();
  parts_.clear();
  split_offsets_.assign(1, 0);
  plan_ = SplitPlan();
  plan_.type = input.type;
  plan_.policy = input.policy;
  plan_.tile = TileOf(input);
  if (input.policy.kind == SplitPolicy::Kind::kAuto) {
    PlanParts(input);
  } else {
    PlanPieces(input);
  }
  for (SplitPart& part : parts_) {
    if (part.idle()) continue;
    const SplitRange& first = ranges_[static_cast<size_t>(part.begin_range)];
    const SplitRange& last = ranges_[static_cast<size_t>(part.end_range - 1)];
    const auto is_cut = [this](const SplitRange& range) {
      const size_t b = static_cast<size_t>(range.request);
      return static_cast<int32_t>(split_offsets_[b + 1] - split_offsets_[b] > 1);
    };
    part.first_request = first.request;
    part.first_tile = first.begin_tile;
    part.first_split = part.begin_range - split_offsets_[static_cast<size_t>(first.request)];
    part.last_request = last.request;
    part.last_end_tile = last.end_tile;
    part.first_is_cut = is_cut(first);
    part.last_is_cut = is_cut(last);
  }
  plan_.ranges = ranges_;
  plan_.parts = parts_;
  plan_.split_offsets = split_offsets_;
  return absl::OkStatus();
}

void SplitPlanner::PlanParts(const SplitPlanInput& input) {
  const size_t num_reqs = input.seq_lens.size();
  int64_t work = 0;
  for (size_t b = 0; b < num_reqs; ++b) {
    work += NumTiles(input.type, input.seq_lens, input.extra_lens, b, input.tile) + input.overhead;
  }
  plan_.payload = CeilDiv(work, input.num_parts) + input.overhead;
  size_t b = 0;
  int64_t done = 0;  // tiles of request b that earlier parts took
  for (int32_t part = 0; part < input.num_parts; ++part) {
    parts_.emplace_back();
    parts_.back().begin_range = static_cast<int32_t>(ranges_.size());
    int64_t room = plan_.payload;
    while (b < num_reqs) {
      const int64_t tiles = NumTiles(input.type, input.seq_lens, input.extra_lens, b, input.tile);
      const int64_t taken = std::min(tiles - done, room - input.overhead);
      if (taken <= 0) break;
      ranges_.push_back({static_cast<int32_t>(b), static_cast<int32_t>(done),
                         static_cast<int32_t>(done + taken)});
      room -= taken + input.overhead;
      done += taken;
      if (done < tiles) break;
      done = 0;
      ++b;
      split_offsets_.push_back(static_cast<int32_t>(ranges_.size()));
    }
    parts_.back().end_range = static_cast<int32_t>(ranges_.size());
  }
}

void SplitPlanner::PlanPieces(const SplitPlanInput& input) {
  for (size_t b = 0; b < input.seq_lens.size(); ++b) {
    const int64_t tiles = NumTiles(input.type, input.seq_lens, input.extra_lens, b, plan_.tile);
    int64_t step = tiles;
    if (input.policy.kind == SplitPolicy::Kind::kFixed) step = 1;
    if (input.policy.kind == SplitPolicy::Kind::kCount) step = CeilDiv(tiles, input.policy.value);
    for (int64_t begin = 0; begin < tiles; begin += step) {
      parts_.emplace_back();
      parts_.back().begin_range = static_cast<int32_t>(ranges_.size());
      ranges_.push_back({static_cast<int32_t>(b), static_cast<int32_t>(begin),
                         static_cast<int32_t>(std::min(tiles, begin + step))});
      parts_.back().end_range = static_cast<int32_t>(ranges_.size());
    }
    split_offsets_.push_back(static_cast<int32_t>(ranges_.size()));
  }
}

absl::Status CheckPlanFits(const char* operation, const SplitPlan& plan, const KvGroupKey& type,
                           absl::Span<const int32_t> seq_lens,
                           absl::Span<const int32_t> extra_lens) {
  KVBLOCKS_RETURN_IF_ERROR(CheckSameSize(operation, seq_lens, extra_lens));
  if (!(plan.type == type)) {
    return FailedPrecondition(operation, ": the plan was made for layers of ",
                              DebugString(plan.type), ", this one is ", DebugString(type),
                              "; plan once per type of layer");
  }
  if (plan.tile < 1 || static_cast<size_t>(plan.num_requests()) != seq_lens.size()) {
    return FailedPrecondition(operation, ": the plan has ", plan.num_requests(),
                              " requests, the batch ", seq_lens.size(),
                              "; plan again for this step");
  }
  for (size_t b = 0; b < seq_lens.size(); ++b) {
    const int64_t tiles = NumTiles(type, seq_lens, extra_lens, b, plan.tile);
    const int64_t planned =
        plan.ranges[static_cast<size_t>(plan.split_offsets[b + 1] - 1)].end_tile;
    if (tiles == planned) continue;
    return FailedPrecondition(operation, ": request ", b, ": the plan has ", planned, " tiles of ",
                              plan.tile, " keys, length ", seq_lens[b], " needs ", tiles,
                              "; plan again for this step");
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
