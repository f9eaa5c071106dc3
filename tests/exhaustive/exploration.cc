#include "tests/exhaustive/exploration.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/group_specs.h"

namespace kvblocks::exhaustive {
namespace {

class Explorer {
 public:
  Explorer(const Setting& setting, bool merge_states)
      : setting_(setting), merge_states_(merge_states) {}

  Exploration Run(int length) {
    World start(setting_, &numbers_);
    start.CompareState();
    start.CompareAnswers();
    Note(start, {});
    AddState(start.StateKey(), 0, 0);
    size_t level_end = 1;
    size_t state = 0;
    while (result_.length < length && state < level_end && result_.failure.empty()) {
      for (; state < level_end && result_.failure.empty(); ++state) Leave(state);
      level_end = states_.size();
      ++result_.length;
    }
    result_.complete = state == states_.size() && result_.failure.empty();
    result_.num_states = static_cast<int64_t>(states_.size());
    CountSequences(length);
    return result_;
  }

 private:
  struct State {
    int32_t parent = 0;
    int32_t action = 0;
  };
  struct Edge {
    int32_t from = 0;
    int32_t to = 0;
  };

  // Tries every action in a state.
  void Leave(size_t state) {
    const std::vector<Action> path = PathTo(state);
    const std::string key = merge_states_ ? *keys_[state] : std::string();
    std::optional<World> world;
    std::vector<Action> done;
    for (size_t a = 0; a < setting_.alphabet.size() && result_.failure.empty(); ++a) {
      if (!world) {
        world.emplace(setting_, &numbers_);
        for (const Action& action : path) world->Apply(action);
        world->DropEvents();
        done = path;
      }
      if (!world->Apply(setting_.alphabet[a])) continue;
      done.push_back(setting_.alphabet[a]);
      ++result_.num_transitions;
      world->CompareState();
      result_.num_steals = std::max(result_.num_steals, world->model_pool().num_steals());
      result_.num_packed = std::max(result_.num_packed, world->model_pool().num_packed());
      Note(*world, done);
      if (!result_.failure.empty()) return;
      const std::string reached = world->StateKey();
      const auto [to, is_new] =
          AddState(reached, static_cast<int32_t>(state), static_cast<int32_t>(a));
      edges_.push_back({static_cast<int32_t>(state), to});
      if (is_new) {
        world->CompareAnswers();
        Note(*world, done);
      }
      // An action without effect leaves the world where it was.
      if (!merge_states_ || reached != key) world.reset();
    }
  }

  std::vector<Action> PathTo(size_t state) const {
    std::vector<Action> path;
    for (; state != 0; state = static_cast<size_t>(states_[state].parent)) {
      path.push_back(setting_.alphabet[static_cast<size_t>(states_[state].action)]);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  std::pair<int32_t, bool> AddState(const std::string& key, int32_t parent, int32_t action) {
    const int32_t next = static_cast<int32_t>(states_.size());
    if (merge_states_) {
      const auto [it, is_new] = known_.try_emplace(key, next);
      if (!is_new) return {it->second, false};
      keys_.push_back(&it->first);
    }
    states_.push_back({parent, action});
    return {next, true};
  }

  void Note(const World& world, const std::vector<Action>& done) {
    if (!world.failed() || !result_.failure.empty()) return;
    result_.failure = setting_.name + ": " + world.error() + " after: " + ToString(done);
  }

  // Paths of `length` edges from the first state.
  void CountSequences(int length) {
    std::vector<double> paths(states_.size(), 0.0);
    paths[0] = 1;
    for (int i = 0; i < std::min(length, result_.length); ++i) {
      std::vector<double> longer(states_.size(), 0.0);
      for (const Edge& edge : edges_) {
        longer[static_cast<size_t>(edge.to)] += paths[static_cast<size_t>(edge.from)];
      }
      paths = std::move(longer);
    }
    for (double n : paths) result_.num_sequences += n;
  }

  const Setting& setting_;
  const bool merge_states_;
  oracle::ContentNumbers numbers_;
  std::vector<State> states_;
  std::unordered_map<std::string, int32_t> known_;
  std::vector<const std::string*> keys_;  // of the states, in the map
  std::vector<Edge> edges_;
  Exploration result_;
};

}  // namespace

Exploration Explore(const Setting& setting, int length, bool merge_states) {
  return Explorer(setting, merge_states).Run(length);
}

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
