#include "sim/serve/tokenizer.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "checks/json_text.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "simdjson.h"

extern char** environ;

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
  KVBLOCKS_ASSIGN_OR_RETURN(auto encoding,
                            tokenizer.Encode(text, /*adds_special=*/false, /*with_pieces=*/true));
  PseudoText out;
  out.tokens = std::move(encoding.tokens);
  out.pieces = std::move(encoding.pieces);
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

namespace {

// Pieces reach to the end of their token, so that together they are the text.
constexpr const char* kScript = R"(
import json, sys
def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
try:
    from tokenizers import Tokenizer
except ImportError:
    say({"missing": True})
    sys.exit(0)
try:
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
except Exception as error:
    say({"error": str(error)})
    sys.exit(0)
say({"ready": True})
for line in sys.stdin:
    try:
        ask = json.loads(line)
        if "text" in ask:
            text = ask["text"]
            encoding = tokenizer.encode(text, add_special_tokens=ask["special"])
            answer = {"ids": encoding.ids}
            if ask["pieces"]:
                pieces, last = [], 0
                for begin, end in encoding.offsets:
                    pieces.append(text[last:max(last, end)])
                    last = max(last, end)
                answer["pieces"] = pieces
        else:
            parts = [ask["ids"]] if ask["whole"] else [[i] for i in ask["ids"]]
            answer = {"pieces": [tokenizer.decode(p, skip_special_tokens=False) for p in parts]}
    except Exception as error:
        answer = {"error": str(error)}
    say(answer)
)";

class HfTokenizer final : public Tokenizer {
 public:
  explicit HfTokenizer(absl::Duration patience) : patience_(patience) {}
  ~HfTokenizer() override { Stop(); }

  absl::Status Start(const std::string& file, const std::string& python) {
    file_ = file;
    python_ = python;
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0) return Failed("a pipe");
    if (pipe2(from, O_CLOEXEC) != 0) {
      close(to[0]);
      close(to[1]);
      return Failed("a pipe");
    }
    to_ = to[1];
    from_ = from[0];
    fcntl(to_, F_SETFL, O_NONBLOCK);
    deadline_ = absl::Now() + patience_;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    // Clients' connections would stay open for as long as the process lives.
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    const char* argv[] = {python.c_str(), "-c", kScript, file.c_str(), nullptr};
    const int error = posix_spawnp(&child_, python.c_str(), &actions, nullptr,
                                   const_cast<char**>(argv), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    if (error != 0) {
      child_ = -1;
      return InvalidArgument("--tokenizer: cannot start ", python, ": ", std::strerror(error),
                             "; install Python 3, or name one with --python");
    }
    simdjson::dom::element answer;
    KVBLOCKS_RETURN_IF_ERROR(Receive(&answer));
    bool is_missing;
    if (answer["missing"].get(is_missing) == simdjson::SUCCESS) {
      return InvalidArgument("--tokenizer: ", python,
                             " has no package tokenizers; install it (python3 -m pip install "
                             "tokenizers), or name a Python that has it with --python");
    }
    std::string_view problem;
    if (answer["error"].get(problem) == simdjson::SUCCESS) {
      return InvalidArgument("--tokenizer: ", file, ": ", std::string(problem));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Encoding> Encode(std::string_view text, bool adds_special,
                                  bool with_pieces) override {
    std::string ask = "{\"text\":";
    AppendJsonString(text, &ask);
    absl::StrAppend(&ask, ",\"special\":", adds_special ? "true" : "false",
                    ",\"pieces\":", with_pieces ? "true" : "false", "}\n");
    simdjson::dom::element answer;
    KVBLOCKS_RETURN_IF_ERROR(Ask(ask, &answer));
    Encoding encoding;
    simdjson::dom::array ids;
    if (answer["ids"].get(ids) != simdjson::SUCCESS) return Nonsense();
    for (const simdjson::dom::element id : ids) {
      int64_t token;
      if (id.get(token) != simdjson::SUCCESS) return Nonsense();
      encoding.tokens.push_back(static_cast<TokenId>(token));
    }
    if (with_pieces) {
      auto pieces = ReadPieces(answer);
      if (!pieces.ok()) return pieces.status();
      encoding.pieces = *std::move(pieces);
    }
    return encoding;
  }

  absl::StatusOr<std::vector<std::string>> Pieces(absl::Span<const TokenId> tokens) override {
    return AskForText(tokens, false);
  }
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens) override {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto whole, AskForText(tokens, true));
    return absl::StrJoin(whole, "");
  }

  bool is_slow() const override { return true; }

 private:
  void Stop() {
    if (to_ >= 0) close(std::exchange(to_, -1));
    if (from_ >= 0) close(std::exchange(from_, -1));
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(std::exchange(child_, -1), nullptr, 0);
    }
    received_.clear();
  }

  static absl::Status Failed(const char* what) {
    return absl::UnavailableError(absl::StrCat("--tokenizer: ", what, ": ", std::strerror(errno)));
  }
  static absl::Status Nonsense() {
    return absl::InternalError("the tokenizer's process answered something else");
  }

  absl::StatusOr<std::vector<std::string>> AskForText(absl::Span<const TokenId> tokens,
                                                      bool whole) {
    simdjson::dom::element answer;
    KVBLOCKS_RETURN_IF_ERROR(Ask(absl::StrCat("{\"ids\":[", absl::StrJoin(tokens, ","),
                                              "],\"whole\":", whole ? "true" : "false", "}\n"),
                                 &answer));
    return ReadPieces(answer);
  }

  static absl::StatusOr<std::vector<std::string>> ReadPieces(const simdjson::dom::element& answer) {
    simdjson::dom::array list;
    if (answer["pieces"].get(list) != simdjson::SUCCESS) return Nonsense();
    std::vector<std::string> pieces;
    for (const simdjson::dom::element piece : list) {
      std::string_view text;
      if (piece.get(text) != simdjson::SUCCESS) return Nonsense();
      pieces.emplace_back(text);
    }
    return pieces;
  }

  // A process that is gone is started again, for this request once.
  absl::Status Ask(const std::string& ask, simdjson::dom::element* answer) {
    absl::Status status = AskOnce(ask, answer);
    if (!absl::IsUnavailable(status)) return status;
    Stop();
    if (absl::Status started = Start(file_, python_); !started.ok()) {
      Stop();
      return absl::UnavailableError(started.message());
    }
    return AskOnce(ask, answer);
  }

  absl::Status AskOnce(const std::string& ask, simdjson::dom::element* answer) {
    if (to_ < 0) return absl::UnavailableError("--tokenizer: its process is gone");
    deadline_ = absl::Now() + patience_;
    for (size_t sent = 0; sent < ask.size();) {
      KVBLOCKS_RETURN_IF_ERROR(Wait(to_, POLLOUT));
      const ssize_t count = write(to_, ask.data() + sent, ask.size() - sent);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return Failed("its process is gone");
      sent += static_cast<size_t>(count);
    }
    KVBLOCKS_RETURN_IF_ERROR(Receive(answer));
    std::string_view problem;
    if ((*answer)["error"].get(problem) == simdjson::SUCCESS) {
      return InvalidArgument("the tokenizer: ", std::string(problem));
    }
    return absl::OkStatus();
  }

  // Until the pipe is ready. A process that does not answer is ended, so that the next request
  // starts another one.
  absl::Status Wait(int pipe, short events) {
    while (true) {
      const absl::Duration left = deadline_ - absl::Now();
      pollfd item{.fd = pipe, .events = events, .revents = 0};
      const int ready = left <= absl::ZeroDuration()
                            ? 0
                            : poll(&item, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) return Failed("poll");
      Stop();
      return absl::DeadlineExceededError(absl::StrCat(
          "--tokenizer: no answer within ", absl::FormatDuration(patience_), "; it starts anew"));
    }
  }

  // One line.
  absl::Status Receive(simdjson::dom::element* answer) {
    size_t end, sought = 0;
    while ((end = received_.find('\n', sought)) == std::string::npos) {
      sought = received_.size();
      KVBLOCKS_RETURN_IF_ERROR(Wait(from_, POLLIN));
      char buffer[65536];
      const ssize_t count = read(from_, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return Failed("its process is gone");
      received_.append(buffer, static_cast<size_t>(count));
    }
    const std::string line = received_.substr(0, end);
    received_.substr(end + 1).swap(received_);  // and what a long line took is given back
    if (parser_.parse(line).get(*answer) != simdjson::SUCCESS) return Nonsense();
    return absl::OkStatus();
  }

  const absl::Duration patience_;
  absl::Time deadline_;  // of what is asked
  std::string file_, python_;
  pid_t child_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string received_;
  simdjson::dom::parser parser_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeHfTokenizer(const std::string& file,
                                                           const std::string& python,
                                                           absl::Duration patience) {
  auto tokenizer = std::make_unique<HfTokenizer>(patience);
  KVBLOCKS_RETURN_IF_ERROR(tokenizer->Start(file, python));
  return tokenizer;
}

}  // namespace kvblocks::sim
