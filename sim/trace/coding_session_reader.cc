// Sessions of coding agents, as kv-cache-tester records them: one JSON document per session, one
// document per line.
//
// A session has id, block_size (64 if absent), hash_id_scope (local, the default: hash_ids mean
// something within the session only; global: in the whole file) and requests. A request has t
// (seconds), type (n or s, which are the same here), in, out, hash_ids (one per full block of the
// prompt; the rest of the prompt is shared with nobody) and may have api_time and think_time
// (seconds). An entry of type subagent has t and requests of its own, whose t count from it; they
// share the session's scope. What else the recorder writes is checked to be JSON and ignored; null
// means absent.
//
// Every session is a closed loop that starts at 0. A request waits for the one before it in its
// list and, after sub-agents, for all of them as well; the sub-agents between two requests run side
// by side. It then thinks for think_time, or, if the session does not say, for as long as the
// recording shows between the end of what it waits for (t + api_time) and t. A request after
// sub-agents thinks for the shorter of both, as it is not told whether think_time has the
// sub-agents' time in it. A sub-agent's first request takes the time that the recording shows.
//
// Always: a session is good or bad as a whole, since a loop without one of its turns is not what
// was recorded. Requests are named SESSION/INDEX, those of sub-agents SESSION/INDEX/INDEX. Memory:
// one session at a time, and one table entry per session name.

#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvblocks/sim/trace/coding_session_parser.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
// How many bad sessions a file may begin with until the block size is taken to be the usual one.
constexpr size_t kMostPending = 1000;

absl::string_view NameOf(ContentScope scope) {
  return scope == ContentScope::kGlobal ? "global" : "local";
}

// Of two times, neither negative.
int64_t Sum(int64_t a, int64_t b) { return a > kMaxInt64 - b ? kMaxInt64 : a + b; }

// A request of the session, in the order in which they are handed out.
struct Turn {
  std::string path;  // "3", or "3/1" for a sub-agent's
  int64_t input = 0;
  int64_t output = 0;
  int64_t think_ns = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t> waits_for;  // earlier turns
};

// What a later turn may have to wait for.
struct End {
  int64_t turn = -1;  // -1: the session's start
  int64_t ns = 0;     // when it ended in the recording
};

class CodingSessionReader : public RowSource {
 public:
  CodingSessionReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                      RowLog* log)
      : lines_(std::move(source), options, log),
        log_(log),
        override_block_size_(options.trace_block_size),
        require_sorted_(options.require_sorted),
        parser_(log) {
    info_.format = "coding";
    info_.name = NameOfFile(*log);
    info_.sorted = true;  // all that has a time of its own starts at 0
    info_.scope = ContentScope::kSession;
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : kCodingBlockTokens;
  }

  // The first good session decides the block size and the scope.
  absl::Status Open() {
    while (pending_.size() < kMostPending) {
      Pending next;
      next.outcome = ReadSession(&next.row, &next.problems);
      if (!next.outcome.ok() && pending_.empty()) return next.outcome.status();
      if (next.outcome.ok() && *next.outcome == RowOutcome::kRow) break;
      const bool is_last = !next.outcome.ok() || *next.outcome == RowOutcome::kEnd;
      pending_.push_back(std::move(next));
      if (is_last) break;
    }
    is_settled_ = true;  // info() does not change afterwards
    return absl::OkStatus();
  }

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) override {
    if (!pending_.empty()) {
      Pending next = std::move(pending_.front());
      pending_.pop_front();
      *row = std::move(next.row);
      *problems = std::move(next.problems);
      return next.outcome;
    }
    if (next_turn_ == turns_.size()) {
      absl::StatusOr<RowOutcome> outcome = ReadSession(row, problems);
      if (!outcome.ok() || *outcome != RowOutcome::kRow) return outcome;
    }
    TakeTurn(row);
    return RowOutcome::kRow;
  }

  std::string dialect() const override {
    return info_.scope == ContentScope::kSession ? "ids local to their session" : "global ids";
  }
  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return lines_.progress(); }

 private:
  struct Pending {
    absl::StatusOr<RowOutcome> outcome = RowOutcome::kEnd;
    RawRow row;
    std::vector<TraceProblem> problems;
  };

  // kRow: turns_ holds a session, at least one turn. A bad one counts as one row.
  absl::StatusOr<RowOutcome> ReadSession(RawRow* row, std::vector<TraceProblem>* problems) {
    Line line;
    TraceProblem problem;
    absl::StatusOr<RowOutcome> got = lines_.Next(&line, &problem);
    if (!got.ok() || *got == RowOutcome::kEnd) return got;
    *row = RawRow();
    row->request.row = next_row_;
    row->request.line = line.number;
    turns_.clear();
    next_turn_ = 0;
    num_backwards_ = 0;
    at_ = &row->request;
    problems_ = problems;
    if (*got == RowOutcome::kBad) {
      problem.row = next_row_;
      problems->push_back(std::move(problem));
    } else {
      parser_.Parse(line.text, at_, &session_, problems);
      if (problems->empty()) CheckSession();
    }
    if (!problems->empty()) {
      turns_.clear();
      ++next_row_;
      return RowOutcome::kBad;
    }
    if (!is_settled_) {
      info_.block_tokens = block_tokens_;
      info_.scope = session_.scope;
      is_settled_ = true;
    }
    first_row_ = next_row_;
    next_row_ += static_cast<int64_t>(turns_.size());
    line_ = line.number;
    name_ = session_.id;
    names_.insert(name_);
    ++num_sessions_;
    log_->counters.backwards += num_backwards_;
    return RowOutcome::kRow;
  }

  void TakeTurn(RawRow* row) {
    Turn& turn = turns_[next_turn_];
    *row = RawRow();
    TraceRequest& r = row->request;
    r.row = first_row_ + static_cast<int64_t>(next_turn_);
    r.line = line_;
    r.id = absl::StrCat(name_, "/", turn.path);
    r.input_length = turn.input;
    r.output_length = turn.output;
    r.content_ids = std::move(turn.ids);
    r.session = num_sessions_;
    r.turn = static_cast<uint32_t>(next_turn_);
    r.think_ns = turn.think_ns;
    for (const int64_t earlier : turn.waits_for) r.waits_for.push_back(first_row_ + earlier);
    row->has_timestamp = r.waits_for.empty();
    row->has_turn = true;
    ++next_turn_;
  }

  void Bad(ProblemKind kind, const std::string& text) {
    if (problems_->size() >= kMostSessionProblems) return;
    problems_->push_back(RowProblem(kind, *at_, text));
  }

  // What the parser cannot know: the sessions before.
  void CheckSession() {
    if (names_.contains(session_.id)) {
      Bad(ProblemKind::kDuplicateId,
          absl::StrCat("id: got ", Shown(session_.id),
                       ", that of an earlier session, expected each id once"));
    }
    if (session_.block_tokens != info_.block_tokens && override_block_size_ == 0 && is_settled_) {
      Bad(ProblemKind::kBlockSize,
          absl::StrCat("block_size: got ", session_.block_tokens, ", expected ", info_.block_tokens,
                       " as in the first good session (--trace-block-size)"));
    }
    if (session_.scope != info_.scope && is_settled_) {
      Bad(ProblemKind::kValue,
          absl::StrCat("hash_id_scope: got ", NameOf(session_.scope), ", expected ",
                       NameOf(info_.scope), " as in the first good session"));
    }
    if (!problems_->empty()) return;
    block_tokens_ = override_block_size_ > 0 ? override_block_size_ : session_.block_tokens;
    Flatten(&session_.entries, 0, "", {});
    if (problems_->empty() && turns_.empty()) {
      Bad(ProblemKind::kValue, "requests: got none, expected at least one");
    }
  }

  // --- The loop ---

  // Appends the turns of one list, which starts at `base_ns` after `before`. Returns what was not
  // waited for within the list.
  std::vector<End> Flatten(std::vector<CodingEntry>* entries, int64_t base_ns,
                           const std::string& prefix, const End before) {
    End last = before;
    std::vector<End> agents;  // since `last`
    int64_t last_t = 0;
    for (size_t i = 0; i < entries->size(); ++i) {
      CodingEntry& entry = (*entries)[i];
      std::string path = absl::StrCat(prefix, i);
      CheckTime(path, entry.t_ns, last_t);
      last_t = entry.t_ns;
      const int64_t start = Sum(base_ns, entry.t_ns);
      if (entry.is_agent) {
        const std::vector<End> ends = Flatten(&entry.nested, start, path + "/", last);
        agents.insert(agents.end(), ends.begin(), ends.end());
        continue;
      }
      CheckNumberOfIds(path, entry);
      Turn turn;
      int64_t latest = last.ns;
      if (last.turn >= 0) turn.waits_for.push_back(last.turn);
      for (const End& agent : agents) {
        turn.waits_for.push_back(agent.turn);
        latest = std::max(latest, agent.ns);
      }
      if (!turn.waits_for.empty()) {
        const int64_t shown = std::max<int64_t>(start - latest, 0);
        const bool is_first_of_agent = last.turn == before.turn && !prefix.empty();
        const bool is_told = entry.think_ns >= 0 && !is_first_of_agent;
        turn.think_ns = !is_told         ? shown
                        : agents.empty() ? entry.think_ns
                                         : std::min(entry.think_ns, shown);
      }
      turn.path = std::move(path);
      turn.input = entry.input;
      turn.output = entry.output;
      turn.ids = std::move(entry.ids);
      last = {static_cast<int64_t>(turns_.size()), Sum(start, entry.api_ns)};
      agents.clear();
      turns_.push_back(std::move(turn));
    }
    if (last.turn != before.turn) agents.push_back(last);
    return agents;
  }

  void CheckTime(const std::string& path, int64_t t_ns, int64_t last_t_ns) {
    if (t_ns >= last_t_ns) return;
    const std::string text =
        absl::StrCat("request ", path, ": t: got ", t_ns, " ns, expected at least ", last_t_ns,
                     " ns as in the entry before");
    if (require_sorted_) {
      Bad(ProblemKind::kOrder, text);
      return;
    }
    ++num_backwards_;
    log_->Tell(RowProblem(ProblemKind::kOrder, *at_, text + " (--require-sorted forbids it)",
                          ProblemSeverity::kNote));
  }

  void CheckNumberOfIds(const std::string& path, const CodingEntry& entry) {
    const int64_t got = static_cast<int64_t>(entry.ids.size());
    const int64_t full = entry.input / block_tokens_;
    if (got == full) return;
    Bad(ProblemKind::kContentIds,
        absl::StrCat("request ", path, ": number of block ids: got ", got, ", expected ", full,
                     " for the full blocks of ", entry.input, " tokens in blocks of ",
                     block_tokens_, " (--trace-block-size)"));
  }

  RowLines lines_;
  RowLog* log_;
  const int64_t override_block_size_;
  const bool require_sorted_;
  TraceInfo info_;
  bool is_settled_ = false;  // block size and scope
  CodingSessionParser parser_;
  absl::flat_hash_set<std::string> names_;  // of good sessions
  uint64_t num_sessions_ = 0;               // good ones
  int64_t next_row_ = 0;
  std::deque<Pending> pending_;  // read ahead by Open

  // Of the session being read.
  CodingSession session_;
  int64_t block_tokens_ = 0;
  int64_t num_backwards_ = 0;
  TraceRequest* at_ = nullptr;  // where problems are
  std::vector<TraceProblem>* problems_ = nullptr;

  // The session being handed out.
  std::vector<Turn> turns_;
  size_t next_turn_ = 0;
  int64_t first_row_ = 0;
  int64_t line_ = 0;
  std::string name_;
};

}  // namespace

OpenedRows MakeCodingSessionReader(std::unique_ptr<ByteSource> source,
                                   const TraceReaderOptions& options, RowLog* log) {
  auto reader = std::make_unique<CodingSessionReader>(std::move(source), options, log);
  if (absl::Status status = reader->Open(); !status.ok()) return status;
  return std::unique_ptr<RowSource>(std::move(reader));
}

}  // namespace kvblocks::sim
