// RequestAttention: what a request asks of attention beyond the causal rule: a mask of its prompt,
// or chunks that were computed on their own (CacheBlend).
//
// Masks hide; the causal rule and a layer's window hold besides, so prompts may be cut into chunks.
// What is sampled sees what the prompt's last token sees, and what was sampled. Content that was
// computed by other rules is no hit: Salt separates it.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_REQUEST_ATTENTION_H_
#define KVBLOCKS_EXAMPLES_ENGINE_REQUEST_ATTENTION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention_masks.h"

namespace kvblocks::engine {

struct RequestAttention {
  // At most one of these. Lengths of documents that the prompt begins with: a token of one sees no
  // other. Tokens behind all of them see all.
  std::vector<int64_t> documents = {};
  // A row of 0 and 1 for each token of the prompt, as long as its position and it: 1 is seen.
  std::vector<std::string> mask = {};
  // Lengths of chunks that the prompt begins with, to be blended where they are kept.
  std::vector<int64_t> chunks = {};
  bool keep = false;  // the prompt's keys and values, for prompts that it is a chunk of

  bool is_masked() const { return !documents.empty() || !mask.empty(); }
  bool blends() const { return !chunks.empty() || keep; }
  // InvalidArgument, for a prompt of so many tokens.
  absl::Status Check(int64_t num_prompt) const;
  // Empty: content of its prompt is that of all others. `row`: of the trace.
  std::string Salt(int64_t row, int64_t num_prompt) const;
  // For a layer with this window, or 0. Of a request that was checked, which must outlive it.
  attention::MaskRule Rule(int64_t num_prompt, int64_t window) const;
};

// By request id.
using RequestAttentions = std::map<std::string, RequestAttention>;

// A file of JSON lines: {"request_id": "7", "documents": [40, 30]}, or "mask": ["1", "01", ...],
// "chunks": [40, 30], "keep": true. InvalidArgument names the line.
absl::StatusOr<RequestAttentions> ReadRequestAttentions(const std::string& path);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_REQUEST_ATTENTION_H_
