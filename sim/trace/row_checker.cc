#include "sim/trace/row_checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checks/ceil_div.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

std::string Ms(int64_t ns) { return FormatScaledDecimal(ns, 6) + " ms"; }

}  // namespace

RowChecker::RowChecker(const TraceReaderOptions& options, const TraceInfo& info, RowLog* log)
    : require_sorted_(options.require_sorted),
      check_ids_(options.check_ids || options.ids_are_unique),
      ids_are_unique_(options.ids_are_unique),
      info_(info),
      log_(log) {}

void RowChecker::Bad(ProblemKind kind, std::string_view text) {
  problems_->push_back(RowProblem(kind, *request_, text));
}

bool RowChecker::Check(RawRow* row, const ArrivalBound& bound,
                       std::vector<TraceProblem>* problems) {
  TraceRequest& request = row->request;
  request_ = &request;
  problems_ = problems;
  arrivals_.resize(static_cast<size_t>(request.row) + 1, -1);
  CheckLengths(request);
  CheckOrder(row);
  CheckName(request);
  CheckDependencies(row);
  // Times that are no good are compared with nothing.
  if (problems->empty()) CheckNotTooLate(request, bound);
  if (check_ids_ && problems->empty()) CheckIds(request);
  if (!problems->empty()) return false;
  if (log_->listener != nullptr) Note(*row);
  Accept(row);
  if (log_->listener != nullptr) log_->listener->OnGoodRow(request);
  return true;
}

void RowChecker::Accept(RawRow* row) {
  TraceRequest& request = row->request;
  if (row->has_timestamp) {
    if (last_line_ > 0 && row->timestamp_ns < last_timestamp_ns_) ++log_->counters.backwards;
    last_timestamp_ns_ = row->timestamp_ns;
    last_line_ = request.line;
  }
  all_named_ = !request.id.empty();
  ++num_good_;
  if (all_named_) {
    row_of_id_[request.id] = request.row;
  } else {
    request.id = absl::StrCat(request.row);
  }
  if (request.session != 0) {
    Session& session = sessions_[request.session];
    if (!row->has_turn) request.turn = session.next_turn;
    session.next_turn = request.turn + 1;
    session.last_row = request.row;
  }
  arrivals_[static_cast<size_t>(request.row)] = request.arrival_ns;
}

// What is allowed and still worth knowing.
void RowChecker::Note(const RawRow& row) {
  const TraceRequest& request = row.request;
  const auto report = [&](ProblemSeverity severity, ProblemKind kind, const std::string& text) {
    log_->Notify(RowProblem(kind, request, text, severity));
  };
  if (request.input_length == 0) {
    report(ProblemSeverity::kWarning, ProblemKind::kEmptyPrompt,
           "input length: got 0, expected 1 or more (a replay rejects the request at arrival)");
  }
  if (request.output_length == 0) {
    report(ProblemSeverity::kNote, ProblemKind::kZeroOutput,
           "output length: got 0, expected 1 or more (--zero-output says what becomes of it)");
  }
  if (row.has_timestamp && last_line_ > 0 && row.timestamp_ns < last_timestamp_ns_) {
    report(ProblemSeverity::kNote, ProblemKind::kOrder,
           absl::StrCat("timestamp: got ", Ms(row.timestamp_ns), ", expected at least ",
                        Ms(last_timestamp_ns_), " as on line ", last_line_,
                        " (within --reorder; --require-sorted forbids it)"));
  }
}

void RowChecker::CheckLengths(const TraceRequest& request) {
  const size_t before = problems_->size();
  const int64_t input = request.input_length;
  const int64_t output = request.output_length;
  for (const auto& [name, length] :
       {std::pair("input length", input), std::pair("output length", output),
        std::pair("min_tokens", request.min_tokens),
        std::pair("encoder_tokens", request.encoder_tokens.value_or(0))}) {
    if (length < 0 || length > kMaxTraceLength) {
      Bad(ProblemKind::kLength,
          absl::StrCat(name, ": got ", length, ", expected 0 to ", kMaxTraceLength));
    }
  }
  if (problems_->size() != before) return;
  if (input + output > kMaxTraceLength) {
    Bad(ProblemKind::kLength, absl::StrCat("input plus output length: got ", input + output,
                                           ", expected at most ", kMaxTraceLength));
  }
  CheckNumberOfIds(request);
}

void RowChecker::CheckNumberOfIds(const TraceRequest& request) {
  const int64_t input =
      request.input_length + (request.ids_cover_output ? request.output_length : 0);
  const int64_t num_ids = static_cast<int64_t>(request.content_ids.size());
  const int64_t bt = info_.block_tokens;
  if (bt == 0 && num_ids > 0) {
    Bad(ProblemKind::kContentIds,
        absl::StrCat("content ids: got ", num_ids,
                     ", expected none (block size 0 means lengths only)"));
  }
  if (bt == 1 && num_ids != input) {
    Bad(ProblemKind::kContentIds,
        absl::StrCat("token ids: got ", num_ids, ", expected ", input, ", the input length",
                     request.ids_cover_output ? " plus the output length" : "",
                     " (fewer would shorten the prompt)"));
  }
  if (bt > 1) {
    const int64_t full = input / bt;
    const int64_t all = CeilDiv(input, bt);
    if (num_ids != full && num_ids != all) {
      Bad(ProblemKind::kContentIds,
          absl::StrCat("number of block ids: got ", num_ids, ", expected ", all,
                       full == all ? "" : absl::StrCat(" or ", full), " for ", input,
                       " tokens in blocks of ", bt, " (--trace-block-size)"));
    }
  }
  const int64_t num_output_ids = static_cast<int64_t>(request.output_ids.size());
  if (num_output_ids != 0 && num_output_ids != request.output_length) {
    Bad(ProblemKind::kOutputIds,
        absl::StrCat("output token ids: got ", num_output_ids, ", expected ", request.output_length,
                     ", the output length"));
  }
  if (num_output_ids != 0 && request.ids_cover_output) {
    Bad(ProblemKind::kOutputIds,
        "output token ids: got them beside sequence_hash_ids, expected one of both");
  }
}

void RowChecker::CheckOrder(RawRow* row) {
  TraceRequest& request = row->request;
  request.has_arrival = row->has_timestamp;
  request.arrival_ns = row->has_timestamp ? row->timestamp_ns : 0;
  if (!row->has_timestamp) return;
  if (request.arrival_ns < 0) {
    Bad(ProblemKind::kValue,
        absl::StrCat("timestamp: got ", request.arrival_ns, " ns, expected a time from 0 on"));
    return;
  }
  if (require_sorted_ && last_line_ > 0 && row->timestamp_ns < last_timestamp_ns_) {
    Bad(ProblemKind::kOrder, absl::StrCat("timestamp: got ", Ms(row->timestamp_ns),
                                          ", expected at least ", Ms(last_timestamp_ns_),
                                          " as on line ", last_line_, " (kvsim convert --sort)"));
  }
}

void RowChecker::CheckNotTooLate(const TraceRequest& request, const ArrivalBound& bound) {
  if (request.arrival_ns >= bound.ns) return;
  const std::string why =
      bound.window == 0 ? std::string("the file says that it is sorted")
      : bound.bytes > 0 ? absl::StrCat("later than rows of ", bound.bytes,
                                       " bytes, the most that is held to sort")
                        : absl::StrCat("more than --reorder=", bound.window, " rows late");
  Bad(ProblemKind::kOrder,
      absl::StrCat("timestamp: got ", request.arrival_ns, " ns, expected at least ", bound.ns,
                   " ns as on line ", bound.line, " (", why,
                   bound.bytes >= kMostSortedBytes ? "; sort its rows by time before"
                                                   : "; kvsim convert --sort",
                   ")"));
}

void RowChecker::CheckName(const TraceRequest& request) {
  const bool named = !request.id.empty();
  if (num_good_ > 0 && named != all_named_) {
    Bad(ProblemKind::kMixedIds,
        named ? absl::StrCat("request_id: got ", Shown(request.id),
                             ", expected none as in the rows before")
              : "field request_id: got nothing, expected one as in the rows before");
    return;
  }
  const auto found = named ? row_of_id_.find(request.id) : row_of_id_.end();
  if (found != row_of_id_.end()) {
    Bad(ProblemKind::kDuplicateId,
        absl::StrCat("request_id: got ", Shown(request.id), ", also that of row ",
                     found->second + 1, ", expected each id once"));
  }
}

void RowChecker::CheckDependencies(RawRow* row) {
  TraceRequest& request = row->request;
  const size_t before = problems_->size();
  const auto bad = [&](const std::string& text) { Bad(ProblemKind::kDependency, text); };
  for (const std::string& name : row->wait_names) {
    if (!request.id.empty() && name == request.id) {
      bad(absl::StrCat("wait_for: got ", Shown(name), ", the request itself, expected no cycle"));
      continue;
    }
    const auto found = row_of_id_.find(name);
    if (found == row_of_id_.end()) {
      bad(absl::StrCat("wait_for: got ", Shown(name),
                       ", expected the request_id of an earlier good row (an unknown one, or a "
                       "later one, which could close a cycle)"));
      continue;
    }
    request.waits_for.push_back(found->second);
  }
  if (row->waits_for_session) {
    const auto found = sessions_.find(request.session);
    if (found != sessions_.end()) request.waits_for.push_back(found->second.last_row);
  }
  std::sort(request.waits_for.begin(), request.waits_for.end());
  request.waits_for.erase(std::unique(request.waits_for.begin(), request.waits_for.end()),
                          request.waits_for.end());
  int64_t latest = -1;
  for (const int64_t dependency : request.waits_for) {
    if (dependency < 0 || dependency >= request.row ||
        arrivals_[static_cast<size_t>(dependency)] < 0) {
      bad(absl::StrCat("dependency: got row ", dependency, ", expected an earlier good row"));
      continue;
    }
    latest = std::max(latest, arrivals_[static_cast<size_t>(dependency)]);
  }
  if (problems_->size() != before) return;
  if (!request.has_arrival && latest < 0) {
    Bad(ProblemKind::kMissingField,
        "field timestamp: got nothing, expected a time in ms (only a row that waits for another "
        "one may leave it out)");
  }
  // A time that is not after the dependencies' arrivals decides nothing.
  if (request.arrival_ns <= latest) {
    request.arrival_ns = latest;
    request.has_arrival = false;
  }
}

void RowChecker::CheckIds(const TraceRequest& request) {
  if (info_.block_tokens <= 1) return;
  // The same number in another session is another id.
  const bool is_local = info_.scope == ContentScope::kSession;
  const uint64_t owner = is_local ? request.session : 0;
  absl::uint128 parent = ScopeKey(info_, request);
  int64_t left = request.input_length + (request.ids_cover_output ? request.output_length : 0);
  for (const int64_t id : request.content_ids) {
    const int64_t tokens = std::min(left, info_.block_tokens);
    left -= tokens;
    if (static_cast<int64_t>(id_uses_.size()) >= kMostCheckedIds &&
        !id_uses_.contains(std::pair(owner, id))) {
      if (!std::exchange(has_unchecked_ids_, true)) {
        log_->Warn(RowProblem(
            ProblemKind::kContentIds, request,
            absl::StrCat("block ids: got more than ", kMostCheckedIds,
                         " different ones, expected fewer (parents and token counts of further "
                         "ones are not checked)"),
            ProblemSeverity::kWarning));
      }
      parent = PathKey(parent, id);
      continue;
    }
    const auto [it, inserted] =
        id_uses_.try_emplace(std::pair(owner, id), IdUse{parent, tokens, request.line});
    const IdUse& before = it->second;
    if (!inserted && before.parent != parent) {
      ++log_->counters.ids_with_two_parents;
      const auto text = [&] {
        return absl::StrCat(
            "block id: got ", id, " after other ids than on line ", before.line,
            ", expected one parent per id (",
            ids_are_unique_ ? "--ids-are-unique)" : "the path distinguishes content)");
      };
      if (ids_are_unique_) return Bad(ProblemKind::kIdParents, text());
      log_->Note(ProblemSeverity::kNote, ProblemKind::kIdParents, request, text);
    } else if (!inserted && before.tokens != tokens && request.ids_cover_output) {
      // A turn ends within a block that the next one fills.
      it->second.tokens = std::max(before.tokens, tokens);
    } else if (!inserted && before.tokens != tokens) {
      const auto text = [&] {
        return absl::StrCat("block id ", id, ": got ", tokens, " tokens, expected ", before.tokens,
                            " as on line ", before.line);
      };
      // The list has one for all.
      if (log_->counters.ids_with_two_token_counts++ == 0) {
        log_->Warn(
            RowProblem(ProblemKind::kIdTokens, request, text(), ProblemSeverity::kWarning));
      } else {
        log_->Note(ProblemSeverity::kWarning, ProblemKind::kIdTokens, request, text);
      }
    }
    parent = PathKey(parent, id);
  }
}

}  // namespace kvblocks::sim
