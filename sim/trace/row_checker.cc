#include "sim/trace/row_checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

absl::Status RowChecker::Error(const TraceRequest& request, std::string_view text) const {
  return absl::InvalidArgumentError(RowError(*log_, request.line, text));
}

absl::Status RowChecker::Check(RawRow* row) {
  TraceRequest& request = row->request;
  arrivals_.resize(static_cast<size_t>(request.row) + 1, -1);
  if (absl::Status status = CheckLengths(request); !status.ok()) return status;
  if (absl::Status status = CheckOrder(row); !status.ok()) return status;
  const bool named = !request.id.empty();
  if (num_good_ > 0 && named != all_named_) {
    return Error(request,
                 named ? "request_id: got one, expected none as in the rows before"
                       : "field request_id: got nothing, expected one as in the rows before");
  }
  if (named && row_of_id_.contains(request.id)) {
    return Error(request, absl::StrCat("request_id: got ", Shown(request.id), ", also that of row ",
                                       row_of_id_[request.id] + 1, ", expected each id once"));
  }
  if (absl::Status status = CheckDependencies(row); !status.ok()) return status;
  if (check_ids_) {
    if (absl::Status status = CheckIds(request); !status.ok()) return status;
  }

  all_named_ = named;
  ++num_good_;
  if (named) {
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
  return absl::OkStatus();
}

absl::Status RowChecker::CheckLengths(const TraceRequest& request) const {
  const int64_t input = request.input_length;
  const int64_t output = request.output_length;
  for (const auto& [name, length] : {std::pair("input", input), std::pair("output", output)}) {
    if (length < 0 || length > kMaxTraceLength) {
      return Error(request, absl::StrCat(name, " length: got ", length, ", expected 0 to ",
                                         kMaxTraceLength));
    }
  }
  if (input + output > kMaxTraceLength) {
    return Error(request, absl::StrCat("input plus output length: got ", input + output,
                                       ", expected at most ", kMaxTraceLength));
  }
  if (request.min_tokens < 0 || request.min_tokens > kMaxTraceLength) {
    return Error(request, absl::StrCat("min_tokens: got ", request.min_tokens, ", expected 0 to ",
                                       kMaxTraceLength));
  }
  const int64_t num_ids = static_cast<int64_t>(request.content_ids.size());
  const int64_t bt = info_.block_tokens;
  if (bt == 0 && num_ids > 0) {
    return Error(request, absl::StrCat("content ids: got ", num_ids,
                                       ", expected none (block size 0 means lengths only)"));
  }
  if (bt == 1 && num_ids != input) {
    return Error(request, absl::StrCat("token ids: got ", num_ids, ", expected ", input,
                                       ", the input length (fewer would shorten the prompt)"));
  }
  if (bt > 1) {
    const int64_t full = input / bt;
    const int64_t all = full + (input % bt != 0 ? 1 : 0);
    if (num_ids != full && num_ids != all) {
      return Error(request,
                   absl::StrCat("number of block ids: got ", num_ids, ", expected ", all,
                                full == all ? "" : absl::StrCat(" or ", full), " for ", input,
                                " tokens in blocks of ", bt, " (--trace-block-size)"));
    }
  }
  const int64_t num_output_ids = static_cast<int64_t>(request.output_ids.size());
  if (num_output_ids != 0 && num_output_ids != output) {
    return Error(request, absl::StrCat("output token ids: got ", num_output_ids, ", expected ",
                                       output, ", the output length"));
  }
  return absl::OkStatus();
}

absl::Status RowChecker::CheckOrder(RawRow* row) {
  TraceRequest& request = row->request;
  request.has_arrival = row->has_timestamp;
  request.arrival_ns = row->has_timestamp ? row->timestamp_ns : 0;
  if (!row->has_timestamp) return absl::OkStatus();
  if (request.arrival_ns < 0) {
    return Error(request, absl::StrCat("timestamp: got ", request.arrival_ns,
                                       " ns, expected a time from 0 on"));
  }
  if (last_line_ > 0 && row->timestamp_ns < last_timestamp_ns_) {
    if (require_sorted_) {
      return Error(request, absl::StrCat("timestamp: got ", Ms(row->timestamp_ns),
                                         ", expected at least ", Ms(last_timestamp_ns_),
                                         " as on line ", last_line_, " (kvsim convert --sort)"));
    }
    ++log_->counters.backwards;
  }
  last_timestamp_ns_ = row->timestamp_ns;
  last_line_ = request.line;
  return absl::OkStatus();
}

absl::Status RowChecker::CheckDependencies(RawRow* row) {
  TraceRequest& request = row->request;
  for (const std::string& name : row->wait_names) {
    if (name == request.id) {
      return Error(request, absl::StrCat("wait_for: got ", Shown(name),
                                         ", the request itself, expected no cycle"));
    }
    const auto found = row_of_id_.find(name);
    if (found == row_of_id_.end()) {
      return Error(request,
                   absl::StrCat("wait_for: got ", Shown(name),
                                ", expected the request_id of an earlier good row (an unknown one, "
                                "or a later one, which could close a cycle)"));
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
      return Error(request, absl::StrCat("dependency: got row ", dependency,
                                         ", expected an earlier good row"));
    }
    latest = std::max(latest, arrivals_[static_cast<size_t>(dependency)]);
  }
  if (!request.has_arrival && latest < 0) {
    return Error(request,
                 "field timestamp: got nothing, expected a time in ms (only a row that waits for "
                 "another one may leave it out)");
  }
  // A time that is not after the dependencies' arrivals decides nothing.
  if (request.arrival_ns <= latest) {
    request.arrival_ns = latest;
    request.has_arrival = false;
  }
  return absl::OkStatus();
}

absl::Status RowChecker::CheckIds(const TraceRequest& request) {
  if (info_.block_tokens <= 1) return absl::OkStatus();
  absl::uint128 parent = ScopeKey(info_, request);
  int64_t left = request.input_length;
  for (const int64_t id : request.content_ids) {
    const int64_t tokens = std::min(left, info_.block_tokens);
    left -= tokens;
    const auto [it, inserted] = id_uses_.try_emplace(id, IdUse{parent, tokens, request.line});
    if (!inserted && it->second.parent != parent) {
      ++log_->counters.ids_with_two_parents;
      if (ids_are_unique_) {
        return Error(request, absl::StrCat("block id: got ", id, " after other ids than on line ",
                                           it->second.line,
                                           ", expected one parent per id (--ids-are-unique)"));
      }
    } else if (!inserted && it->second.tokens != tokens) {
      if (log_->counters.ids_with_two_token_counts++ == 0) {
        log_->Warn(request.line,
                   absl::StrCat("block id ", id, ": got ", tokens, " tokens, expected ",
                                it->second.tokens, " as on line ", it->second.line));
      }
    }
    parent = PathKey(parent, id);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
