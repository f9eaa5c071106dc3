// TokenValues: what a token's key, value and query are in a verified run: numbers that follow from
// the tokens up to it, its layer and a seed, so that all requests with the same prefix write the
// same rows, and a prefix that was mistaken for another shows.
//
// A prefix is named by a 64-bit digest that each further token is chained to. Values are multiples
// of 1/64 in [-2, 2), exact in every type that a cache may have. Cost: about 1 ns per value.


#ifndef KVBLOCKS_ATTENTION_VERIFY_TOKEN_VALUES_H_
#define KVBLOCKS_ATTENTION_VERIFY_TOKEN_VALUES_H_

#include <cstdint>

#include "absl/types/span.h"

namespace kvblocks::attention {

enum class TokenValueKind : uint64_t { kKeyAndValue = 1, kQuery = 2, kSinkToken = 3 };

class TokenValues {
 public:
  explicit TokenValues(uint64_t seed);

  // The digest before a request's first token. Equal tokens under another salt are other content.
  uint64_t EmptyPrefix(uint64_t salt) const;
  // The digest of a prefix with one more token.
  static uint64_t Extend(uint64_t prefix, int64_t token);

  // The values of the last token of `prefix` in a layer.
  void Fill(uint64_t prefix, int64_t layer, TokenValueKind kind, absl::Span<float> out) const;

 private:
  uint64_t seed_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_VERIFY_TOKEN_VALUES_H_
