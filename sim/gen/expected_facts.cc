
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/gen/distributions.h"
#include "sim/gen/fixed_math.h"
#include "sim/gen/generator.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

// Sums over the turns of one session, on average.
struct SessionSums {
  double requests = 0, input = 0, output = 0;
  double hits_without_system = 0;  // what turns find of their own session
  double system = 0;               // the prompt that it begins with
};

bool HasTokenSums(const pb::Kind& kind) {
  return kind.fork() == 0 && kind.agent().context_limit() == 0 && kind.agent().delegate() == 0;
}

bool HasHitRate(const pb::Kind& kind) {
  return !kind.has_fewshot() && !kind.has_rag() && kind.duplicate() == 0;
}

// Lengths of a kind's system prompts and the chance of each.
std::vector<std::pair<double, double>> Groups(const pb::Kind& kind, int index, uint64_t seed) {
  std::vector<std::pair<double, double>> groups;
  if (!kind.has_system()) return groups;
  const ZipfDistribution zipf(kind.system().alpha(), kind.system().groups());
  for (int64_t g = 1; g <= kind.system().groups(); ++g) {
    Draws draws(seed, absl::StrCat("system", index), static_cast<uint64_t>(g));
    groups.emplace_back(static_cast<double>(DrawWhole(kind.system().tokens(), draws, 0)),
                        zipf.Probability(g));
  }
  return groups;
}

SessionSums SumsOf(const pb::Kind& kind, double system) {
  Moments turns = {1, 1};
  if (kind.has_turns()) turns = WholeMoments(kind.turns(), 1);
  const double samples = kind.has_samples() ? static_cast<double>(kind.samples()) : 1;
  const double first = WholeMoments(kind.user(), 1).mean;
  const double later =
      kind.has_agent() ? WholeMoments(kind.agent().tool_tokens(), 1).mean : first;
  const double answer = WholeMoments(kind.answer(), 1).mean;
  double base = system, documents = 0;
  if (kind.has_fewshot()) {
    base += static_cast<double>(kind.fewshot().examples()) *
            WholeMoments(kind.fewshot().tokens(), 0).mean;
  }
  if (kind.has_rag()) {
    documents = static_cast<double>(kind.rag().per_question()) *
                WholeMoments(kind.rag().tokens(), 0).mean;
  }
  const double earlier = (turns.mean_square - turns.mean) / 2;  // turns before each, summed
  SessionSums sums;
  sums.system = system;
  sums.requests = turns.mean * samples;
  sums.output = sums.requests * answer;
  const double prompts =
      turns.mean * (base + first + documents) + earlier * (later + answer + documents);
  sums.input = samples * prompts;
  const double before_last = earlier - turns.mean + 1;  // turns before the one before, summed
  sums.hits_without_system = (turns.mean - 1) * (base + first) + before_last * later +
                             earlier * answer + (samples - 1) * prompts;
  return sums;
}

}  // namespace

std::optional<ExpectedFacts> ExpectedFactsOf(const pb::Workload& workload) {
  if (workload.has_fit()) return std::nullopt;
  const uint64_t seed = workload.has_seed() ? workload.seed() : 1;
  double shares = 0;
  bool has_hits = true;
  for (const pb::Kind& kind : workload.kind()) {
    if (!HasTokenSums(kind)) return std::nullopt;
    has_hits = has_hits && HasHitRate(kind);
    shares += kind.has_share() ? kind.share() : 1;
  }
  std::vector<std::vector<std::pair<double, double>>> groups;
  std::vector<SessionSums> sums;
  double per_session = 0;
  for (int k = 0; k < workload.kind_size(); ++k) {
    const pb::Kind& kind = workload.kind(k);
    groups.push_back(Groups(kind, k, seed));
    double system = 0;
    for (const auto& [tokens, chance] : groups.back()) system += tokens * chance;
    sums.push_back(SumsOf(kind, system));
    per_session += (kind.has_share() ? kind.share() : 1) / shares * sums.back().requests;
  }
  double sessions = static_cast<double>(workload.sessions());
  if (workload.requests() > 0) {
    const double enough = static_cast<double>(workload.requests()) / per_session;
    // Cut off while most sessions go on, it has more first turns than they have.
    if (per_session > 1 && (sessions == 0 || sessions > 2 * enough)) return std::nullopt;
    sessions = workload.sessions() > 0 ? std::min(sessions, enough) : enough;
  }
  ExpectedFacts facts;
  double hits = 0;
  for (int k = 0; k < workload.kind_size(); ++k) {
    const pb::Kind& kind = workload.kind(k);
    const double share = (kind.has_share() ? kind.share() : 1) / shares;
    const SessionSums& sum = sums[static_cast<size_t>(k)];
    facts.requests += sessions * share * sum.requests;
    facts.input_tokens += sessions * share * sum.input;
    facts.output_tokens += sessions * share * sum.output;
    hits += sessions * share * (sum.hits_without_system + sum.system);
    // The first session of each group finds nothing of its prompt.
    for (const auto& [tokens, chance] : groups[static_cast<size_t>(k)]) {
      const double none = 1 - share * chance;
      hits -= tokens * (1 - (none > 0 ? FixedPow(none, sessions) : 0));
    }
  }
  if (has_hits && facts.input_tokens > 0) facts.hit_rate = hits / facts.input_tokens;
  return facts;
}

}  // namespace kvblocks::sim
