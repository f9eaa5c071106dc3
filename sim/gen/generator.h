// Generator: the requests of a workload, in the order of arrival.
//
//   auto workload = ParseWorkload(text, "chat.txtpb");
//   std::unique_ptr<Generator> generator = MakeGenerator(*workload);
//   GeneratedRequest request;
//   while (*generator->Next(&request)) ...
//
// Always the same requests for the same workload, on every machine; a request does not change when
// the workload is made longer. Memory: the sessions that go on, or for a fitted workload all blocks
// made so far.

#ifndef KVBLOCKS_SIM_GEN_GENERATOR_H_
#define KVBLOCKS_SIM_GEN_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/gen/workload.pb.h"

namespace kvblocks::sim {

inline constexpr int64_t kDefaultBlockTokens = 16;

struct GeneratedRequest {
  // If it waits for others, a lower bound that never binds: they arrive, and think_ns passes.
  int64_t arrival_ns = 0;
  int64_t input_length = 0;
  int64_t output_length = 0;
  std::vector<int64_t> content_ids;  // of the prompt and, in sessions, of the output behind it
  bool ids_cover_output = false;
  uint64_t session = 0;            // 0: none
  uint32_t turn = 0;               // of the session, counted from 0
  std::vector<int64_t> waits_for;  // places in the order of requests, ascending
  int64_t think_ns = 0;
  std::string tenant;
};

class Generator {
 public:
  virtual ~Generator() = default;
  // False at the end. ResourceExhausted: more sessions are under way at once than fit.
  virtual absl::StatusOr<bool> Next(GeneratedRequest* out) = 0;
};

// REQUIRES: CheckWorkload accepts it.
std::unique_ptr<Generator> MakeGenerator(const workload::v1::Workload& workload);

int64_t BlockTokens(const workload::v1::Workload& workload);

// The generator of workloads that reuse prefixes as a trace did (Fit of workload.proto).
//
// Each request draws, from the tables of its phase, how deep it is found, how long ago the deepest
// block it finds was used (in distinct blocks), and how much of that path others used since. It
// then begins with the path of the block made so far that comes next to this, and goes on with new
// blocks. What could not be had exactly is carried over to the requests after it, so that the sums
// agree. Rows are drawn without replacement: after a phase each was drawn as often as it counts.
//
// A fit that is asked for more requests than it has begins its last phase again.
// REQUIRES: CheckWorkload accepts it, and it has a fit.
std::unique_ptr<Generator> MakeFittedGenerator(const workload::v1::Workload& workload);
// Eighths of `depth` blocks in which `shared` of them lie: 0 for none, at most 8.
int SharedEighths(int64_t shared, int64_t depth);

// What a workload comes to on average, by sums instead of by making it: for its header and for
// tests of the generator.
//
// Only what has a closed form is stated. With a number of requests that ends sessions of several
// requests, forks, a context limit or sub-agents nothing has;
// with examples, documents or duplicates the hit rate has none; of a fit nothing is.
struct ExpectedFacts {
  double requests = 0;
  double input_tokens = 0;
  double output_tokens = 0;
  // Of the prompts' tokens those that an infinite cache holds, prompts and outputs of all earlier
  // requests being in it; whole blocks and the last token, which is always computed, left aside.
  std::optional<double> hit_rate;
};

// Of whole sessions; where a number of requests ends the workload, as many as make that number on
// average. The system prompts' lengths are those of the seed. Milliseconds.
std::optional<ExpectedFacts> ExpectedFactsOf(const workload::v1::Workload& workload);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_GENERATOR_H_
