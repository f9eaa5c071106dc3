// HitRateMetrics: the sections on hits and misses - how much of the prompts the prefix cache
// served - over the whole run, after a warm-up, and over the last 1,000 requests. Below it: whose
// prompts hit (HitGroups), and how near to their eviction hit blocks were (HitReuseSection).
//
// All rates count first admissions, in admission order; resumes after a preemption are counted
// separately, because a request that finds its own blocks again says nothing about the workload.
// Every rate comes with numerator and denominator. Cost: O(1) per admission; 24 bytes per request
// if the warm-up is a share of the requests, else O(1) memory.

#ifndef KVBLOCKS_SIM_REPORT_HIT_RATE_METRICS_H_
#define KVBLOCKS_SIM_REPORT_HIT_RATE_METRICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "sim/report/distribution.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

// Which requests a rate leaves out at the beginning.
struct Warmup {
  enum class Kind { kShare, kRequests, kTime };
  Kind kind = Kind::kShare;
  int64_t share_ppm = 500'000;  // of the requests, rounded down
  int64_t requests = 0;
  SimTime time = 0;  // admissions before it
};

// "0.5" (share), "1000" (requests), "60s" (time).
// `name` is for messages: a cool-down is written and leaves out alike, at the end.
absl::StatusOr<Warmup> ParseWarmup(std::string_view text, const char* name = "warmup");
std::string DescribeWarmup(const Warmup& warmup);

class HitRateMetrics final : public ReportSection {
 public:
  static constexpr size_t kRollingRequests = 1000;

  struct Options {
    Warmup warmup;
    // Count as old engines did: every attempt, resumes included.
    bool legacy_counters = false;
  };
  HitRateMetrics(const Options& options, const SharedFacts* facts)
      : options_(options), facts_(facts) {}

  void OnRunStart(const RunInfo& info) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;

  // Whole run, warm-up, rolling window, counters, misses and histograms.
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

  // Of first admissions so far.
  int64_t num_queried_tokens() const { return whole_.queried; }
  int64_t num_hit_tokens() const { return whole_.hit; }

 private:
  // One first admission; lengths of a trace fit 31 bits, and with output 32.
  struct Sample {
    uint32_t queried, hit, possible;
    uint32_t full_blocks, hit_blocks;
  };
  struct Sums {
    int64_t requests = 0;
    int64_t queried = 0, hit = 0, possible = 0;
    int64_t full_blocks = 0, hit_blocks = 0;
    int64_t requests_with_hit = 0;
    double ratios = 0;

    void Add(const Sample& sample);
    void Fill(const std::string& window, ::kvblocks::report::v1::HitRates* out) const;
  };
  // Of evicted misses, since their last use.
  struct Reuse {
    Distribution age, distance;

    void Add(absl::Span<const EvictedRun> runs);
    void Fill(::kvblocks::report::v1::EvictedReuse* out);
  };
  using Histogram = std::array<int64_t, 48>;
  struct PartialSums {
    int64_t hits = 0, tokens = 0;
  };

  void CountPartialHit(const AdmissionRecord& record);

  static void FillHistogram(const Histogram& counts, ::kvblocks::report::v1::LengthHistogram* out);
  static void FillMisses(const MissCounts& blocks, int64_t block_tokens,
                         ::kvblocks::report::v1::MissCauses* out);

  const Options options_;
  const SharedFacts* const facts_;
  int64_t block_tokens_ = 0;
  bool has_partial_hits_ = false;
  int64_t whole_block_tokens_ = 1;  // blocks of all groups end at multiples of it
  PartialSums first_partial_, resume_partial_;
  Sums whole_;
  Sums after_warmup_;            // unless the warm-up is a share
  std::vector<Sample> samples_;  // if it is
  std::vector<Sample> last_;     // ring of the rolling window
  size_t next_last_ = 0;
  int64_t admissions_ = 0, resumes_ = 0, attempts_ = 0;
  int64_t resume_queried_ = 0, resume_hit_ = 0;
  int64_t attempt_queried_ = 0, attempt_hit_ = 0;
  MissCounts first_misses_ = {};
  MissCounts resume_misses_ = {};
  Reuse first_reuse_, resume_reuse_;
  Histogram hit_lengths_ = {};
  Histogram missing_at_ = {};
};

// HitGroups: the section `hit_groups` - who hits the prefix cache: tenants, latency classes,
// session turns, and the prompts that start alike.
//
// Counts first admissions, as HitRateMetrics does: the sums over tenants, over classes and over
// turns are each those of the whole run. A prefix group is all prompts with the same first full
// block (content and scope: salt, adapter, and whatever the trace says separates ids); prompts
// shorter than a block are in none.
//
// Cost: two or three table look-ups per admission. Memory: 40 bytes per distinct first block, and
// one entry per tenant and class.
class HitGroups final : public ReportSection {
 public:
  static constexpr size_t kMinTopPrefixes = 10;
  // Of tenants and of classes; the last one stands for all further ones.
  static constexpr size_t kMaxNames = 100;
  // The last turn counted separately is kNumTurns - 2.
  static constexpr size_t kNumTurns = 17;

  // Lists `top_prefixes` groups, at least kMinTopPrefixes of them if there are so many.
  HitGroups(size_t top_prefixes, const SharedFacts* facts)
      : top_prefixes_(top_prefixes), facts_(facts) {}

  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* report) override;

 private:
  struct Sums {
    int64_t requests = 0, queried = 0, hit = 0;

    void Add(int64_t num_requests, int64_t num_queried, int64_t num_hit) {
      requests += num_requests;
      queried += num_queried;
      hit += num_hit;
    }
  };
  struct Prefix {
    Sums sums;
    int64_t first_row = 0;
  };
  using Names = std::map<std::string, Sums>;

  static void FillOne(const std::string& name, const Sums& sums,
                      ::kvblocks::report::v1::HitGroup* out);
  static void FillNames(const Names& names,
                        google::protobuf::RepeatedPtrField<::kvblocks::report::v1::HitGroup>* out);

  const size_t top_prefixes_;
  const SharedFacts* const facts_;
  Names tenants_, classes_;
  std::array<Sums, kNumTurns> turns_ = {};
  absl::flat_hash_map<uint64_t, Prefix> prefixes_;
};

// HitReuseSection: the section `hit_reuse` - how near to their eviction hit blocks were, and how
// long ago they were used.
//
// A free block's place in the queue is known by walking it. So admissions are sampled: one whenever
// as many blocks as the pool has were handed out or hit since the last one. That costs one step of
// a walk per block handed out or hit, a few nanoseconds. Which admissions are sampled depends on
// blocks alone, not on what their look-ups find. One that fails is not made up for.
class HitReuseSection final : public ReportSection {
 public:
  static constexpr int kNumPlaces = 20;

  explicit HitReuseSection(SharedFacts* facts) : facts_(facts) {}

  void OnRunStart(const RunInfo& info) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  void Sample(const AdmissionRecord& record);

  SharedFacts* const facts_;
  const KvCacheManager* manager_ = nullptr;
  std::optional<GroupId> group_;  // whose hits are looked at
  bool has_places_ = false;       // the queue is in the order of reuse
  int64_t num_hits_ = 0, num_taken_ = 0;  // blocks hit since the last sample; taken up to it
  std::vector<int32_t> places_;           // scratch: from the front of the queue, by block

  // Of the attempt that was sampled, until it succeeds.
  bool is_staged_ = false;
  int64_t staged_in_use_ = 0;
  std::array<int64_t, kNumPlaces> staged_places_ = {};

  int64_t admissions_ = 0, hit_blocks_ = 0, in_use_blocks_ = 0;
  std::array<int64_t, kNumPlaces> blocks_by_place_ = {};
  Distribution distance_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_HIT_RATE_METRICS_H_
