// Answer: what one request of the API gets - one pseudo answer per prompt and n, as one JSON object
// or as a stream of server-sent events, as its tokens are produced.
//
// All tokens of an answer are known from the start (AnswerPlan); the engine says how many of them
// have been produced. So a client that reads slowly costs two counters: what is behind is written
// from the plan when the connection takes it, an event per token.
//
// Always: an event is written once, in order; the last one of a stream is "data: [DONE]". Owned and
// called by the I/O thread.

#ifndef KVBLOCKS_SIM_SERVE_ANSWER_H_
#define KVBLOCKS_SIM_SERVE_ANSWER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/api_request.h"
#include "sim/serve/http.h"
#include "sim/serve/tokenizer.h"

namespace kvblocks::sim {

// The tokens of one answer, and where it ends.
struct AnswerPlan {
  // Token i is tokens[(start + i) % size]; pieces likewise.
  std::shared_ptr<const std::vector<TokenId>> tokens;
  std::shared_ptr<const std::vector<std::string>> pieces;
  size_t start = 0;
  int64_t limit = 0;                     // tokens that the client would take
  int64_t length = 0;                    // tokens
  size_t text_bytes = SIZE_MAX;          // of their text are shown; a stop text ends it early
  bool is_stop = false;                  // finish_reason "stop", not "length"
  std::string stop_reason = "null";      // as JSON

  TokenId token(int64_t i) const {
    return (*tokens)[(start + static_cast<size_t>(i)) % tokens->size()];
  }
  const std::string& piece(int64_t i) const {
    return (*pieces)[(start + static_cast<size_t>(i)) % pieces->size()];
  }
};

class Answer {
 public:
  struct Sequence {
    AnswerPlan plan;
    int64_t prompt = 0;             // whose prompt
    int64_t num_prompt_tokens = 0;
    std::shared_ptr<const std::string> echo = {};  // text that comes before the answer; or null
    // As the engine says.
    bool is_admitted = false;
    int64_t num_cached_tokens = 0;
    int64_t num_produced = 0;
    bool is_ended = false;
    std::string abort_reason =
        {};  // JSON's finish_reason where it was cut short; empty: it was not
    // Written so far.
    int64_t num_written = 0;
    size_t num_bytes = 0;
    std::string held = {};  // bytes of a character that is not whole yet
    bool is_started = false;
    bool is_finished = false;
  };

  Answer(const CompletionRequest& request, std::string id, std::string model, int64_t created);

  std::vector<Sequence>& sequences() { return sequences_; }
  bool is_stream() const { return stream_; }
  bool is_ended() const;  // all sequences are

  // Nothing more will be produced, and this is why: a stream ends with it.
  void Fail(const ApiError& error) { failure_ = error; }

  // The whole answer. REQUIRES: is_ended().
  std::string Json() const;
  // Appends the events that became due, until `out` has `limit` bytes or more.
  BodySource::State AppendEvents(size_t limit, std::string* out);

 private:
  std::string Text(const Sequence& sequence) const;
  std::string Usage(bool all) const;
  std::string FinishReason(const Sequence& sequence) const;
  // `role`: a field before the text, of a chat's first event.
  void AppendEvent(size_t index, const char* role, std::string_view text, bool is_last,
                   std::string* out);
  void AppendChoiceEnd(const Sequence& sequence, bool is_last, std::string* out) const;

  const bool is_chat_, stream_, include_usage_, continuous_usage_;
  std::string head_;  // of every object: id, object, created, model
  std::vector<Sequence> sequences_;
  std::optional<ApiError> failure_;
  bool is_done_ = false;
};

// {"error": {...}} as vLLM and OpenAI write it.
std::string ErrorJson(const ApiError& error);

// StopMatcher: where a plan of tokens ends because a stop text or a stop token of its request comes
// up behind min_tokens.
//
// All stop texts are sought at once, byte by byte, in the automaton of Aho and Corasick: what a
// token costs does not depend on how many stop texts there are and how long. A plan's text begins
// again behind its end, so the search stops where it has seen a whole turn from the same state.
//
// Memory: 24 bytes per byte of the stop texts. Cost of Apply: O(bytes of the plan's text up to its
// end or two turns).
class StopMatcher {
 public:
  // `request` must outlive it.
  explicit StopMatcher(const CompletionRequest& request);

  // Ends the plan at the first stop. Of several that are complete with one token, the one counts
  // that begins first.
  void Apply(AnswerPlan* plan) const;

 private:
  // What was read last is the longest beginning of a stop text that it can be.
  struct Node {
    int32_t first_child = 0;  // 0: none
    int32_t sibling = 0;      // 0: the last one
    int32_t suffix = 0;       // the node of its longest end that is a beginning, too
    int32_t end = 0;          // the first node along suffixes, from itself, that is a stop; 0: none
    int32_t stop = -1;        // the request's stop that ends here
    char byte = 0;
  };

  int32_t Child(int32_t node, char byte) const;
  int32_t Next(int32_t node, char byte) const;

  const CompletionRequest& request_;
  std::vector<Node> nodes_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_ANSWER_H_
