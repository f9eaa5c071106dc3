// The parser of API requests on any bytes, by all of its doors. A refused body leaves nothing
// behind but its reason; what is taken keeps to the limits, and its stop texts end a plan inside of
// it.

#include <memory>
#include <string>

#include "sim/serve/answer.h"
#include "sim/serve/api_request.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;

constexpr ApiParser::Limits kLimits = {.max_prompts = 4, .max_answers = 8};

void CheckError(const std::optional<ApiError>& error) {
  FUZZ_EXPECT(error->status == 400, error->message);
  FUZZ_EXPECT(!error->message.empty(), "a reason");
  FUZZ_EXPECT(error->message.size() < 4096, error->message);
}

void PlanStops(const CompletionRequest& request) {
  const std::string text = "The pool waits. aaaa. \xC3\xA9";
  auto tokens = std::make_shared<std::vector<kvblocks::TokenId>>();
  auto pieces = std::make_shared<std::vector<std::string>>();
  for (const char c : text) {
    tokens->push_back(static_cast<unsigned char>(c));
    pieces->emplace_back(1, c);
  }
  AnswerPlan plan = {.tokens = tokens, .pieces = pieces, .length = 1000};
  StopMatcher(request).Apply(&plan);
  FUZZ_EXPECT(plan.length >= 1 && plan.length <= 1000, "a length");
  FUZZ_EXPECT(plan.is_stop == (plan.stop_reason != "null"), plan.stop_reason);
  FUZZ_EXPECT(!plan.is_stop || plan.text_bytes <= 1000 + 1 || plan.text_bytes == SIZE_MAX,
              "inside");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ApiParser parser(kLimits);
  for (const bool is_chat : {false, true}) {
    CompletionRequest request;
    request.model = "before";
    if (const auto error = parser.ParseCompletion(body, is_chat, &request)) {
      CheckError(error);
      FUZZ_EXPECT(request.model == "before", "nothing behind");
      continue;
    }
    const auto num_prompts = static_cast<int64_t>(request.prompts.size());
    FUZZ_EXPECT(num_prompts >= 1 && num_prompts <= kLimits.max_prompts, "prompts");
    FUZZ_EXPECT(request.n >= 1 && num_prompts * request.n <= kLimits.max_answers, "answers");
    FUZZ_EXPECT(request.stop.size() <= 64 && request.stop_token_ids.size() <= 64, "stops");
    PlanStops(request);
  }
  TokenizeRequest text;
  if (const auto error = parser.ParseTokenize(body, &text)) CheckError(error);
  DetokenizeRequest tokens;
  if (const auto error = parser.ParseDetokenize(body, &tokens)) CheckError(error);
  Faults change;
  if (const auto error = parser.ParseFaults(body, &change)) CheckError(error);
  return 0;
}
