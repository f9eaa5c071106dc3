// Tokenizer: text as token ids, and back.
//
// ByteTokenizer takes every byte as a token: the id is the byte. It needs no file, and the text of
// an answer that a client sends back in its next prompt has the tokens that the answer had.
// MakeHfTokenizer asks Hugging Face's library for a tokenizer.json.
//
// Always: the pieces of a text's tokens, put together, are the text, as far as the tokenizer keeps
// it. Threads: one call at a time.

#ifndef KVBLOCKS_SIM_SERVE_TOKENIZER_H_
#define KVBLOCKS_SIM_SERVE_TOKENIZER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "sim/serve/http.h"

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
  // The text of tokens that belong together, which may have more in it than its pieces.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens) {
    auto pieces = Pieces(tokens);
    if (!pieces.ok()) return pieces.status();
    return absl::StrJoin(*pieces, "");
  }
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

// TokenizerQueue: a tokenizer for the I/O thread. One that is slow works on a thread of its own, so
// that the connections of others go on meanwhile; one that is not is called at once.
class TokenizerQueue {
 public:
  TokenizerQueue(std::unique_ptr<Tokenizer> tokenizer, EventLoop* loop)
      : tokenizer_(std::move(tokenizer)), loop_(loop) {
    if (tokenizer_->is_slow()) thread_ = std::thread([this] { Loop(); });
  }
  ~TokenizerQueue() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  TokenizerQueue(const TokenizerQueue&) = delete;
  TokenizerQueue& operator=(const TokenizerQueue&) = delete;

  // `work` has the tokenizer for itself; then `done` is called on the I/O thread.
  void Run(std::function<void(Tokenizer&)> work, std::function<void()> done) {
    if (!thread_.joinable()) {
      work(*tokenizer_);
      done();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace_back(std::move(work), std::move(done));
    }
    changed_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_ending_ || !tasks_.empty(); });
      if (is_ending_) return;
      auto [work, done] = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      work(*tokenizer_);
      work = nullptr;  // what it holds may end on the I/O thread alone, where `done` ends
      loop_->Post(std::move(done));
      lock.lock();
    }
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  EventLoop* const loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void(Tokenizer&)>, std::function<void()>>> tasks_;
  bool is_ending_ = false;
  std::thread thread_;
};

// A Hugging Face tokenizer.json, read by their own library.
//
// The library runs in a child process: Python with the package `tokenizers`. Requests and answers
// are lines of JSON through its pipes. It ends with this process, or when this object goes.

// `python`: the interpreter, "python3" or a path. InvalidArgument says what to install where the
// package is missing, or what is wrong with the file. A process that does not answer within
// `patience` is ended with DeadlineExceeded; the next request starts another one.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeHfTokenizer(
    const std::string& file, const std::string& python,
    absl::Duration patience = absl::Seconds(60));

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_TOKENIZER_H_
