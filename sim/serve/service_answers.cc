// Service: requests that the engine works on.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "sim/serve/answer.h"
#include "sim/serve/service.h"
#include "xxhash.h"

namespace kvblocks::sim {

// One HTTP request between its body and the end of its answer.
struct Service::Pending final : BodySource {
  Pending(Service* owner, std::shared_ptr<Exchange> to, CompletionRequest asked)
      : service(owner), exchange(std::move(to)), request(std::move(asked)) {}

  State Append(size_t limit, std::string* out) override {
    return answer->AppendEvents(limit, out);
  }

  Service* const service;
  const std::shared_ptr<Exchange> exchange;
  CompletionRequest request;
  const LoraModule* lora = nullptr;
  std::string path;
  std::string id;
  // Of each prompt; with pieces where answers repeat it.
  std::vector<std::shared_ptr<const Encoding>> prompts;
  std::vector<std::shared_ptr<const std::string>>
      echoes;  // of each prompt, where they are asked for
  std::shared_ptr<const Encoding> repeated;                // what a chat's answer repeats
  std::optional<StopMatcher> stops;
  absl::Status tokenized;
  std::optional<Answer> answer;
  std::vector<int64_t> sequences;  // ids, in the order of the answer's
  bool is_streaming = false;
  std::atomic<bool> is_over = false;  // answered, cut, or nobody waits for it
  bool is_touched = false;  // in touched_
  int64_t cut_after = -1;   // tokens of all sequences; negative: never
  int64_t num_tokens = 0;   // of all sequences so far
  std::optional<ApiError> error;
};

absl::StatusOr<std::unique_ptr<Service>> Service::Create(
    Options options, const PseudoText* text, TokenizerQueue* tokenizer, EventLoop* loop,
    EngineFactory make_engine, std::function<void(bool)> set_up,
    std::function<Connections()> connections) {
  std::unique_ptr<Service> service(new Service(std::move(options), text, tokenizer, loop));
  service->make_engine_ = std::move(make_engine);
  service->set_up_ = std::move(set_up);
  service->connections_ = std::move(connections);
  KVBLOCKS_RETURN_IF_ERROR(service->MakeEngine());
  return service;
}

Service::Service(Options options, const PseudoText* text, TokenizerQueue* tokenizer,
                 EventLoop* loop)
    : options_(std::move(options)),
      text_(text),
      tokenizer_(tokenizer),
      loop_(loop),
      parser_({.max_prompts = options_.max_prompts, .max_answers = options_.max_prompts}),
      faults_(options_.faults),
      random_(options_.seed * 2 + 1) {}

Service::~Service() { engine_ = nullptr; }

double Service::Draw() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(random_ >> 11) * 0x1p-53;
}

absl::Status Service::MakeEngine() {
  // An engine that is gone may have woken us before.
  const uint64_t generation = ++generation_;
  KVBLOCKS_ASSIGN_OR_RETURN(engine_, make_engine_([this, generation] {
                              loop_->Post([this, generation] {
                                if (generation == generation_) TakeUpdates();
                              });
                            }));
  return absl::OkStatus();
}

// Everything that the replica has is gone: connections, requests, cache and event stream.
void Service::Crash(double seconds) {
  if (engine_ == nullptr) return;
  ++num_crashes_;
  ++generation_;
  engine_ = nullptr;
  live_tokens_ = 0;
  for (auto& [id, entry] : std::exchange(live_, {})) {
    if (entry.pending == nullptr || entry.pending->is_over.exchange(true)) continue;
    entry.pending->exchange->Cut();
  }
  set_up_(false);
  loop_->After(std::chrono::duration<double>(seconds), [this] { ComeBack(); });
}

void Service::ComeBack() {
  if (const absl::Status status = MakeEngine(); !status.ok()) {
    std::fprintf(stderr, "kvsim serve: replica %lld does not come back, tries again: %s\n",
                 static_cast<long long>(options_.replica), status.ToString().c_str());
    loop_->After(std::chrono::seconds(1), [this] { ComeBack(); });
    return;
  }
  set_up_(true);
}

// --- From a body to sequences ---

void Service::HandleCompletion(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (faults_.error_rate > 0 && Draw() < faults_.error_rate) {
    return ReplyError(request.path, *exchange,
                      {.status = 500,
                       .message = "an error that was asked for (--fault-errors)"});
  }
  CompletionRequest asked;
  const LoraModule* lora = nullptr;
  auto error =
      parser_.ParseCompletion(request.body, request.path == "/v1/chat/completions", &asked);
  if (!error) error = CheckModel(asked.model, &lora);
  if (!error && asked.priority != 0 && !options_.has_priorities) {
    error =
        ApiError{.message = absl::StrCat("priority: got ", asked.priority,
                                         ", but priority scheduling is off (--policy=priority)"),
                 .param = "priority"};
  }
  if (error) return ReplyError(request.path, *exchange, *error);
  auto pending = std::make_shared<Pending>(this, std::move(exchange), std::move(asked));
  pending->lora = lora;
  pending->path = request.path;
  const std::string& given =
      request.request_id.empty() ? pending->request.request_id : request.request_id;
  const std::string name = given.empty() ? absl::StrCat(options_.replica, "-",
                                                        absl::Hex(next_request_++, absl::kZeroPad8))
                                         : given;
  pending->id = absl::StrCat(pending->request.is_chat ? "chatcmpl-" : "cmpl-", name);
  if (faults_.cut_rate > 0 && Draw() < faults_.cut_rate) {
    const int64_t most = pending->request.max_tokens.value_or(kDefaultAnswerTokens);
    pending->cut_after =
        static_cast<int64_t>(Draw() * static_cast<double>(std::min<int64_t>(most, 64)));
  }
  ++num_starting_;
  pending->exchange->set_gone([this, weak = std::weak_ptr<Pending>(pending)] {
    if (const auto gone = weak.lock(); gone != nullptr && !gone->is_over) {
      Count(gone->path, 499);
      Drop(*gone);
    }
  });
  const auto tokenize = [this, pending] {
    tokenizer_->Run([this, pending](Tokenizer& tokenizer) { Tokenize(tokenizer, *pending); },
                    [this, pending] { Begin(pending); });
  };
  if (faults_.delay_seconds > 0) {
    loop_->After(std::chrono::duration<double>(faults_.delay_seconds), tokenize);
  } else {
    tokenize();
  }
}

// On the tokenizer's thread. Pieces take ten times as much as tokens, so only prompts that fit get
// them.
void Service::Tokenize(Tokenizer& tokenizer, Pending& pending) const {
  const CompletionRequest& request = pending.request;
  const auto encode = [&](const PromptInput& input, bool adds_special,
                          bool with_pieces) -> absl::StatusOr<Encoding> {
    Encoding encoding = {.tokens = input.tokens};
    if (!input.is_tokens) {
      KVBLOCKS_ASSIGN_OR_RETURN(encoding,
                                tokenizer.Encode(input.text, adds_special, /*with_pieces=*/false));
    }
    if (!with_pieces || static_cast<int64_t>(encoding.tokens.size()) > options_.max_model_len) {
      return encoding;
    }
    if (!input.is_tokens) return tokenizer.Encode(input.text, adds_special, /*with_pieces=*/true);
    auto pieces = tokenizer.Pieces(encoding.tokens);
    if (!pieces.ok()) return pieces.status();
    encoding.pieces = *std::move(pieces);
    return encoding;
  };
  const bool repeats_prompt = options_.echoes && !request.is_chat;
  for (PromptInput& prompt : pending.request.prompts) {
    if (pending.is_over || !pending.tokenized.ok()) return;
    auto encoding = encode(prompt, request.adds_special, repeats_prompt || request.echo);
    prompt = {};
    pending.tokenized.Update(encoding.status());
    if (!encoding.ok()) return;
    if (request.echo) {
      pending.echoes.push_back(
          std::make_shared<const std::string>(absl::StrJoin(encoding->pieces, "")));
      if (!repeats_prompt) encoding->pieces = std::vector<std::string>();
    }
    pending.prompts.push_back(std::make_shared<const Encoding>(*std::move(encoding)));
  }
  if (!options_.echoes || !request.is_chat) return;
  auto encoding = encode({.text = request.last_message}, false, true);
  pending.tokenized.Update(encoding.status());
  if (encoding.ok()) pending.repeated = std::make_shared<const Encoding>(*std::move(encoding));
}

AnswerPlan Service::PlanOf(const Pending& pending, size_t prompt, int64_t index) const {
  const CompletionRequest& request = pending.request;
  const Encoding& encoding = *pending.prompts[prompt];
  const int64_t room = options_.max_model_len - static_cast<int64_t>(encoding.tokens.size());
  AnswerPlan plan;
  const XXH64_hash_t hash =
      XXH3_64bits_withSeed(encoding.tokens.data(), encoding.tokens.size() * sizeof(TokenId),
                           static_cast<uint64_t>(index));
  // Where it would end without a stop.
  int64_t natural = INT64_MAX;
  const auto& repeated = request.is_chat ? pending.repeated : pending.prompts[prompt];
  if (options_.echoes && !repeated->tokens.empty()) {
    plan.tokens = {repeated, &repeated->tokens};
    plan.pieces = {repeated, &repeated->pieces};
    natural = static_cast<int64_t>(repeated->tokens.size());
  } else {
    plan.tokens = {std::shared_ptr<void>(), &text_->tokens};
    plan.pieces = {std::shared_ptr<void>(), &text_->pieces};
    plan.start = text_->StartOf(hash);
    if (options_.most_answer_tokens > 0) {
      const int64_t range = options_.most_answer_tokens - options_.least_answer_tokens + 1;
      natural = options_.least_answer_tokens +
                static_cast<int64_t>(XXH3_64bits_withSeed(&hash, sizeof(hash), 1) %
                                     static_cast<uint64_t>(range));
    } else if (!request.max_tokens) {
      natural = kDefaultAnswerTokens;
    }
  }
  natural = std::max(natural, request.min_tokens);
  if (request.ignore_eos) natural = INT64_MAX;
  const int64_t limit = std::min(request.max_tokens.value_or(room), room);
  plan.limit = limit;
  plan.length = std::min(natural, limit);
  plan.is_stop = natural <= limit && !request.ignore_eos && natural != INT64_MAX;
  if (pending.stops) pending.stops->Apply(&plan);
  return plan;
}

std::optional<ApiError> Service::CheckPrompts(const Pending& pending) const {
  const CompletionRequest& request = pending.request;
  if (!pending.tokenized.ok()) {
    return ApiError{.status = 500,
                    .message = std::string(pending.tokenized.message())};
  }
  int64_t all_tokens = 0;
  for (const auto& prompt : pending.prompts) {
    const auto num_tokens = static_cast<int64_t>(prompt->tokens.size());
    if (num_tokens == 0) return ApiError{.message = "prompt: is empty", .param = "prompt"};
    const int64_t wanted = request.max_tokens.value_or(1);
    if (num_tokens + wanted > options_.max_model_len) {
      return ApiError{.message = absl::StrCat(
                          "This model's maximum context length is ", options_.max_model_len,
                          " tokens. However, you requested ", wanted, " output tokens and your "
                          "prompt contains ", num_tokens, " input tokens, for a total of ",
                          num_tokens + wanted, " tokens."),
                      .param = request.max_tokens ? "max_tokens" : "prompt"};
    }
    all_tokens += request.n * std::max(num_tokens, kLeastSequenceTokens);
  }
  if (live_tokens_ + all_tokens > options_.max_live_tokens) {
    return ApiError{
        .status = 503,
        .message = absl::StrCat("the prompts of all requests have ", live_tokens_,
                                " tokens, and yours, once "
                                "per answer, ",
                                all_tokens, ", expected at most ", options_.max_live_tokens,
                                " together; try again, or ask for fewer answers"),
        .retry_after_seconds = 1};
  }
  return std::nullopt;
}

void Service::Begin(std::shared_ptr<Pending> pending) {
  if (!pending->is_over && engine_ == nullptr) {
    pending->is_over = true;
    pending->exchange->Cut();
  }
  if (const auto error = CheckPrompts(*pending); error && !pending->is_over) {
    pending->is_over = true;
    ReplyError(pending->path, *pending->exchange, *error);
  }
  if (pending->is_over) {
    --num_starting_;
    return;
  }
  const CompletionRequest& request = pending->request;
  pending->answer.emplace(request, pending->id,
                          request.model.empty() ? options_.model : request.model,
                          static_cast<int64_t>(std::time(nullptr)));
  if (!request.stop.empty() || !request.stop_token_ids.empty()) {
    planning_.push_back(std::move(pending));
    if (planning_.size() == 1) PlanNext();
    return;
  }
  for (bool is_planned = false; !is_planned;) is_planned = PlanSequence(*pending);
  Submit(pending);
}

// Plans the next sequence. Returns whether it was the last one.
bool Service::PlanSequence(Pending& pending) const {
  auto& sequences = pending.answer->sequences();
  const auto p = sequences.size() / static_cast<size_t>(pending.request.n);
  const auto i = static_cast<int64_t>(sequences.size()) % pending.request.n;
  sequences.push_back(
      {.plan = PlanOf(pending, p, i),
       .prompt = static_cast<int64_t>(p),
       .num_prompt_tokens = static_cast<int64_t>(pending.prompts[p]->tokens.size()),
       .echo = pending.echoes.empty() ? nullptr : pending.echoes[p]});
  return sequences.size() == pending.prompts.size() * static_cast<size_t>(pending.request.n);
}

// Stop texts take time; in between the loop sees who came, who went, and signals.
void Service::PlanNext() {
  const std::shared_ptr<Pending> pending = planning_.front();
  if (!pending->stops) pending->stops.emplace(pending->request);
  if (pending->is_over || PlanSequence(*pending)) {
    pending->stops.reset();
    planning_.pop_front();
    Submit(pending);
  }
  if (!planning_.empty()) loop_->Post([this] { PlanNext(); });
}

void Service::Submit(const std::shared_ptr<Pending>& pending) {
  --num_starting_;
  // Others may have been submitted since it began, and the replica may be gone.
  if (engine_ == nullptr && !pending->is_over.exchange(true)) pending->exchange->Cut();
  if (pending->is_over) return;
  if (const auto error = CheckPrompts(*pending)) {
    pending->is_over = true;
    return ReplyError(pending->path, *pending->exchange, *error);
  }
  const CompletionRequest& request = pending->request;
  std::vector<std::shared_ptr<AnswerGroup>> groups(pending->prompts.size());
  for (auto& group : groups) group = std::make_shared<AnswerGroup>(AnswerGroup{.count = request.n});
  const auto& sequences = pending->answer->sequences();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AnswerPlan& plan = sequences[i].plan;
    const auto p = static_cast<size_t>(sequences[i].prompt);
    SequenceSpec spec{.id = next_sequence_++,
                      .name = absl::StrCat(pending->id, "-", i),
                      .prompt = {pending->prompts[p], &pending->prompts[p]->tokens},
                      .output = plan.tokens,
                      .output_start = plan.start,
                      .num_output = plan.length,
                      .ends_by_stop = plan.is_stop,
                      .max_tokens = plan.limit,
                      .group = groups[p],
                      .priority = request.priority,
                      .cache_salt = request.cache_salt};
    if (pending->lora != nullptr) {
      spec.lora_name = pending->lora->name;
      spec.lora_path = pending->lora->path;
    }
    const int64_t num_tokens = std::max(sequences[i].num_prompt_tokens, kLeastSequenceTokens);
    live_tokens_ += num_tokens;
    pending->sequences.push_back(spec.id);
    live_[spec.id] = {pending, i, num_tokens};
    engine_->Submit(std::move(spec));
  }
  // Nobody reads on, and its stop texts may be long.
  pending->request = {};
  pending->prompts.clear();
}

// --- From updates to answers ---

void Service::Drop(Pending& pending) {
  pending.is_over = true;
  for (const int64_t id : pending.sequences) {
    const auto it = live_.find(id);
    if (it == live_.end()) continue;
    // These entries may own `pending`: the caller must hold it.
    it->second.pending = nullptr;
    if (engine_ != nullptr) engine_->Abort(id);
  }
}

void Service::TakeUpdates() {
  if (engine_ == nullptr) return;
  engine_->TakeUpdates(&updates_);
  for (const SequenceUpdate& update : updates_) Apply(update);
  for (const std::shared_ptr<Pending>& pending : touched_) {
    pending->is_touched = false;
    Progress(pending);
  }
  touched_.clear();
}

void Service::Apply(const SequenceUpdate& update) {
  const auto it = live_.find(update.id);
  if (it == live_.end()) return;  // of an engine that is gone
  const std::shared_ptr<Pending> pending = it->second.pending;
  const size_t index = it->second.index;
  if (update.kind >= SequenceUpdate::Kind::kEnded) {
    live_tokens_ -= it->second.num_tokens;
    live_.erase(it);
  }
  if (pending == nullptr) return;
  Answer::Sequence& sequence = pending->answer->sequences()[index];
  switch (update.kind) {
    case SequenceUpdate::Kind::kAccepted:
      break;
    case SequenceUpdate::Kind::kAdmitted:
      sequence.is_admitted = true;
      sequence.num_cached_tokens = update.num_tokens;
      break;
    case SequenceUpdate::Kind::kTokens:
      sequence.num_produced += update.num_tokens;
      pending->num_tokens += update.num_tokens;
      break;
    case SequenceUpdate::Kind::kAborted:
      // Nobody here asked for it: the time that a request may wait is over.
      pending->error = ApiError{.status = 503,
                                .message = "the request waited for longer than --max-queue-time",
                                .retry_after_seconds = 1};
      break;
    case SequenceUpdate::Kind::kRejected:
      pending->error = ApiError{.message = update.text};
      break;
    case SequenceUpdate::Kind::kFailed:
      pending->error = ApiError{.status = 500, .message = update.text};
      break;
    case SequenceUpdate::Kind::kEnded:
      sequence.is_ended = true;
      break;
  }
  if (!std::exchange(pending->is_touched, true)) touched_.push_back(pending);
}

void Service::Progress(const std::shared_ptr<Pending>& pending) {
  if (pending->is_over) return;
  Exchange& exchange = *pending->exchange;
  if (pending->cut_after >= 0 && pending->num_tokens > pending->cut_after) {
    Count(pending->path, 0);
    Drop(*pending);
    exchange.Cut();
    return;
  }
  if (pending->error) {
    Drop(*pending);
    if (!pending->is_streaming) return ReplyError(pending->path, exchange, *pending->error);
    Count(pending->path, pending->error->status);
    pending->answer->Fail(*pending->error);
    exchange.Wake();
    return;
  }
  const bool is_ended = pending->answer->is_ended();
  if (pending->answer->is_stream()) {
    if (!std::exchange(pending->is_streaming, true)) exchange.Stream(pending);
    exchange.Wake();
    if (is_ended) Count(pending->path, 200);
  } else if (is_ended) {
    // A turn of the loop for each: together they may be long.
    loop_->Post([this, pending] {
      Reply(pending->path, *pending->exchange, {.body = pending->answer->Json()});
    });
  }
  pending->is_over = is_ended;
}

}  // namespace kvblocks::sim
