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
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvblocks/sim/trace/coding_session_parser.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
absl::string_view NameOf(ContentScope scope) {
  return scope == ContentScope::kGlobal ? "global" : "local";
}

// Of two times, neither negative.
int64_t Sum(int64_t a, int64_t b) { return a > kMaxInt64 - b ? kMaxInt64 : a + b; }

// What a later turn may have to wait for.
struct End {
  int64_t row = -1;  // -1: the session's start
  int64_t ns = 0;    // when it ended in the recording
};

class CodingSessionReader : public LineRows {
 public:
  CodingSessionReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                      RowLog* log)
      : LineRows(std::move(source), options, log, "coding"),
        override_block_size_(options.trace_block_size),
        require_sorted_(options.require_sorted),
        parser_(log) {
    info_.sorted = true;  // all that has a time of its own starts at 0
    info_.scope = ContentScope::kSession;
    info_.block_tokens = override_block_size_ > 0 ? override_block_size_ : kCodingBlockTokens;
  }

  std::string dialect() const override {
    return info_.scope == ContentScope::kSession ? "ids local to their session" : "global ids";
  }

 private:
  void Parse(std::string_view text, RawRow&& row, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    TraceRequest at = std::move(row.request);
    at_ = &at;
    rows_ = rows;
    problems_ = problems;
    num_backwards_ = 0;
    parser_.Parse(text, &at, &session_, problems);
    if (problems->empty()) CheckSession();
    if (!problems->empty()) return;
    if (!is_settled()) {
      info_.block_tokens = block_tokens_;
      info_.scope = session_.scope;
    }
    names_.insert(session_.id);
    log()->counters.backwards += num_backwards_;
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
    if (session_.block_tokens != info_.block_tokens && override_block_size_ == 0 && is_settled()) {
      Bad(ProblemKind::kBlockSize,
          absl::StrCat("block_size: got ", session_.block_tokens, ", expected ", info_.block_tokens,
                       " as in the first good session (--trace-block-size)"));
    }
    if (session_.scope != info_.scope && is_settled()) {
      Bad(ProblemKind::kValue,
          absl::StrCat("hash_id_scope: got ", NameOf(session_.scope), ", expected ",
                       NameOf(info_.scope), " as in the first good session"));
    }
    if (!problems_->empty()) return;
    block_tokens_ = override_block_size_ > 0 ? override_block_size_ : session_.block_tokens;
    Flatten(&session_.entries, 0, "", {});
    if (problems_->empty() && rows_->empty()) {
      Bad(ProblemKind::kValue, "requests: got none, expected at least one");
    }
  }

  // --- The loop ---

  // Appends the requests of one list, which starts at `base_ns` after `before`. Returns what was
  // not waited for within the list.
  std::vector<End> Flatten(std::vector<CodingEntry>* entries, int64_t base_ns,
                           const std::string& prefix, const End before) {
    End last = before;
    std::vector<End> agents;  // since `last`
    int64_t last_t = 0;
    for (size_t i = 0; i < entries->size(); ++i) {
      CodingEntry& entry = (*entries)[i];
      const std::string path = absl::StrCat(prefix, i);
      CheckTime(path, entry.t_ns, last_t);
      last_t = entry.t_ns;
      const int64_t start = Sum(base_ns, entry.t_ns);
      if (entry.is_agent) {
        const std::vector<End> ends = Flatten(&entry.nested, start, path + "/", last);
        agents.insert(agents.end(), ends.begin(), ends.end());
        continue;
      }
      CheckNumberOfIds(path, entry);
      RawRow& row = rows_->emplace_back();
      TraceRequest& r = row.request;
      int64_t latest = last.ns;
      if (last.row >= 0) r.waits_for.push_back(last.row);
      for (const End& agent : agents) {
        r.waits_for.push_back(agent.row);
        latest = std::max(latest, agent.ns);
      }
      if (!r.waits_for.empty()) {
        const int64_t shown = std::max<int64_t>(start - latest, 0);
        const bool is_first_of_agent = last.row == before.row && !prefix.empty();
        const bool is_told = entry.think_ns >= 0 && !is_first_of_agent;
        r.think_ns = !is_told         ? shown
                     : agents.empty() ? entry.think_ns
                                      : std::min(entry.think_ns, shown);
      }
      r.id = absl::StrCat(session_.id, "/", path);
      r.input_length = entry.input;
      r.output_length = entry.output;
      r.content_ids = std::move(entry.ids);
      r.session = names_.size() + 1;
      r.turn = static_cast<uint32_t>(rows_->size() - 1);
      row.has_turn = true;
      row.has_timestamp = r.waits_for.empty();
      last = {at_->row + static_cast<int64_t>(rows_->size()) - 1, Sum(start, entry.api_ns)};
      agents.clear();
    }
    if (last.row != before.row) agents.push_back(last);
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
    log()->Tell(RowProblem(ProblemKind::kOrder, *at_, text + " (--require-sorted forbids it)",
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

  const int64_t override_block_size_;
  const bool require_sorted_;
  CodingSessionParser parser_;
  absl::flat_hash_set<std::string> names_;  // of good sessions

  // Of the session being read.
  CodingSession session_;
  int64_t block_tokens_ = 0;
  int64_t num_backwards_ = 0;
  TraceRequest* at_ = nullptr;  // where problems are
  std::vector<RawRow>* rows_ = nullptr;
  std::vector<TraceProblem>* problems_ = nullptr;
};

}  // namespace

OpenedRows MakeCodingSessionReader(std::unique_ptr<ByteSource> source,
                                   const TraceReaderOptions& options, RowLog* log) {
  return OpenLineRows<CodingSessionReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
