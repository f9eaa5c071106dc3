#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/gen/distributions.h"
#include "sim/gen/fixed_math.h"
#include "sim/gen/generator.h"
#include "sim/gen/philox.h"
#include "sim/gen/reuse_tree.h"
#include "sim/gen/workload_spec.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

constexpr size_t kBucketsAlike = 8;
constexpr int64_t kMostArrivalNs = int64_t{1} << 60;

class FittedGenerator final : public Generator {
 public:
  explicit FittedGenerator(const pb::Workload& workload)
      : workload_(workload),
        seed_(workload.has_seed() ? workload.seed() : 1),
        block_tokens_(BlockTokens(workload)) {
    num_requests_ = workload_.requests();
    if (num_requests_ == 0) {
      for (const pb::Phase& phase : workload_.fit().phase()) num_requests_ += phase.requests();
    }
    BeginPhase();
  }

  absl::StatusOr<bool> Next(GeneratedRequest* out) override {
    if (row_ == num_requests_) return false;
    if (in_phase_ == phase().requests()) {
      in_phase_ = 0;
      phase_ = std::min(phase_ + 1, workload_.fit().phase_size() - 1);
      ++num_phases_;
      BeginPhase();
    }
    Draws draws(seed_, "like", static_cast<uint64_t>(row_));
    const int64_t size = phase().requests();
    const auto draw = [&](std::string_view what) {
      return (static_cast<double>(Shuffled(in_phase_, size, Key(what))) + draws.Uniform()) /
             static_cast<double>(size);
    };
    const double length = draw("length");
    // Equal shares with this chance: the rank correlation is just the chance.
    double output = draw("output");
    if (draws.Chance(std::abs(phase().rank_correlation()))) {
      output = phase().rank_correlation() > 0 ? length : 1 - length;
    }
    arrival_ns_ = std::min(arrival_ns_ + Value(phase().gap_ns(), draw("gap")), kMostArrivalNs);
    const int64_t new_tokens =
        std::min(Value(phase().new_tokens(), length), kMostPromptTokens);
    Find(draws);
    const auto found = static_cast<int64_t>(path_.size());
    *out = GeneratedRequest();
    out->arrival_ns = arrival_ns_;
    out->input_length = std::max<int64_t>(1, found * block_tokens_ + new_tokens);
    out->output_length = std::max<int64_t>(1, Value(phase().output(), output));
    const int64_t full = out->input_length / block_tokens_;
    while (static_cast<int64_t>(path_.size()) < full) path_.push_back(tree_.Add(Last()));
    out->content_ids.assign(path_.begin(), path_.end());
    // A last block that is not full is nobody else's.
    if (out->input_length % block_tokens_ != 0) out->content_ids.push_back(tree_.Add(Last()));
    tree_.Use(path_);
    ++in_phase_;
    ++row_;
    return true;
  }

 private:
  const pb::Phase& phase() const { return workload_.fit().phase(phase_); }
  int Last() const { return path_.empty() ? ReuseTree::kNoBlock : path_.back(); }

  PhiloxKey Key(std::string_view what) const {
    return StreamKey(MixBits(seed_) + static_cast<uint64_t>(num_phases_), what);
  }

  static int64_t Value(const pb::Histogram& histogram, double share) {
    return HistogramValue(histogram, share * static_cast<double>(HistogramTotal(histogram)));
  }

  void BeginPhase() {
    ends_.clear();
    int64_t end = 0;
    for (const int64_t count : phase().count()) ends_.push_back(end += count);
  }

  // Alike within the bucket.
  static int64_t Within(int32_t bucket, Draws& draws) {
    const int64_t low = BucketLow(bucket);
    return low + draws.Below(BucketLow(bucket + 1) - low);
  }

  double LogRatio(int block, double distance) const {
    return FixedLn(static_cast<double>(tree_.Distance(block)) / distance);
  }

  // Lays the path that the request begins with.
  void Find(Draws& draws) {
    path_.clear();
    const int64_t slot = Shuffled(in_phase_, phase().requests(), Key("reuse"));
    const auto row = std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin();
    if (row == static_cast<int64_t>(ends_.size())) return;
    const auto i = static_cast<int>(row);
    const int64_t depth = std::min(Within(phase().depth(i), draws),
                                   std::max<int64_t>(1, kMostPromptTokens / block_tokens_));
    const auto distance = static_cast<double>(Within(phase().distance(i), draws));
    const int64_t eighths = phase().older(i);
    const int64_t shared_low = eighths == 0 ? 0 : (eighths - 1) * depth / 8 + 1;
    const int64_t shared_high = std::max(shared_low, eighths * depth / 8);
    const int64_t shared =
        std::min(depth - 1, shared_low + draws.Below(shared_high - shared_low + 1));
    const double wanted = static_cast<double>(depth) - carried_depth_;
    double& carried_log = carried_log_[static_cast<size_t>(phase().distance(i)) / kBucketsAlike];
    const double log_distance =
        FixedLn(distance) - std::clamp(carried_log / static_cast<double>(depth), -2.0, 2.0);
    const int block = tree_.Nearest(static_cast<int64_t>(std::floor(std::max(wanted, 1.0) + 0.5)),
                                    FixedExp(log_distance), shared);
    if (block == ReuseTree::kNoBlock) return;
    for (int b = block; b != ReuseTree::kNoBlock; b = tree_.parent(b)) path_.push_back(b);
    std::reverse(path_.begin(), path_.end());
    const int64_t found = tree_.depth(block);
    carried_depth_ += static_cast<double>(found - depth);
    carried_log += static_cast<double>(found) * LogRatio(block, distance);
    // Blocks that others used since, though they should not have been, are nearer than the deepest.
    const int64_t too_many = std::min(tree_.Shared(block) - shared, found - 1);
    if (too_many > 0) {
      const int nearer = path_[static_cast<size_t>(shared + too_many) - 1];
      carried_log += static_cast<double>(too_many) * LogRatio(nearer, distance);
    }
  }

  const pb::Workload workload_;
  const uint64_t seed_;
  const int64_t block_tokens_;
  int64_t num_requests_ = 0;
  int phase_ = 0;
  int64_t num_phases_ = 0;  // begun before this one
  int64_t in_phase_ = 0;
  int64_t row_ = 0;
  int64_t arrival_ns_ = 0;
  std::vector<int64_t> ends_;  // of the rows of the phase's table
  ReuseTree tree_{true};
  std::vector<int> path_;
  // By how much what was found so far is deeper than what was drawn, and by how much longer ago it
  // was used: natural logarithms, summed over blocks, of each octave of distances for itself.
  double carried_depth_ = 0;
  std::array<double, kMostBucket / kBucketsAlike + 1> carried_log_{};
};

}  // namespace

std::unique_ptr<Generator> MakeFittedGenerator(const pb::Workload& workload) {
  return std::make_unique<FittedGenerator>(workload);
}

int SharedEighths(int64_t shared, int64_t depth) {
  return static_cast<int>((8 * shared + depth - 1) / depth);
}

}  // namespace kvblocks::sim
