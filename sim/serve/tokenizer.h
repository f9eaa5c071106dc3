// Tokenizer: text as token ids, and back.
//
// ByteTokenizer takes every byte as a token: the id is the byte. It needs no file, and the text of
// an answer that a client sends back in its next prompt has the tokens that the answer had.
// MakeHfTokenizer (hf_tokenizer.h) asks Hugging Face's library for a tokenizer.json.
//
// Always: the pieces of a text's tokens, put together, are the text, as far as the tokenizer keeps
// it. Threads: one call at a time.

#ifndef KVBLOCKS_SIM_SERVE_TOKENIZER_H_
#define KVBLOCKS_SIM_SERVE_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/block_hash.h"

namespace kvblocks::sim {

struct Encoding {
  std::vector<TokenId> tokens = {};
  std::vector<std::string> pieces = {};  // one per token, if they were asked for
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `adds_special`: with the tokens that the model wants around a prompt, if it has any.
  // Unavailable if the tokenizer is gone.
  virtual absl::StatusOr<Encoding> Encode(std::string_view text, bool adds_special,
                                          bool with_pieces) = 0;
  virtual absl::StatusOr<std::vector<std::string>> Pieces(absl::Span<const TokenId> tokens) = 0;
  // Whether a call may take long enough to be made on a thread of its own.
  virtual bool is_slow() const = 0;
};

class ByteTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<Encoding> Encode(std::string_view text, bool adds_special,
                                  bool with_pieces) override;
  // U+FFFD for an id that is no byte.
  absl::StatusOr<std::vector<std::string>> Pieces(absl::Span<const TokenId> tokens) override;
  bool is_slow() const override { return false; }
};

// What answers are made of: a long text of pseudo words, as tokens. An answer is a part of it that
// begins with a sentence; behind the end it goes on from the beginning.
struct PseudoText {
  std::vector<TokenId> tokens;
  std::vector<std::string> pieces;
  std::vector<size_t> starts;  // tokens that begin a sentence

  static absl::StatusOr<PseudoText> Make(Tokenizer& tokenizer);
  // Where the answer begins that this number stands for.
  size_t StartOf(uint64_t number) const { return starts[number % starts.size()]; }
};

// The length of the longest part from the beginning that ends with a whole character of UTF-8.
size_t WholeCharacters(std::string_view text);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_TOKENIZER_H_
