#include "sim/curve/request_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/trace/content_keys.h"

namespace kvblocks::sim {

namespace {

// Distinguishes contents, in addition to the trace's own scope.
std::string SharingScope(ContentSharing sharing, const TraceRequest& request) {
  switch (sharing) {
    case ContentSharing::kAsTraced:
    case ContentSharing::kWithoutSalts:
      return "";
    case ContentSharing::kPerTenant:
      return absl::StrCat("tenant ", request.tenant);
    case ContentSharing::kPerSession:
      return request.session != 0 ? absl::StrCat("session ", request.session)
                                  : absl::StrCat("row ", request.row);
  }
  return "";
}

}  // namespace

void RequestBlocks::MakeKeys(const TraceRequest& request, int64_t num_tokens) {
  wide_.clear();
  ContentKeys keys(info_, request, options_.block_tokens, SharingScope(options_.sharing, request),
                   options_.hash_lookahead_tokens);
  keys.AppendBlocks(request, num_tokens, &wide_);
  keys_.clear();
  for (const absl::uint128 key : wide_) keys_.push_back(absl::Uint128Low64(key));
}

void RequestBlocks::MakeIdKeys(const TraceRequest& request) {
  keys_.clear();
  absl::uint128 path = ScopeKey(info_, request, SharingScope(options_.sharing, request));
  for (const int64_t id : request.content_ids) {
    path = PathKey(path, id);
    keys_.push_back(absl::Uint128Low64(path));
  }
}

bool RequestBlocks::Make(TraceRequest& request, CurveRequest* out) {
  const int64_t prompt = request.input_length;
  int64_t output = request.output_length;
  if (output == 0 && options_.zero_output == ZeroOutput::kSkip) return false;
  if (output == 0 && options_.zero_output == ZeroOutput::kOne) output = 1;
  if (prompt == 0 || prompt >= options_.max_model_len) return false;
  output = std::min(output, options_.max_model_len - prompt);
  if (options_.sharing == ContentSharing::kWithoutSalts) request.salt.clear();

  const int64_t block = options_.block_tokens;
  *out = CurveRequest();
  out->num_prompt_tokens = prompt;
  switch (options_.counted) {
    case CountedBlocks::kEngine: {
      const int64_t lookahead = options_.hash_lookahead_tokens;
      // The last token of the output is known and never computed.
      const int64_t computed = output > 0 ? prompt + output - 1 : prompt;
      MakeKeys(request, lookahead > 0 ? prompt + output : computed);
      const int64_t keyed = std::min<int64_t>(static_cast<int64_t>(keys_.size()), computed / block);
      keys_.resize(static_cast<size_t>(keyed));
      out->num_unkeyed = (computed + block - 1) / block - keyed;
      // Engines ask for room for all tokens.
      out->smallest_pool = (prompt + output + block - 1) / block;
      out->num_eligible =
          std::min({keyed, (prompt - 1) / block, std::max<int64_t>(prompt - lookahead, 0) / block});
      out->num_prompt_blocks = prompt / block;
      break;
    }
    case CountedBlocks::kPrompt:
      MakeKeys(request, prompt);
      out->num_eligible = static_cast<int64_t>(keys_.size());
      out->num_prompt_blocks = out->num_eligible;
      break;
    case CountedBlocks::kIds:
      MakeIdKeys(request);
      out->num_eligible = static_cast<int64_t>(keys_.size());
      out->num_prompt_blocks = out->num_eligible;
      break;
  }
  out->keys = keys_;
  out->smallest_pool = std::max(out->smallest_pool, out->num_blocks());
  return true;
}

int64_t BlockPaths::Follow(absl::Span<const uint64_t> keys, std::vector<Segment>* segments) const {
  segments->clear();
  return paths_.Follow(
      static_cast<int64_t>(keys.size()),
      [keys](int64_t i) { return keys[static_cast<size_t>(i)]; }, segments);
}

void BlockPaths::Append(absl::Span<const uint64_t> keys, std::vector<Segment>* segments) {
  const bool is_new = paths_.Append(
      static_cast<int64_t>(keys.size()),
      [keys](int64_t i) { return keys[static_cast<size_t>(i)]; }, segments);
  if (is_new) steps_.push_back({{segments->back().num_blocks, 0}});
}

void BlockPaths::Touch(absl::Span<const Segment> segments, Use use) {
  for (const Segment& segment : segments) {
    std::vector<Step>& steps = steps_[segment.piece];
    while (!steps.empty() && steps.back().end <= segment.num_blocks) steps.pop_back();
    steps.push_back({segment.num_blocks, use});
  }
}

// The deepest step ends with the piece.
void BlockPaths::ResetUses(Use use) {
  for (std::vector<Step>& steps : steps_) steps.assign(1, {steps.front().end, use});
}

}  // namespace kvblocks::sim
