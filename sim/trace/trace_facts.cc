#include "sim/trace/trace_facts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/ceil_div.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

// Nearest rank on a sorted list that is not empty.
int64_t Percentile(const std::vector<int64_t>& sorted, int64_t percent) {
  const int64_t n = static_cast<int64_t>(sorted.size());
  const int64_t rank = (percent * n + 99) / 100;
  return sorted[static_cast<size_t>(std::max<int64_t>(rank, 1) - 1)];
}

LengthFacts Summarize(std::vector<int64_t> lengths) {
  LengthFacts facts;
  if (lengths.empty()) return facts;
  std::sort(lengths.begin(), lengths.end());
  for (const int64_t length : lengths) facts.total += length;
  facts.mean = static_cast<double>(facts.total) / static_cast<double>(lengths.size());
  facts.median = Percentile(lengths, 50);
  facts.p90 = Percentile(lengths, 90);
  facts.p99 = Percentile(lengths, 99);
  facts.max = lengths.back();
  return facts;
}

std::string Grouped(int64_t value) { return GroupThousands(absl::StrCat(value)); }
std::string Seconds(int64_t ns) { return GroupThousands(FormatScaledDecimal(ns, 9)); }

std::string Share(int64_t part, int64_t whole) {
  if (whole == 0) return "no share";
  return absl::StrFormat("%.3f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Lengths(const LengthFacts& facts) {
  return absl::StrFormat("%s (mean %s, median %s, p90 %s, p99 %s, max %s)", Grouped(facts.total),
                         GroupThousands(absl::StrFormat("%.2f", facts.mean)), Grouped(facts.median),
                         Grouped(facts.p90), Grouped(facts.p99), Grouped(facts.max));
}

}  // namespace

int64_t TokenTrie::Add(absl::uint128 scope, const std::vector<int64_t>& tokens, size_t num_used) {
  const auto [root, is_new] = roots_.try_emplace(scope, nodes_.size());
  if (is_new) nodes_.emplace_back();
  int64_t found = 0;
  int64_t found_behind = 0;
  const size_t last = Walk(root->second, tokens, 0, num_used, 1, &found);
  Walk(last, tokens, num_used, tokens.size(), 0, &found_behind);
  return found;
}

size_t TokenTrie::Walk(size_t node, const std::vector<int64_t>& tokens, size_t begin, size_t end,
                       int64_t uses, int64_t* found) {
  while (begin < end) {
    const auto [child, is_new] = children_.try_emplace({node, tokens[begin]}, nodes_.size());
    if (is_new) {
      nodes_.push_back({tokens_.size(), end - begin, uses});
      tokens_.insert(tokens_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens.begin() + static_cast<std::ptrdiff_t>(end));
      return nodes_.size() - 1;
    }
    const Node whole = nodes_[child->second];
    size_t same = 1;
    const size_t most = std::min(whole.size, end - begin);
    while (same < most && tokens_[whole.begin + same] == tokens[begin + same]) ++same;
    if (same < whole.size) {
      // A new node takes the first part and the place; the old one, with its children, the rest.
      const size_t old = child->second;
      const size_t first = nodes_.size();
      child->second = first;
      nodes_.push_back({whole.begin, same, whole.uses});
      nodes_[old].begin += same;
      nodes_[old].size -= same;
      children_[{first, tokens_[whole.begin + same]}] = old;
      node = first;
    } else {
      node = child->second;
    }
    nodes_[node].uses += uses;
    *found += static_cast<int64_t>(same);
    begin += same;
  }
  return node;
}

TokenTrie::Totals TokenTrie::Finish() const {
  Totals totals;
  const Node* hottest = nullptr;
  for (const Node& node : nodes_) {
    if (node.uses == 0) continue;
    totals.distinct += static_cast<int64_t>(node.size);
    if (node.uses == 1) totals.used_once += static_cast<int64_t>(node.size);
    if (hottest == nullptr || node.uses > hottest->uses ||
        (node.uses == hottest->uses && node.begin < hottest->begin)) {
      hottest = &node;
    }
  }
  if (hottest != nullptr) {
    totals.hottest_uses = hottest->uses;
    totals.hottest_token = tokens_[hottest->begin];
  }
  return totals;
}

TraceFactsBuilder::TraceFactsBuilder(const TraceInfo& info,
                                     std::vector<int64_t> engine_block_sizes) {
  facts_.info = info;
  for (const int64_t size : engine_block_sizes) {
    if (size > 0) facts_.engine.push_back({size, 0, 0, 0});
  }
}

void TraceFactsBuilder::AddContent(const TraceRequest& request, int64_t* shared) {
  const int64_t bt = facts_.info.block_tokens;
  const int64_t described =
      request.input_length + (request.ids_cover_output ? request.output_length : 0);
  const int64_t num_ids = static_cast<int64_t>(request.content_ids.size());
  // Ids behind the prompt's are there for later prompts to hit, and are no references themselves.
  const int64_t refs = request.ids_cover_output && bt > 0
                           ? std::min(num_ids, CeilDiv(request.input_length, bt))
                           : num_ids;
  facts_.block_refs += refs;
  facts_.most_refs = std::max(facts_.most_refs, refs);
  facts_.full_block_refs += std::min(refs, bt > 0 ? request.input_length / bt : 0);
  if (bt == 1) {
    const int64_t found =
        tokens_.Add(ScopeKey(facts_.info, request), request.content_ids, static_cast<size_t>(refs));
    facts_.prefix_hits += found;
    facts_.full_block_hits += found;
    *shared += found;
    return;
  }
  path_of_id_.clear();
  absl::uint128 path = ScopeKey(facts_.info, request);
  for (const int64_t id : request.content_ids) path_of_id_.push_back(path = PathKey(path, id));

  bool leading = true;
  int64_t left = request.input_length;
  int64_t left_with_output = described;
  for (size_t i = 0; i < path_of_id_.size(); ++i) {
    const int64_t tokens = std::min(left, bt);
    const int64_t tokens_with_output = std::min(left_with_output, bt);
    left -= tokens;
    left_with_output -= tokens_with_output;
    PathUse& use = paths_[path_of_id_[i]];
    // A path cannot occur twice in one request, so every use seen here is of an earlier one.
    if (use.order == 0) {
      leading = false;
      use.id = request.content_ids[i];
      use.order = static_cast<int64_t>(paths_.size());
    }
    const bool is_of_prompt = static_cast<int64_t>(i) < refs;
    if (leading && is_of_prompt) {
      ++facts_.prefix_hits;
      *shared += std::min(tokens, use.tokens);
      if (tokens == bt && use.tokens == bt) ++facts_.full_block_hits;
    }
    if (is_of_prompt && use.uses++ == 0) ++facts_.distinct_paths;
    use.tokens = std::max(use.tokens, tokens_with_output);
  }
}

void TraceFactsBuilder::Add(const TraceRequest& request) {
  if (facts_.requests == 0) {
    facts_.first_arrival_ns = request.arrival_ns;
    facts_.distinct_timestamps = 1;
  } else {
    const int64_t gap = request.arrival_ns - facts_.last_arrival_ns;
    if (gap != 0) ++facts_.distinct_timestamps;
    const double seconds = static_cast<double>(gap) / 1e9;
    sum_of_gap_squares_ += seconds * seconds;
  }
  facts_.last_arrival_ns = request.arrival_ns;
  ++facts_.requests;
  if (!request.waits_for.empty()) ++facts_.closed_loop_requests;
  if (request.session != 0) sessions_[request.session] = true;

  int64_t shared = 0;
  AddContent(request, &shared);
  facts_.shared_tokens += shared;
  if (shared > 0) ++facts_.requests_with_hit;
  if (request.input_length > 0) {
    sum_of_ratios_ += static_cast<double>(shared) / static_cast<double>(request.input_length);
  }
  for (EngineFacts& engine : facts_.engine) {
    const int64_t usable = std::max<int64_t>(std::min(shared, request.input_length - 1), 0);
    engine.full_blocks += request.input_length / engine.block_tokens;
    engine.hit_blocks += usable / engine.block_tokens;
    engine.hit_tokens += usable / engine.block_tokens * engine.block_tokens;
  }
  inputs_.push_back(request.input_length);
  outputs_.push_back(request.output_length);
  shared_.push_back(shared);
}

TraceFacts TraceFactsBuilder::Finish() {
  TraceFacts facts = facts_;
  facts.input = Summarize(inputs_);
  facts.output = Summarize(outputs_);
  facts.sessions = static_cast<int64_t>(sessions_.size());
  if (facts_.info.block_tokens == 1) {
    const TokenTrie::Totals totals = tokens_.Finish();
    facts.distinct_paths = totals.distinct;
    facts.paths_used_once = totals.used_once;
    facts.hottest_uses = totals.hottest_uses;
    facts.hottest_id = totals.hottest_token;
  }
  int64_t hottest_order = 0;
  for (const auto& [path, use] : paths_) {
    facts.paths_used_once += use.uses == 1 ? 1 : 0;
    // The order decides between equals, so that the table's own order never shows.
    if (use.uses > facts.hottest_uses ||
        (use.uses == facts.hottest_uses && use.order < hottest_order)) {
      facts.hottest_uses = use.uses;
      facts.hottest_id = use.id;
      hottest_order = use.order;
    }
  }
  if (facts.requests > 0)
    facts.mean_of_ratios = sum_of_ratios_ / static_cast<double>(facts.requests);
  for (size_t i = inputs_.size() / 2; i < inputs_.size(); ++i) {
    facts.second_half_input += inputs_[i];
    facts.second_half_shared += shared_[i];
  }
  const int64_t gaps = facts.requests - 1;
  const double span = static_cast<double>(facts.last_arrival_ns - facts.first_arrival_ns) / 1e9;
  if (gaps > 0 && span > 0) {
    const double mean = span / static_cast<double>(gaps);
    const double variance = sum_of_gap_squares_ / static_cast<double>(gaps) - mean * mean;
    facts.gap_cv = std::sqrt(std::max(variance, 0.0)) / mean;
  }
  return facts;
}

std::vector<int64_t> DefaultEngineBlockSizes() { return {16, 64, 512, 1024}; }

absl::StatusOr<TraceFacts> ComputeTraceFacts(TraceReader& reader,
                                             const std::vector<int64_t>& engine_block_sizes) {
  TraceFactsBuilder builder(reader.info(), engine_block_sizes);
  KVBLOCKS_RETURN_IF_ERROR(ForEachRequest(reader, [&](const TraceRequest& request) {
    builder.Add(request);
    return absl::OkStatus();
  }));
  return builder.Finish();
}

std::string FormatTraceFacts(const TraceFacts& f) {
  std::string out;
  const auto row = [&out](const std::string& name, const std::string& value) {
    absl::StrAppendFormat(&out, "%-34s%s\n", name, value);
  };
  row("trace", absl::StrCat(f.info.name, " (", f.info.format, ")"));
  if (f.info.pseudo_tokens) {
    row("tokens", "pseudo-tokens, which are bytes of texts and not a tokenizer's");
  }
  if (const auto links = f.info.notes.find(kTurnLinksNote); links != f.info.notes.end()) {
    absl::StrAppend(&out, links->second, "\n");
  }
  row("requests", Grouped(f.requests));
  row("input tokens", Lengths(f.input));
  row("output tokens", Lengths(f.output));
  row("arrivals", absl::StrCat("first ", Seconds(f.first_arrival_ns), " s, span ",
                               Seconds(f.last_arrival_ns - f.first_arrival_ns), " s, ",
                               Grouped(f.distinct_timestamps), " distinct, gap CV ",
                               absl::StrFormat("%.2f", f.gap_cv)));
  if (f.sessions > 0 || f.closed_loop_requests > 0) {
    row("sessions; requests that wait",
        absl::StrCat(Grouped(f.sessions), "; ", Grouped(f.closed_loop_requests)));
  }
  if (f.block_refs == 0) {
    row("content", "no content identity in this trace; cross-request hits are 0 by construction");
    return out;
  }
  row("tokens per content id", Grouped(f.info.block_tokens));
  row("block refs; distinct; used once",
      absl::StrCat(Grouped(f.block_refs), "; ", Grouped(f.distinct_paths), "; ",
                   Grouped(f.paths_used_once)));
  row("most refs of one request", Grouped(f.most_refs));
  row("prefix hits",
      absl::StrCat(Grouped(f.prefix_hits), " (", Share(f.prefix_hits, f.block_refs), ")"));
  row("full blocks; hits",
      absl::StrCat(Grouped(f.full_block_refs), "; ", Grouped(f.full_block_hits), " (",
                   Share(f.full_block_hits, f.full_block_refs), ")"));
  row("hit tokens, infinite cache",
      absl::StrCat(Grouped(f.shared_tokens), " (", Share(f.shared_tokens, f.input.total), ")"));
  for (const EngineFacts& engine : f.engine) {
    row(absl::StrCat("  engine blocks of ", engine.block_tokens),
        absl::StrCat(Grouped(engine.hit_tokens), " (", Share(engine.hit_tokens, f.input.total),
                     "), ", Grouped(engine.hit_blocks), " of ", Grouped(engine.full_blocks),
                     " full blocks"));
  }
  row("requests with a hit", absl::StrCat(Grouped(f.requests_with_hit), " (",
                                          Share(f.requests_with_hit, f.requests), ")"));
  row("mean of per-request ratios", absl::StrFormat("%.3f %%", 100.0 * f.mean_of_ratios));
  row("second half of requests",
      absl::StrCat(Grouped(f.second_half_shared), " of ", Grouped(f.second_half_input), " tokens (",
                   Share(f.second_half_shared, f.second_half_input), ")"));
  row("hottest id", absl::StrCat(f.hottest_id, ", ", Grouped(f.hottest_uses), " times"));
  return out;
}

}  // namespace kvblocks::sim
