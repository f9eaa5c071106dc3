#include "kvblocks/sim/serve/tokenizer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

absl::StatusOr<Encoding> ByteTokenizer::Encode(std::string_view text, bool, bool with_pieces) {
  Encoding encoding;
  encoding.tokens.reserve(text.size());
  for (const char c : text) encoding.tokens.push_back(static_cast<unsigned char>(c));
  if (with_pieces) {
    for (const char c : text) encoding.pieces.emplace_back(1, c);
  }
  return encoding;
}

absl::StatusOr<std::vector<std::string>> ByteTokenizer::Pieces(absl::Span<const TokenId> tokens) {
  std::vector<std::string> pieces;
  pieces.reserve(tokens.size());
  for (const TokenId token : tokens) {
    pieces.push_back(token >= 0 && token < 256 ? std::string(1, static_cast<char>(token))
                                               : std::string("\xEF\xBF\xBD"));
  }
  return pieces;
}

absl::StatusOr<PseudoText> PseudoText::Make(Tokenizer& tokenizer) {
  constexpr const char* kWords[] = {
      "a",     "the",   "block", "page",  "queue", "token", "cache", "prefix", "holds", "waits",
      "moves", "free",  "long",  "short", "new",   "old",   "first", "last",   "step",  "and",
      "of",    "to",    "in",    "for",   "with",  "while", "until", "every",  "some",  "no",
      "table", "pool",  "batch", "slot",  "model", "layer", "head",  "key",    "value", "request"};
  constexpr int kSentences = 400;
  uint64_t state = 0x9E3779B97F4A7C15;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  std::string text;
  std::vector<size_t> sentences;  // first bytes
  for (int s = 0; s < kSentences; ++s) {
    sentences.push_back(text.size());
    const uint64_t num_words = 5 + draw(10);
    for (uint64_t w = 0; w < num_words; ++w) {
      std::string word = kWords[draw(std::size(kWords))];
      if (w == 0) word[0] = absl::ascii_toupper(static_cast<unsigned char>(word[0]));
      absl::StrAppend(&text, w == 0 ? "" : " ", word);
    }
    text += ". ";
  }
  auto encoding = tokenizer.Encode(text, /*adds_special=*/false, /*with_pieces=*/true);
  if (!encoding.ok()) return encoding.status();
  PseudoText out;
  out.tokens = std::move(encoding->tokens);
  out.pieces = std::move(encoding->pieces);
  if (out.tokens.empty() || out.tokens.size() != out.pieces.size()) {
    return absl::InternalError("the tokenizer makes no tokens of a plain text");
  }
  // A sentence begins with the token that has its first letter, and maybe the space before it.
  size_t end = 0, sentence = 0;
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    end += out.pieces[i].size();
    if (sentence == sentences.size() || end <= sentences[sentence]) continue;
    out.starts.push_back(i);
    while (sentence < sentences.size() && end > sentences[sentence]) ++sentence;
  }
  if (out.starts.empty()) return absl::InternalError("the tokenizer's pieces are not its text");
  return out;
}

size_t WholeCharacters(std::string_view text) {
  // At most three bytes of a character can be there without its last one.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // goes on
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace kvblocks::sim
