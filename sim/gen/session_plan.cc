#include "sim/gen/session_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/gen/workload_spec.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

constexpr int64_t kMostTurns = 1024;
constexpr size_t kMostRequests = 16384;  // of a session; it ends when it has as many

// What a piece is of; part of its key.
enum PieceSort : uint64_t { kSystem = 1, kExample, kDocument, kMessage, kSummary, kTask, kOutput };

uint64_t PieceKey(uint64_t seed, int kind, PieceSort sort, uint64_t entity, uint64_t index = 0) {
  uint64_t key = MixBits(seed ^ static_cast<uint64_t>(kind) << 8 ^ sort);
  key = MixBits(key ^ entity);
  return MixBits(key + index);
}

int64_t ToNs(double seconds) { return static_cast<int64_t>(std::floor(seconds * 1e9 + 0.5)); }

int64_t TokensOf(const std::vector<ContentPiece>& content) {
  int64_t tokens = 0;
  for (const ContentPiece& piece : content) tokens += piece.tokens;
  return tokens;
}

}  // namespace

void BlockIds(const std::vector<ContentPiece>& content, int64_t block_tokens,
              std::vector<int64_t>* ids) {
  // A block is named by the pieces that begin in it, or else by the last that began before and the
  // number of blocks since: what came earlier is in the blocks before.
  constexpr int kIndexBits = 20;
  ids->clear();
  const int64_t tokens = TokensOf(content);
  size_t next = 0;
  int64_t next_begin = 0;
  uint64_t name = 0;
  int64_t named_at = 0;
  for (int64_t block = 0; block * block_tokens < tokens; ++block) {
    const int64_t end = (block + 1) * block_tokens;
    bool begins = false;
    for (; next < content.size() && next_begin < end; next_begin += content[next++].tokens) {
      if (content[next].tokens == 0) continue;
      name = MixBits(begins ? name ^ content[next].key : content[next].key);
      // Where in the block the second one begins is part of what the block holds.
      if (begins) name = MixBits(name + static_cast<uint64_t>(next_begin % block_tokens));
      begins = true;
      named_at = block;
    }
    // Pieces longer than 2^20 blocks would run into the name.
    const auto index = static_cast<uint64_t>(block - named_at);
    const uint64_t base = name + (index >> kIndexBits) * 0x9e3779b97f4a7c15u;
    ids->push_back(static_cast<int64_t>((base >> (kIndexBits + 2)) << kIndexBits |
                                        (index & ((uint64_t{1} << kIndexBits) - 1))));
  }
}

struct SessionPlanner::Session {
  uint64_t number;   // whose answers these are
  uint64_t content;  // whose words these are: another one's in a duplicate
  int kind_index;
  const pb::Kind& kind;
  std::vector<ContentPiece> base;  // what every conversation of the session begins with
  std::vector<PlannedRequest> plan;
  int num_streams = 1;

  // Adds a request for `prompt`, whose last piece is the answer. Returns its place.
  int Add(std::vector<ContentPiece> prompt, int64_t output, uint64_t output_key,
          std::vector<int> waits_for, int64_t think_ns, int64_t start_ns) {
    PlannedRequest request;
    request.arrival_ns = start_ns;
    for (const int place : waits_for) {
      request.arrival_ns =
          std::max(request.arrival_ns, plan[static_cast<size_t>(place)].arrival_ns + think_ns);
    }
    request.think_ns = waits_for.empty() ? 0 : think_ns;
    request.waits_for = std::move(waits_for);
    request.input_length = TokensOf(prompt);
    request.output_length = output;
    prompt.push_back({output_key, output});
    request.content = std::move(prompt);
    plan.push_back(std::move(request));
    return static_cast<int>(plan.size()) - 1;
  }
};

SessionPlanner::SessionPlanner(const pb::Workload& workload)
    : workload_(workload), seed_(workload.has_seed() ? workload.seed() : 1) {
  for (const pb::Kind& kind : workload.kind()) {
    shares_ += kind.has_share() ? kind.share() : 1;
    groups_.emplace_back(kind.system().alpha(), std::max<int64_t>(kind.system().groups(), 1));
    documents_.emplace_back(kind.rag().alpha(), std::max<int64_t>(kind.rag().documents(), 1));
  }
}

int SessionPlanner::KindOf(uint64_t session) const {
  double left = Draws(seed_, "kind", session).Uniform() * shares_;
  int kind = 0;
  for (; kind + 1 < workload_.kind_size(); ++kind) {
    left -= workload_.kind(kind).has_share() ? workload_.kind(kind).share() : 1;
    if (left < 0) break;
  }
  return kind;
}

void SessionPlanner::AddSystem(Session& session) const {
  if (!session.kind.has_system()) return;
  const int k = session.kind_index;
  Draws pick(seed_, absl::StrCat("group", k), session.content);
  const auto group = static_cast<uint64_t>(groups_[static_cast<size_t>(k)](pick));
  Draws length(seed_, absl::StrCat("system", k), group);
  session.base.push_back({PieceKey(seed_, k, kSystem, group),
                          DrawWhole(session.kind.system().tokens(), length, 0)});
}

void SessionPlanner::AddExamples(Session& session) const {
  if (!session.kind.has_fewshot()) return;
  const pb::Kind::FewShot& few = session.kind.fewshot();
  const int k = session.kind_index;
  const PhiloxKey order =
      StreamKey(MixBits(seed_) + session.content, absl::StrCat("examples", k));
  for (int64_t i = 0; i < few.examples(); ++i) {
    const auto example =
        static_cast<uint64_t>(few.shuffled() ? Shuffled(i, few.pool(), order) : i);
    Draws length(seed_, absl::StrCat("example", k), example);
    session.base.push_back(
        {PieceKey(seed_, k, kExample, example), DrawWhole(few.tokens(), length, 0)});
  }
}

void SessionPlanner::AddDocuments(Session& session, Draws& draws,
                                  std::vector<ContentPiece>* message) const {
  if (!session.kind.has_rag()) return;
  const pb::Kind::Retrieval& rag = session.kind.rag();
  const int k = session.kind_index;
  std::vector<uint64_t> chosen;
  // Popular ones are drawn again and again, so after many tries the next free number is taken.
  while (static_cast<int64_t>(chosen.size()) < rag.per_question()) {
    uint64_t document = 0;
    for (int tries = 0; tries < 64; ++tries) {
      document = static_cast<uint64_t>(documents_[static_cast<size_t>(k)](draws));
      if (std::find(chosen.begin(), chosen.end(), document) == chosen.end()) break;
    }
    while (std::find(chosen.begin(), chosen.end(), document) != chosen.end()) {
      document = document % static_cast<uint64_t>(rag.documents()) + 1;
    }
    chosen.push_back(document);
  }
  if (rag.order() == pb::Kind::Retrieval::SORTED) std::sort(chosen.begin(), chosen.end());
  if (rag.order() == pb::Kind::Retrieval::RANDOM) {
    for (size_t i = chosen.size(); i > 1; --i) {
      std::swap(chosen[i - 1], chosen[static_cast<size_t>(draws.Below(static_cast<int64_t>(i)))]);
    }
  }
  for (const uint64_t document : chosen) {
    Draws length(seed_, absl::StrCat("document", k), document);
    message->push_back(
        {PieceKey(seed_, k, kDocument, document), DrawWhole(rag.tokens(), length, 0)});
  }
}

// `last` gets the last request of each, for which the parent waits.
void SessionPlanner::AddSubagents(Session& session, int parent, int64_t turn,
                                  std::vector<int>* last) const {
  const pb::Kind::Agent& agent = session.kind.agent();
  const int k = session.kind_index;
  for (int64_t i = 0; i < agent.subagents() && session.plan.size() < kMostRequests; ++i) {
    const uint64_t entity =
        MixBits(MixBits(session.number) + static_cast<uint64_t>(turn * 1024 + i));
    Draws draws(seed_, absl::StrCat("subagent", k), entity);
    const int64_t steps =
        std::min(DrawWhole(agent.subagent_steps(), draws, 1), kMostTurns);
    const int stream = session.num_streams++;
    std::vector<ContentPiece> history = session.base;
    int before = parent;
    for (int64_t step = 0; step < steps; ++step) {
      history.push_back({PieceKey(seed_, k, kTask, entity, static_cast<uint64_t>(step)),
                         DrawWhole(step == 0 ? session.kind.user() : agent.tool_tokens(), draws,
                                   1)});
      const int64_t output = DrawWhole(session.kind.answer(), draws, 1);
      const double wait = step > 0 && agent.has_tool_s() ? Draw(agent.tool_s(), draws) : 0;
      if (step > 0 && TokensOf(history) + output > kMostPromptTokens) break;
      before = session.Add(history, output,
                           PieceKey(seed_, k, kOutput, entity, static_cast<uint64_t>(step)),
                           {before}, ToNs(wait), 0);
      PlannedRequest& added = session.plan.back();
      added.stream = stream;
      added.turn = static_cast<uint32_t>(step);
      history = added.content;
    }
    last->push_back(before);
  }
}

std::vector<PlannedRequest> SessionPlanner::Plan(uint64_t number, int64_t start_ns) const {
  const int k = KindOf(number);
  const pb::Kind& kind = workload_.kind(k);
  Session session{number, number, k, kind, {}, {}};
  Draws repeat(seed_, absl::StrCat("duplicate", k), number);
  if (number > 0 && repeat.Chance(kind.duplicate())) {
    // What an earlier one of another kind said is nothing that this kind says.
    const auto other = static_cast<uint64_t>(repeat.Below(static_cast<int64_t>(number)));
    if (KindOf(other) == k) session.content = other;
  }
  AddSystem(session);
  AddExamples(session);

  Draws number_of_turns(seed_, absl::StrCat("turns", k), session.content);
  Draws user(seed_, absl::StrCat("user", k), session.content);
  Draws retrieval(seed_, absl::StrCat("rag", k), session.content);
  Draws answer(seed_, absl::StrCat("answer", k), number);
  Draws think(seed_, absl::StrCat("think", k), number);
  Draws fork(seed_, absl::StrCat("fork", k), number);
  Draws delegate(seed_, absl::StrCat("delegate", k), number);
  const int64_t turns =
      kind.has_turns() ? std::min(DrawWhole(kind.turns(), number_of_turns, 1), kMostTurns) : 1;
  const int64_t samples = kind.has_samples() ? kind.samples() : 1;
  std::vector<ContentPiece> history = session.base;
  std::vector<std::vector<ContentPiece>> prompts;  // of each turn
  std::vector<int> waits_for;
  for (int64_t turn = 0; turn < turns && session.plan.size() < kMostRequests; ++turn) {
    const auto index = static_cast<uint64_t>(turn);
    const bool is_tool = kind.has_agent() && turn > 0;
    std::vector<ContentPiece> message;
    AddDocuments(session, retrieval, &message);
    int64_t output = 0, words = 0;
    if (turn == 0 && kind.rank_correlation() != 0) {
      // Equal shares with this chance, independent ones otherwise: Spearman's is just the chance.
      const double c = kind.rank_correlation();
      const double u = user.Uniform();
      const double v = answer.Chance(std::abs(c)) ? (c > 0 ? u : 1 - u) : answer.Uniform();
      words = WholeQuantile(kind.user(), u, 1);
      output = WholeQuantile(kind.answer(), v, 1);
    } else {
      words = DrawWhole(is_tool ? kind.agent().tool_tokens() : kind.user(), user, 1);
      output = DrawWhole(kind.answer(), answer, 1);
    }
    message.push_back({PieceKey(seed_, k, kMessage, session.content, index), words});
    std::vector<ContentPiece> prompt = history;
    if (is_tool && kind.agent().context_limit() > 0 &&
        TokensOf(prompt) + TokensOf(message) > kind.agent().context_limit()) {
      prompt = session.base;
      prompt.push_back({PieceKey(seed_, k, kSummary, number, index),
                        DrawWhole(kind.agent().summary_tokens(), user, 1)});
    }
    prompt.insert(prompt.end(), message.begin(), message.end());
    if (turn > 0 && fork.Chance(kind.fork())) {
      prompt = prompts[static_cast<size_t>(fork.Below(turn))];
    }
    if (turn > 0 && TokensOf(prompt) + output > kMostPromptTokens) break;
    double wait = 0;
    if (is_tool && kind.agent().has_tool_s()) {
      wait = Draw(kind.agent().tool_s(), think);
    } else if (!is_tool && turn > 0 && kind.has_think_s()) {
      wait = Draw(kind.think_s(), think);
    }
    const int place = session.Add(prompt, output, PieceKey(seed_, k, kOutput, number, index),
                                  waits_for, ToNs(wait), start_ns);
    session.plan.back().turn = static_cast<uint32_t>(turn);
    history = session.plan.back().content;
    prompts.push_back(prompt);
    for (int64_t sample = 1; sample < samples; ++sample) {
      Draws length(seed_, absl::StrCat("sample", k), MixBits(number) + index * 1024 +
                                                         static_cast<uint64_t>(sample));
      session.Add(
          prompt, DrawWhole(kind.answer(), length, 1),
          PieceKey(seed_, k, kOutput, number, index + (static_cast<uint64_t>(sample) << 32)),
          waits_for, ToNs(wait), start_ns);
      session.plan.back().stream = session.num_streams++;
    }
    waits_for = {place};
    if (kind.has_agent() && turn + 1 < turns && delegate.Chance(kind.agent().delegate())) {
      AddSubagents(session, place, turn, &waits_for);
    }
  }
  return std::move(session.plan);
}

}  // namespace kvblocks::sim
