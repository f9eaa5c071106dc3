#include "tests/exhaustive/exploration.h"

#include <utility>

#include "tests/group_specs.h"

namespace kvblocks::exhaustive {
namespace {

using testing::Chunked;
using testing::Full;
using testing::Mamba;
using testing::OutputWindow;
using testing::Replayed;
using testing::Ring;
using testing::Window;

// These settings have few enough states to visit all of them.
constexpr int kAnyLength = 1000;

constexpr int kA = 0;
constexpr int kB = 1;
constexpr int kC = 2;

KvCacheGroup Group(KvCacheSpec spec) { return {.spec = std::move(spec)}; }
KvCacheGroup Draft(KvCacheSpec spec) { return {.spec = std::move(spec), .is_draft = true}; }

Setting MakeSetting(std::string name, int64_t num_blocks, std::vector<KvCacheGroup> groups,
                    int64_t max_model_len) {
  Setting setting;
  setting.name = std::move(name);
  setting.config.num_blocks = num_blocks;
  setting.config.groups = std::move(groups);
  setting.options = {.max_model_len = max_model_len,
                     .max_in_flight_tokens = 4,
                     .enable_events = true,
                     .watermark = 0.25,
                     .hash_algorithm = HashAlgorithm::kXxh3_128,
                     .hash_seed = "exhaustive"};
  setting.options.semantics.retention_interval = std::nullopt;
  return setting;
}

// The same groups in a pool of chunks.
Setting InChunks(Setting setting, int64_t num_chunks, std::vector<int64_t> pages_per_chunk) {
  NativeLayout native{.num_chunks = num_chunks, .pages_per_chunk = std::move(pages_per_chunk)};
  for (size_t g = 0; g < setting.config.groups.size(); ++g) {
    native.class_of_group.push_back(static_cast<int32_t>(g));
  }
  setting.config.num_blocks = 1 + num_chunks * native.ids_per_chunk();
  setting.config.native = std::move(native);
  return setting;
}

Setting WithEagle(Setting setting) {
  setting.options.use_eagle = true;
  return setting;
}

// Only what serves a resend of the prompt is kept (V-1).
Setting Replaying(Setting setting) {
  setting.options.semantics.retention_interval = 0;
  return setting;
}

// V-10.
Setting WithLookahead(Setting setting, int64_t num_tokens) {
  setting.options.num_hash_lookahead_tokens = num_tokens;
  return setting;
}

// V-14.
Setting WithMtp(Setting setting, int64_t num_tokens) {
  setting.options.prefill_lookahead_tokens = num_tokens;
  return WithEagle(std::move(setting));
}

// As the engine, but for hits that do not hold what they say.
Setting Exactly(Setting setting) {
  Semantics& semantics = setting.options.semantics;
  const auto interval = semantics.retention_interval;
  semantics = Semantics::Vllm033Exactly();
  semantics.retention_interval = interval;
  semantics.trusts_hits = false;
  return setting;
}

// BM-118.
Setting WithPartialHits(Setting setting, int64_t hash_block_size) {
  setting.config.hash_block_size = hash_block_size;
  setting.options.partial_hits = true;
  return setting;
}

// BM-113.
Setting OnRanks(Setting setting, int64_t num_ranks) {
  setting.options.decode_context_parallel = num_ranks;
  return setting;
}

Setting WithoutCaching(Setting setting) {
  setting.options.enable_caching = false;
  return setting;
}

Setting WithAppendAll(Setting setting) {
  setting.options.free_order = FreeOrder::kAppendAll;
  return setting;
}

oracle::Content Prompt(std::vector<TokenId> tokens) {
  oracle::Content content;
  content.tokens = std::move(tokens);
  return content;
}

// B shares two blocks with A, C one; outputs that continue equal prefixes are equal.
std::vector<oracle::Content> SharedPrompts() {
  return {Prompt({0, 1, 2, 3, 4}), Prompt({0, 1, 2, 3, 14, 15}), Prompt({0, 1, 22})};
}

// B has A's tokens under a salt, C with an image.
std::vector<oracle::Content> MarkedPrompts() {
  std::vector<oracle::Content> prompts(3, Prompt({0, 1, 2, 3, 4}));
  prompts[kB].cache_salt = "salt";
  prompts[kC].features = {{"image", 1, 2}};
  return prompts;
}

std::vector<Action> EverydayActions() {
  using enum ActionKind;
  std::vector<Action> actions;
  for (int r : {kA, kB, kC}) {
    actions.push_back({kAdmit, r});
    actions.push_back({kAdmit, r, 2});
    actions.push_back({kStep, r});
    actions.push_back({kFree, r});
    actions.push_back({kPreempt, r});
  }
  actions.push_back({kReset});
  return actions;
}

// Two requests, every kind of call.
std::vector<Action> AllActions() {
  using enum ActionKind;
  std::vector<Action> actions = {{kAdmit, kA},
                                 {kAdmit, kA, 1},
                                 {kAdmitStrict, kB, 2},
                                 {kAdmit, kB},
                                 {kLookUp, kB},
                                 {kAdmitStale, kB},
                                 {kAdopt, kB},
                                 {kExternal, kA, 3},
                                 {kDelayed, kB, 4},
                                 {kRegister, kB},
                                 {kStep, kA},
                                 {kStep, kB, 1},
                                 {kStepLagging, kA, 2},
                                 {kStepDrafting, kA},
                                 {kStepDrafting, kB},
                                 {kTrim, kA},
                                 {kFree, kA},
                                 {kFree, kB, 1},
                                 {kPreempt, kA},
                                 {kPop, kA},
                                 {kGiveBack},
                                 {kEvictHeld, kA},
                                 {kEvictFirst},
                                 {kEvictLast},
                                 {kReset}};
  return actions;
}

SizedSetting Everyday(Setting setting, int length) {
  if (setting.prompts.empty()) setting.prompts = SharedPrompts();
  setting.alphabet = EverydayActions();
  return {std::move(setting), length};
}

SizedSetting All(Setting setting, int length) {
  if (setting.prompts.empty()) setting.prompts = SharedPrompts();
  setting.prompts.resize(2);
  setting.alphabet = AllActions();
  const size_t groups = setting.config.groups.size();
  for (size_t g = 1; g < groups; ++g) {
    setting.alphabet.push_back({ActionKind::kEvictHeld, kA, static_cast<int64_t>(g)});
  }
  return {std::move(setting), length};
}

Setting Marked(Setting setting) {
  setting.prompts = MarkedPrompts();
  return setting;
}

}  // namespace

const std::vector<SizedSetting>& Settings() {
  static const auto* settings = new std::vector<SizedSetting>{
      Everyday(MakeSetting("FullPoolOf4", 4, {Group(Full(2))}, 6), kAnyLength),
      Everyday(MakeSetting("FullPoolOf5", 5, {Group(Full(2))}, 8), 10),
      Everyday(WithAppendAll(MakeSetting("FullAppendAll", 5, {Group(Full(2))}, 8)), 9),
      Everyday(Marked(MakeSetting("FullMarked", 6, {Group(Full(2))}, 8)), 8),
      Everyday(WithoutCaching(MakeSetting("FullNoCaching", 5, {Group(Full(2))}, 8)), kAnyLength),
      All(MakeSetting("FullAll", 5, {Group(Full(2))}, 8), 9),
      All(WithEagle(MakeSetting("FullEagleAll", 6, {Group(Full(2))}, 8)), 7),
      Everyday(MakeSetting("WindowPoolOf3", 3, {Group(Window(2, 3))}, 8), kAnyLength),
      Everyday(MakeSetting("WindowPoolOf5", 5, {Group(Window(2, 4))}, 9), 9),
      All(MakeSetting("WindowAll", 5, {Group(Window(2, 4))}, 9), 8),
      All(WithEagle(MakeSetting("WindowEagleAll", 6, {Group(Window(2, 3))}, 9)), 7),
      All(MakeSetting("ChunkedAll", 5, {Group(Chunked(2, 4))}, 9), 9),
      Everyday(MakeSetting("FullWindowPoolOf6", 6, {Group(Full(2)), Group(Window(2, 3))}, 8),
               kAnyLength),
      Everyday(MakeSetting("CoarseFullWindow", 6, {Group(Full(4)), Group(Window(2, 3))}, 9), 12),
      All(MakeSetting("FullWindowAll", 6, {Group(Full(2)), Group(Window(2, 3))}, 8), 9),
      All(WithEagle(MakeSetting("FullDraftWindowAll", 6, {Group(Full(4)), Draft(Window(2, 2))}, 9)),
          8),
      Everyday(
          Replaying(MakeSetting("FullWindowReplay", 6, {Group(Full(2)), Group(Window(2, 3))}, 8)),
          9),
      All(WithEagle(Replaying(
              MakeSetting("DraftReplayAll", 8, {Group(Full(4)), Draft(Window(2, 2))}, 10))),
          6),
      All(WithLookahead(MakeSetting("FullLookaheadAll", 5, {Group(Full(2))}, 8), 1), 7),
      Everyday(WithLookahead(Replaying(MakeSetting("FullWindowLookahead", 6,
                                                   {Group(Full(2)), Group(Window(2, 3))}, 8)),
                             1),
               8),
      All(WithMtp(MakeSetting("FullMtpAll", 6, {Group(Full(2))}, 8), 2), 6),
      Everyday(
          WithMtp(MakeSetting("FullWindowMtp", 9, {Group(Full(4)), Group(Window(2, 3))}, 10), 2),
          8),
      All(Exactly(MakeSetting("TailsExactlyAll", 8, {Group(Full(4)), Group(Window(2, 3))}, 10)), 6),
      All(WithEagle(Exactly(
              MakeSetting("DraftTailsExactlyAll", 8, {Group(Full(4)), Group(Window(2, 3))}, 10))),
          5),
      All(WithPartialHits(
              MakeSetting("TailsAll", 9, {Group(Full(4)), Group(Mamba(4, MambaCacheMode::kAlign))},
                          10),
              2),
          5),
      Everyday(WithPartialHits(Replaying(MakeSetting(
                                   "TailsReplay", 9,
                                   {Group(Full(4)), Group(Mamba(4, MambaCacheMode::kAlign))}, 10)),
                               1),
               6),
      All(MakeSetting("OutputWindowAll", 6, {Group(OutputWindow(2, 1))}, 10), 6),
      Everyday(OnRanks(MakeSetting("SpreadFullMamba", 9,
                                   {Group(Full(1)), Group(Mamba(4, MambaCacheMode::kAlign))}, 10),
                       2),
               5),
      All(MakeSetting("RingReplayAll", 9, {Group(Full(2)), Group(Replayed(2, 2)), Group(Ring(3))},
                      8),
          5),
      Everyday(MakeSetting("Checkpoints", 8,
                           {Group(Full(2)), Group(Mamba(2, MambaCacheMode::kAlign, 0, 1))}, 8),
               6),
      Everyday(InChunks(WithPartialHits(MakeSetting("NativeTails", 0,
                                                    {Group(Full(4)),
                                                     Group(Mamba(4, MambaCacheMode::kAlign))},
                                                    10),
                                        2),
                        4, {2, 1}),
               5),
      Everyday(
          InChunks(MakeSetting("NativeFullWindow", 0, {Group(Full(2)), Group(Window(2, 3))}, 8), 3,
                   {2, 3}),
          6),
      All(InChunks(MakeSetting("NativeWindowFullAll", 0, {Group(Window(2, 4)), Group(Full(4))}, 9),
                   4, {3, 1}),
          6),
      Everyday(
          WithAppendAll(InChunks(
              MakeSetting("NativeAppendAll", 0, {Group(Full(2)), Group(Full(4))}, 8), 3, {4, 2})),
          6),
  };
  return *settings;
}

}  // namespace kvblocks::exhaustive
