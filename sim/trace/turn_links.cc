#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/ceil_div.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/decimal.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

// How a later request continues an earlier one.
struct TurnLink {
  int64_t later_row = 0;
  size_t later_full = 0;      // blocks of the later prompt that are full
  size_t full = 0;            // ids of its own that stay
  std::vector<int64_t> tail;  // those behind them
  absl::uint128 partial = 0;  // path of the end of its prompt; 0: it has none
};
// A gigabyte: a request that copies another one's ids costs its file nothing.
constexpr int64_t kMostTailIds = int64_t{1} << 27;
using TurnLinks = absl::flat_hash_map<int64_t, TurnLink>;  // by row

absl::Status CheckLinkable(const TraceInfo& info, const TraceRequest& request) {
  const char* what = info.block_tokens == 0                     ? "a trace of lengths"
                     : info.block_tokens == 1                   ? "a trace of token ids"
                     : request.session != 0                     ? "a trace with sessions"
                     : request.ids_cover_output ||
                             !request.output_ids.empty()        ? "a trace with contents of outputs"
                                                                : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--link-turns: got ", what, ", expected block ids of prompts, and nothing that says which "
      "prompts go on from others"));
}

size_t FullBlocks(const TraceInfo& info, const TraceRequest& request) {
  return std::min(static_cast<size_t>(request.input_length / info.block_tokens),
                  request.content_ids.size());
}

class LinkFinder {
 public:
  explicit LinkFinder(const TraceInfo& info) : info_(info) {}

  absl::Status Add(const TraceRequest& request);
  // What was found, after the last one.
  TurnLinks Finish();

 private:
  struct Open {
    int64_t row;
    size_t full;
    absl::uint128 partial;
  };

  const TraceInfo& info_;
  TurnLinks links_;
  int64_t tail_ids_ = 0;  // in them
  // By path of the full blocks, and then by the length of prompt and output.
  absl::flat_hash_map<absl::uint128, std::multimap<int64_t, Open>> open_;
  absl::flat_hash_map<absl::uint128, int64_t> uses_of_partial_;
  std::vector<absl::uint128> path_;  // of the last request
};

absl::Status LinkFinder::Add(const TraceRequest& request) {
  const std::vector<int64_t>& ids = request.content_ids;
  path_.assign(1, ScopeKey(info_, request));
  for (const int64_t id : ids) path_.push_back(PathKey(path_.back(), id));
  const size_t full = FullBlocks(info_, request);
  for (size_t depth = full; depth > 0; --depth) {
    const auto at = open_.find(path_[depth]);
    if (at == open_.end()) continue;
    const auto behind = at->second.upper_bound(request.input_length);
    if (behind == at->second.begin()) continue;
    const auto found = std::prev(behind);
    const int64_t tokens = found->first;
    const auto end = std::min(ids.size(), static_cast<size_t>(CeilDiv(tokens, info_.block_tokens)));
    tail_ids_ += static_cast<int64_t>(end > depth ? end - depth : 0);
    if (tail_ids_ > kMostTailIds) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--link-turns: got more than ", kMostTailIds,
          " ids of outputs up to row ", request.row + 1,
          ", expected fewer, which are all held (use a part of the trace, or no --link-turns)"));
    }
    links_[found->second.row] = {.later_row = request.row,
                                 .later_full = full,
                                 .full = depth,
                                 .tail = {ids.begin() + static_cast<int64_t>(depth),
                                          ids.begin() + static_cast<int64_t>(end)},
                                 .partial = found->second.partial};
    at->second.erase(found);
    if (at->second.empty()) open_.erase(at);
    break;
  }
  const absl::uint128 partial = ids.size() > full ? path_[full + 1] : absl::uint128(0);
  if (ids.size() > full) ++uses_of_partial_[partial];
  if (full > 0 && request.output_length > 0) {
    open_[path_[full]].emplace(request.input_length + request.output_length,
                               Open{request.row, full, partial});
  }
  return absl::OkStatus();
}

TurnLinks LinkFinder::Finish() {
  absl::erase_if(links_, [&](const auto& link) {
    const auto uses = uses_of_partial_.find(link.second.partial);
    return uses != uses_of_partial_.end() && uses->second > 1;
  });
  // What a later prompt has at its end may itself have become another text; last ones first.
  std::vector<int64_t> rows;
  for (const auto& [row, link] : links_) rows.push_back(row);
  std::sort(rows.rbegin(), rows.rend());
  for (const int64_t row : rows) {
    TurnLink& link = links_[row];
    const auto later = links_.find(link.later_row);
    if (later == links_.end()) continue;
    for (size_t i = link.later_full; i < link.full + link.tail.size(); ++i) {
      const size_t of_tail = i - link.later_full;
      if (i >= link.full && of_tail < later->second.tail.size()) {
        link.tail[i - link.full] = later->second.tail[of_tail];
      }
    }
  }
  return std::move(links_);
}

void ApplyLink(const TurnLink& link, TraceRequest* request) {
  request->content_ids.resize(link.full);
  request->content_ids.insert(request->content_ids.end(), link.tail.begin(), link.tail.end());
  request->ids_cover_output = true;
}

// Full blocks that an infinite cache hits, in the order of arrival.
class InfiniteHits {
 public:
  void Add(const TraceInfo& info, const TraceRequest& request) {
    absl::uint128 path = ScopeKey(info, request);
    const int64_t tokens =
        request.input_length + (request.ids_cover_output ? request.output_length : 0);
    bool is_hit = true;
    int64_t end = 0;
    for (const int64_t id : request.content_ids) {
      end += info.block_tokens;
      if (end > tokens) break;
      path = PathKey(path, id);
      is_hit = !seen_.insert(path).second && is_hit && end < request.input_length;
      if (is_hit) hit_tokens_ += info.block_tokens;
    }
    prompt_tokens_ += request.input_length;
  }
  std::string Percent() const {
    return absl::StrFormat("%.2f %%", prompt_tokens_ == 0
                                          ? 0.0
                                          : 100.0 * static_cast<double>(hit_tokens_) /
                                                static_cast<double>(prompt_tokens_));
  }

 private:
  absl::flat_hash_set<absl::uint128> seen_;
  int64_t hit_tokens_ = 0, prompt_tokens_ = 0;
};

class LinkedReader final : public ForwardingReader {
 public:
  LinkedReader(std::unique_ptr<TraceReader> reader, TurnLinks links, const std::string& note)
      : ForwardingReader(std::move(reader)),
        links_(std::move(links)),
        info_(ForwardingReader::info()) {
    info_.notes[kTurnLinksNote] = note;
  }

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, ForwardingReader::Next(out));
    if (!more) return false;
    const auto link = links_.find(out.row);
    if (link != links_.end()) ApplyLink(link->second, &out);
    return true;
  }
  const TraceInfo& info() const override { return info_; }

 private:
  const TurnLinks links_;
  TraceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TraceReader>> WithTurnLinks(std::unique_ptr<TraceReader> reader) {
  const TraceInfo info = reader->info();
  LinkFinder finder(info);
  int64_t num_requests = 0;
  KVBLOCKS_RETURN_IF_ERROR(ForEachRequest(*reader, [&](const TraceRequest& request) {
    ++num_requests;
    const absl::Status linkable = CheckLinkable(info, request);
    return linkable.ok() ? finder.Add(request) : linkable;
  }));
  KVBLOCKS_RETURN_IF_ERROR(reader->Restart());
  TurnLinks links = finder.Finish();
  InfiniteHits as_it_is, linked;
  KVBLOCKS_RETURN_IF_ERROR(ForEachRequest(*reader, [&](TraceRequest& request) {
    as_it_is.Add(info, request);
    const auto link = links.find(request.row);
    if (link != links.end()) ApplyLink(link->second, &request);
    linked.Add(info, request);
    return absl::OkStatus();
  }));
  KVBLOCKS_RETURN_IF_ERROR(reader->Restart());
  const std::string note = absl::StrCat(
      "turns linked by a guess: ", GroupThousands(absl::StrCat(links.size())), " of ",
      GroupThousands(absl::StrCat(num_requests)),
      " requests are taken to go on in a later prompt; an infinite cache of the trace's blocks "
      "hits ",
      linked.Percent(), " of prompt tokens, and ", as_it_is.Percent(), " without --link-turns");
  return std::make_unique<LinkedReader>(std::move(reader), std::move(links), note);
}

}  // namespace kvblocks::sim
