// A request, with what the managers keep of it.

#ifndef KVBLOCKS_REQUEST_H_
#define KVBLOCKS_REQUEST_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"

// Request: one sequence as the block manager sees it. The scheduler owns it and moves its counters;
// the manager keeps the block tables inside it, so that no step needs a look-up in a map.
//
//   auto request = manager->NewRequest({.id = "r1", .content = {.token_ids = prompt}});
//   ... GetComputedBlocks, AllocateSlots, run the step ...
//   request->set_num_computed_tokens(request->num_computed_tokens() + scheduled);
//   request->AppendOutputTokens(sampled);
//
// Destroying a request that still holds blocks frees them, as KvCacheManager::Free does.
// Not movable: its manager points to it while it holds blocks. Thread-compatible.

namespace kvblocks {

class KvCacheManager;

enum class RequestStatus { kWaiting, kRunning, kPreempted, kFinished };

// What one request holds in one KV-cache group.
// Always: table = num_leading_nulls null blocks, then real ones (and for Mamba in align mode
// further nulls between them, and for windows of the output num_output_nulls from the end of the
// prompt on); num_cached <= table.size().
struct GroupBlocks {
  std::vector<BlockId> table;  // position i covers tokens [i * block_size, (i + 1) * block_size)
  int64_t num_cached = 0;      // leading positions already processed for registration
  int64_t num_leading_nulls = 0;
  int64_t num_output_nulls = 0;  // behind the blocks of the prompt
  // Blocks at the end of the table that the last allocation took as its result.
  int64_t num_new = 0;
  int64_t chunk_end = 0;  // Mamba in align mode: tokens at which the last step scheduled ends
  int64_t checkpoint_tokens = 0;    // inside that step, where a state is exported; 0: nowhere
  bool is_tail_registered = false;  // the prompt's end inside a block: see partial_hits
  // Mamba: the tokens of the state that is registered inside its block, which the request's next
  // step leaves to others; 0: none is.
  int64_t registered_state_tokens = 0;
};

// What one request holds, by group.
using RequestBlocks = absl::InlinedVector<GroupBlocks, 1>;

class Request {
 public:
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const std::string& id() const { return id_; }
  const PrefixContent& content() const { return content_; }

  // Prompt tokens, and prompt plus accepted output; drafts are never counted.
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int64_t num_tokens() const { return content_.num_tokens(); }

  // Accepted output. InvalidArgument if the request was made from hashes (then AppendHashedTokens),
  // and the other way round.
  absl::Status AppendOutputTokens(absl::Span<const TokenId> tokens,
                                  absl::Span<const BlockHash> hashes = {}) {
    return content_.AppendTokens(tokens, hashes);
  }
  absl::Status AppendHashedTokens(int64_t num_tokens, absl::Span<const BlockHash> hashes) {
    return content_.AppendHashedTokens(num_tokens, hashes);
  }

  // Another content in place of this one, of which the first num_prompt_tokens are the prompt: for
  // a request that is taken up again with its output, or a session that drops its last output and
  // goes on with more input. What is registered stays. The contents must agree up to
  // num_computed_tokens, and be hashed alike.
  void SetContent(PrefixContent content, int64_t num_prompt_tokens) {
    content_ = std::move(content);
    num_prompt_tokens_ = num_prompt_tokens;
    noop_slots_ = 0;
  }

  // The content, for another request; only to be destroyed or given another one afterwards.
  PrefixContent TakeContent() { return std::move(content_); }

  // Tokens counted as computed, advanced by the scheduler when it schedules a step; may fall when
  // drafts are rejected.
  int64_t num_computed_tokens() const { return num_computed_tokens_; }
  void set_num_computed_tokens(int64_t n) { num_computed_tokens_ = n; }

  // The part of num_computed_tokens whose step has not been processed yet; 0 for a synchronous
  // scheduler.
  int64_t num_inflight_tokens() const { return num_inflight_tokens_; }
  void set_num_inflight_tokens(int64_t n) { num_inflight_tokens_ = n; }

  RequestStatus status() const { return status_; }
  void set_status(RequestStatus status) { status_ = status; }

  int64_t num_preemptions() const { return num_preemptions_; }

  // A prefix that other requests share but that could not be hit as a whole, as
  // ComputedBlocks::shared_prefix_boundary() tells; 0: none. Where registration is sparse
  // (retention_interval), the blocks around it are kept.
  int64_t shared_prefix_boundary() const { return shared_prefix_boundary_; }
  void set_shared_prefix_boundary(int64_t num_tokens) { shared_prefix_boundary_ = num_tokens; }

  // The most slots that this request will ever ask for, lookahead included, if the caller knows; 0:
  // max_model_len. Only a hint for page classes in chunks: while the pages of so many slots fit, no
  // choice of a page takes that away. Asking for more is allowed.
  int64_t longest_length() const { return longest_length_; }
  void set_longest_length(int64_t num_slots) { longest_length_ = num_slots; }

  // After KvCacheManager::Free: computed tokens to 0, status preempted, one more preemption.
  void MarkPreempted() {
    num_computed_tokens_ = 0;
    num_inflight_tokens_ = 0;
    status_ = RequestStatus::kPreempted;
    ++num_preemptions_;
  }

  // Look-ups give nothing for this request, because its prompt must be computed (prompt
  // log-probabilities, pooling).
  bool skip_reading_prefix_cache() const { return skip_reading_prefix_cache_; }
  // Blocks that it makes are never registered, because other requests must not hit them.
  bool skip_writing_prefix_cache() const { return skip_writing_prefix_cache_; }

  // A step is a no-op if making its slots takes, frees and registers nothing, as a decode step
  // inside a block. This is the number of slots, lookahead included, up to which steps are no-ops:
  // AllocateSlots need not be called for them. 0: unknown. Set by AllocateSlots and CacheBlocks.
  int64_t noop_slots() const { return noop_slots_; }

  // Distinguishes requests of one process, also those with equal ids.
  uint64_t serial() const { return serial_; }

 private:
  friend class KvCacheManager;

  Request(std::string id, PrefixContent content, bool skip_reading_prefix_cache);

  std::string id_;
  PrefixContent content_;
  int64_t num_prompt_tokens_;
  int64_t num_computed_tokens_ = 0;
  int64_t num_inflight_tokens_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t shared_prefix_boundary_ = 0;
  int64_t longest_length_ = 0;
  RequestStatus status_ = RequestStatus::kWaiting;
  bool skip_reading_prefix_cache_;
  bool skip_writing_prefix_cache_ = false;
  bool reports_reused_blocks_ = false;
  uint64_t serial_;

  // The manager's part. Holds block tables iff holder_ is set.
  KvCacheManager* holder_ = nullptr;
  size_t holder_index_ = 0;  // in the manager's list of requests that hold blocks
  int64_t noop_slots_ = 0;
  RequestBlocks groups_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_REQUEST_H_
