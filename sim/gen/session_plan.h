// SessionPlanner: all requests of one session of a workload, as pieces of content.
//
// A piece is a text of known length that is the same wherever its key is: a system prompt, a
// document, what a user or a tool said, an answer. What a session is depends on its number, the
// seed and its kind alone.

#ifndef KVBLOCKS_SIM_GEN_SESSION_PLAN_H_
#define KVBLOCKS_SIM_GEN_SESSION_PLAN_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/gen/distributions.h"
#include "sim/gen/workload.pb.h"

namespace kvblocks::sim {

struct ContentPiece {
  uint64_t key;
  int64_t tokens;
};

struct PlannedRequest {
  int64_t arrival_ns = 0;  // as early as can be
  int64_t think_ns = 0;
  std::vector<int> waits_for;         // places in the plan, smaller than its own
  std::vector<ContentPiece> content;  // of the prompt, then one piece of the output
  int64_t input_length = 0;
  int64_t output_length = 0;
  int stream = 0;  // 0: the session itself; others are of sub-agents and parallel samples
  uint32_t turn = 0;
};

// Ids of the blocks of a text, a partial last one included. Two texts agree on a full block, and on
// all before it, if and only if their ids do.
void BlockIds(const std::vector<ContentPiece>& content, int64_t block_tokens,
              std::vector<int64_t>* ids);

class SessionPlanner {
 public:
  // `workload` must outlive this.
  explicit SessionPlanner(const workload::v1::Workload& workload);

  // Which kind a session is of.
  int KindOf(uint64_t session) const;
  // In an order in which each request comes behind those that it waits for; never empty.
  std::vector<PlannedRequest> Plan(uint64_t session, int64_t start_ns) const;

 private:
  struct Session;
  void AddSystem(Session& session) const;
  void AddExamples(Session& session) const;
  void AddDocuments(Session& session, Draws& draws, std::vector<ContentPiece>* message) const;
  void AddSubagents(Session& session, int parent, int64_t turn, std::vector<int>* last) const;

  const workload::v1::Workload& workload_;
  uint64_t seed_;
  double shares_ = 0;
  std::vector<ZipfDistribution> groups_, documents_;  // by kind
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_SESSION_PLAN_H_
