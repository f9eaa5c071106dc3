// VerifiedSteps: a KvCacheVerifier and steps of requests A, B, ..., whose tokens are 0, 1, 2, ...
// and whose blocks are given by hand. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_VERIFIED_STEPS_H_
#define KVBLOCKS_ATTENTION_TESTING_VERIFIED_STEPS_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::attention {

// A request's part of a step.
struct VerifiedPart {
  uint64_t id = 1;
  int64_t num_computed = 0, num_scheduled = 1;
  std::vector<std::vector<int32_t>> tables = {};  // one per group
  std::vector<int64_t> encoder_tokens = {};
  std::vector<VerifiedCheckpoint> checkpoints = {};
  uint64_t salt = 0;
};

class VerifiedSteps {
 public:
  explicit VerifiedSteps(const VerifierOptions& options)
      : verifier(KvCacheVerifier::Create(options).value()) {
    for (int64_t token = 0; token < 256; ++token) tokens_.push_back(token);
  }
  static std::string_view NameOf(uint64_t id) {
    return std::string_view("ABCDE").substr(id - 1, 1);
  }

  absl::Status Run(const std::vector<VerifiedPart>& parts) {
    std::vector<absl::Span<const int32_t>> tables;
    for (const VerifiedPart& part : parts) {
      tables.insert(tables.end(), part.tables.begin(), part.tables.end());
    }
    std::vector<VerifiedRequest> requests;
    auto table = absl::MakeConstSpan(tables);
    for (const VerifiedPart& part : parts) {
      requests.push_back({.id = part.id,
                          .name = NameOf(part.id),
                          .salt = part.salt,
                          .num_computed = part.num_computed,
                          .num_scheduled = part.num_scheduled,
                          .tokens = tokens_,
                          .block_tables = table.first(part.tables.size()),
                          .checkpoints = part.checkpoints,
                          .encoder_tokens = part.encoder_tokens});
      table.remove_prefix(part.tables.size());
    }
    return verifier->OnStep(requests);
  }

  std::unique_ptr<KvCacheVerifier> verifier;

 private:
  std::vector<int64_t> tokens_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_VERIFIED_STEPS_H_
