#include "tests/property/scenario.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "managers/kv_cache_manager_setup.h"
#include "tests/group_specs.h"
#include "tests/property/check_property.h"

namespace kvblocks::property {

using testing::Chunked;
using testing::Cross;
using testing::Full;
using testing::HiddenState;
using testing::Mamba;
using testing::Mla;
using testing::OutputWindow;
using testing::Replayed;
using testing::Ring;
using testing::Sink;
using testing::Window;
using testing::WindowMla;

namespace {

KvCacheGroup Draft(KvCacheSpec spec) { return {.spec = std::move(spec), .is_draft = true}; }
KvCacheGroup Group(KvCacheSpec spec) { return {.spec = std::move(spec)}; }

Shape InChunks(Shape shape, std::vector<int64_t> pages_per_chunk,
               std::vector<int32_t> class_of_group) {
  shape.native = NativeLayout{.pages_per_chunk = std::move(pages_per_chunk),
                              .class_of_group = std::move(class_of_group)};
  return shape;
}

constexpr auto kNone = MambaCacheMode::kNone;
constexpr auto kAlign = MambaCacheMode::kAlign;
constexpr auto kAll = MambaCacheMode::kAll;

Shape Retaining(std::string name, std::vector<KvCacheGroup> groups, int64_t interval) {
  return {.name = std::move(name), .groups = std::move(groups), .retention_interval = interval};
}
Shape Partial(std::string name, std::vector<KvCacheGroup> groups, int64_t hash_block_size,
              bool use_eagle = false) {
  return {.name = std::move(name),
          .groups = std::move(groups),
          .hash_block_size = hash_block_size,
          .use_eagle = use_eagle,
          .partial_hits = true};
}
Shape Spread(Shape shape, int64_t decode_ranks, int64_t prefill_ranks = 1) {
  shape.decode_ranks = decode_ranks;
  shape.prefill_ranks = prefill_ranks;
  return shape;
}
Shape Exporting(Shape shape, int64_t checkpoint_alignment) {
  shape.checkpoint_alignment = checkpoint_alignment;
  return shape;
}
Shape Dense(std::string name, std::vector<KvCacheGroup> groups) {
  return {.name = std::move(name), .groups = std::move(groups), .register_unreachable = true};
}

}  // namespace

const std::vector<Shape>& Shapes() {
  static const auto* shapes = new std::vector<Shape>{
      {"Full", {Group(Full(4))}},
      {"FullBlockOfOne", {Group(Full(1))}},
      {"Mla", {Group(Mla(3))}},
      {"Sink", {Group(Sink(4, 8))}},
      {"Window", {Group(Window(4, 8))}},
      {"WindowUnaligned", {Group(Window(4, 9))}},
      {"WindowOfOne", {Group(Window(2, 1))}},
      {"WindowMla", {Group(WindowMla(2, 7))}},
      {"Chunked", {Group(Chunked(4, 8))}},
      {"ChunkedFine", {Group(Chunked(2, 8))}},
      {"FullEagle", {Group(Full(4))}, {}, {}, true},
      {"WindowEagle", {Group(Window(4, 9))}, {}, {}, true},
      {"FullWindow", {Group(Full(4)), Group(Window(4, 8))}},
      {"CoarseFullWindow", {Group(Full(8)), Group(Window(4, 9))}},
      {"FullCoarseWindow", {Group(Full(4)), Group(Window(8, 9))}},
      {"FullWindowUnrelatedSizes", {Group(Full(6)), Group(Window(4, 5))}},
      {"FullTwoWindows", {Group(Full(4)), Group(Window(4, 5)), Group(Window(4, 13))}},
      {"FullEqualWindows", {Group(Full(4)), Group(Window(4, 8)), Group(Window(4, 8))}},
      {"EqualFull", {Group(Full(4)), Group(Full(4))}},
      {"FullMlaWindow", {Group(Full(4)), Group(Mla(4)), Group(Window(4, 5))}},
      {"FullChunked", {Group(Full(4)), Group(Chunked(4, 8))}},
      {"ChunkedWindow", {Group(Chunked(4, 8)), Group(Window(2, 5))}},
      {"TwoWindows", {Group(Window(4, 8)), Group(Window(2, 5))}},
      {"SinkWindow", {Group(Sink(4, 4)), Group(Window(4, 6))}},
      {"FullWindowEagle", {Group(Full(4)), Group(Window(4, 10))}, {}, {}, true},
      {"FullDraftWindow", {Group(Full(4)), Draft(Window(2, 4))}},
      {"DraftFullWindow", {Draft(Full(2)), Group(Window(4, 9))}},
      {"DraftOfThree", {Group(Full(8)), Group(Window(4, 6)), Draft(Window(2, 7))}},
      {"TwoDrafts", {Group(Window(2, 5)), Draft(Full(4)), Draft(Window(2, 9))}},
      {"DraftSibling", {Group(Full(4)), Group(Window(2, 4)), Draft(Window(2, 4))}},
      {"SparseDraft", {Group(Full(16)), Draft(Window(2, 4))}},
      {"DraftBetween", {Group(Full(4)), Draft(Window(4, 5)), Group(Window(4, 13))}},
      {"CoarserAlignment", {Group(Full(4)), Group(Window(2, 3))}, 16, 1},
      {"ManyGroups",
       {Group(Mla(8)), Group(WindowMla(4, 8)), Group(WindowMla(1, 3)), Group(WindowMla(2, 8))}},
      {"NoGroups", {}, {}, {}, false, true},
      InChunks({"NativeFull", {Group(Full(4))}}, {3}, {0}),
      InChunks({"NativeFullWindow", {Group(Full(4)), Group(Window(4, 8))}}, {2, 5}, {0, 1}),
      InChunks({"NativeWindowFull", {Group(Window(2, 5)), Group(Full(4))}}, {4, 1}, {0, 1}),
      InChunks({"NativeSharedClass", {Group(Full(4)), Group(Window(4, 9)), Group(Full(8))}},
               {4, 3, 2}, {0, 0, 2}),
      InChunks({"NativeWindowSink", {Group(Window(4, 6)), Group(Sink(4, 4))}}, {4, 3}, {0, 1}),
      InChunks({"NativeDraft", {Group(Full(4)), Draft(Window(2, 4))}}, {2, 7}, {0, 1}),
      InChunks({"NativeChunked", {Group(Full(4)), Group(Chunked(4, 8))}}, {5, 2}, {0, 1}),
      InChunks(
          {"NativeManyGroups",
           {Group(Mla(8)), Group(WindowMla(4, 8)), Group(WindowMla(1, 3)), Group(WindowMla(2, 8))}},
          {2, 3, 6, 4}, {0, 1, 2, 3}),
      {"MambaAlign", {Group(Mamba(4, kAlign))}},
      {"MambaAlignScratch", {Group(Mamba(2, kAlign, 2))}},
      {"MambaAll", {Group(Mamba(4, kAll))}},
      {"MambaNone", {Group(Mamba(64, kNone, 1))}},
      {"FullMambaAlign", {Group(Full(4)), Group(Mamba(4, kAlign))}},
      {"FullMambaAlignScratch", {Group(Full(4)), Group(Mamba(4, kAlign, 3))}},
      {"FullMambaAll", {Group(Full(4)), Group(Mamba(4, kAll, 1))}},
      {"FullMambaNone", {Group(Full(4)), Group(Mamba(4, kNone))}},
      {"WindowMambas", {Group(Mamba(2, kAlign)), Group(Window(4, 6)), Group(Mamba(2, kAlign))}},
      {"MambaEagle", {Group(Full(4)), Group(Mamba(4, kAlign))}, {}, {}, true},
      {"MambaDraftWindow", {Group(Full(4)), Group(Mamba(4, kAll)), Draft(Window(4, 5))}},
      {"FullCross", {Group(Full(4)), Group(Cross(4))}, {}, {}, false, true},
      Retaining("FullWindowRetention", {Group(Full(8)), Group(Window(2, 3))}, 16),
      Retaining("FullWindowReplayOnly", {Group(Full(8)), Group(Window(2, 3))}, 0),
      Retaining("WindowRetention", {Group(Window(4, 6))}, 8),
      Retaining("DraftRetention", {Group(Full(8)), Draft(Window(2, 3))}, 16),
      Retaining("MambaRetention", {Group(Full(4)), Group(Mamba(4, kAll))}, 8),
      Partial("PartialFullMamba", {Group(Full(4)), Group(Mamba(4, kAlign))}, 2),
      Partial("PartialCoarse", {Group(Full(8)), Group(Mamba(4, kAlign, 1))}, 1),
      Partial("PartialWindow",
              {Group(Mamba(8, kAlign)), Group(Window(2, 5)), Group(Full(4)), Group(Full(4))}, 2),
      Partial("PartialMambas",
              {Group(Mamba(6, kAlign)), Group(Mamba(6, kAlign)), Group(Sink(2, 2))}, 2),
      Partial("PartialEagle", {Group(Full(8)), Group(Mamba(4, kAlign))}, 2, true),
      Partial("PartialDraftWindow", {Group(Full(4)), Group(Mamba(4, kAlign)), Draft(Window(2, 4))},
              2),
      Dense("FullWindowDense", {Group(Full(8)), Group(Window(2, 3))}),
      Dense("DraftDense", {Group(Full(8)), Draft(Window(2, 3))}),
      {"OutputWindow", {Group(OutputWindow(4, 6))}},
      {"OutputWindowOfOne", {Draft(OutputWindow(2, 1)), Group(Window(4, 9))}},
      {"HiddenOutputWindow",
       {Group(HiddenState(8)), Group(OutputWindow(4, 5)), Group(Window(4, 9))}},
      InChunks({"NativeOutputWindow", {Group(Full(4)), Group(OutputWindow(2, 3))}}, {2, 5}, {0, 1}),
      Spread({"SpreadFull", {Group(Full(1))}}, 2, 2),
      Spread({"SpreadMlaMamba", {Group(Mla(3)), Group(Mamba(4, kAlign)), Draft(Full(2))}}, 2),
      Spread(Partial("PartialSpread", {Group(OutputWindow(4, 3)), Group(Mamba(4, kAlign))}, 4), 2),
      {"WindowRing", {Group(Ring(3)), Group(Window(4, 6))}},
      {"ReplayedDraft",
       {Draft(Full(4)), Group(Replayed(2, 7)), Group(Window(4, 5)), Group(Ring(8))}},
      InChunks({"NativeReplayed", {Group(Mla(8)), Group(Replayed(4, 9)), Group(Ring(3))}},
               {2, 3, 5}, {0, 1, 2}),
      Exporting({"MambaCheckpoint", {Group(Full(4)), Group(Mamba(8, kAlign, 2, 1))}}, 8),
      Partial("PartialCheckpoint", {Group(Full(8)), Group(Mamba(8, kAlign, 1, 1))}, 2),
      InChunks(Partial("NativePartial", {Group(Full(4)), Group(Mamba(4, kAlign))}, 2), {2, 3},
               {0, 1}),
      InChunks(Partial("NativePartialWindow",
                       {Group(Mamba(8, kAlign, 1)), Group(Window(2, 5)), Group(Full(8))}, 2),
               {3, 5, 2}, {0, 1, 2}),
  };
  return *shapes;
}

namespace {

KvCacheSpec DrawSpec(int64_t unit, bool has_equal_sizes, bool is_cached, Numbers& numbers) {
  const int64_t block_size = unit * (has_equal_sizes ? 2 : int64_t{1} << numbers.Below(3));
  const int64_t window = 1 + numbers.Below(numbers.OneIn(3) ? 3 : 14);
  const int64_t retained = numbers.OneIn(2) ? numbers.Below(4) : 0;
  if (!is_cached && numbers.OneIn(2)) {  // kinds that nothing is cached of
    return numbers.OneIn(2) ? Cross(block_size) : Mamba(64, kNone, numbers.Below(3));
  }
  switch (numbers.Below(14)) {
    case 0:
    case 1:
      return Full(block_size);
    case 2:
    case 3:
    case 4:
      return Window(block_size, window, retained);
    case 5:
      return WindowMla(block_size, window, retained);
    case 6:
    case 7:
    case 8:
      return Mamba(block_size, kAlign, numbers.OneIn(2) ? numbers.Below(4) : 0,
                   numbers.OneIn(4) ? 1 : 0);
    case 9:
      return Mla(block_size);
    case 10:
      return Chunked(block_size, block_size * (1 + numbers.Below(3)));
    case 11:
      return numbers.OneIn(2) ? Sink(block_size, block_size) : Ring(block_size);
    case 12:
      return OutputWindow(block_size, window);
    default:
      return numbers.OneIn(2) ? Replayed(block_size, window) : HiddenState(block_size);
  }
}

}  // namespace

Shape DrawShape(const std::vector<uint64_t>& stores) {
  Numbers numbers(stores[0]);
  Shape shape{.name = "Drawn", .groups = {}, .is_drawn = true};
  const int64_t num_groups = 1 + numbers.Below(numbers.OneIn(4) ? 8 : 3);
  const int64_t unit = 1 + numbers.Below(4);
  const bool has_equal_sizes = numbers.OneIn(2);
  const bool has_drafts = numbers.OneIn(2);
  shape.always_caching_off = numbers.OneIn(10);
  for (int64_t g = 0; g < num_groups; ++g) {
    Numbers own(stores[static_cast<size_t>(1 + g)]);
    const bool is_copy = own.OneIn(5) && g > 0;
    shape.groups.push_back(
        is_copy ? shape.groups[static_cast<size_t>(own.Below(g))]
                : Group(DrawSpec(unit, has_equal_sizes, !shape.always_caching_off, own)));
    shape.groups.back().is_draft = has_drafts && own.OneIn(3);
  }
  shape.use_eagle = numbers.OneIn(3);
  if (num_groups > 1 && numbers.OneIn(2)) {
    shape.hash_block_size = unit % 2 == 0 && numbers.OneIn(2) ? unit / 2 : unit;
  }
  shape.partial_hits = !numbers.OneIn(4);  // where they can be
  if (numbers.OneIn(8)) shape.decode_ranks = 2;
  if (numbers.OneIn(12)) shape.prefill_ranks = 2;
  shape.register_unreachable = numbers.OneIn(12);
  shape.checkpoint_alignment = numbers.OneIn(2) ? 1 : unit;
  if (numbers.OneIn(6)) {
    std::vector<int64_t> pages;
    std::vector<int32_t> class_of_group;
    for (int64_t g = 0; g < num_groups; ++g) {
      pages.push_back(1 + numbers.Below(5));
      class_of_group.push_back(static_cast<int32_t>(g));
    }
    return InChunks(std::move(shape), std::move(pages), std::move(class_of_group));
  }
  return shape;
}

namespace {

std::string Describe(const Semantics& semantics) {
  std::string text(semantics.name);
  for (const auto& [name, member] : kSemanticsSwitches) {
    absl::StrAppend(&text, semantics.*member ? " +" : " -", name);
  }
  const auto interval = semantics.retention_interval;
  return absl::StrCat(text, " retention ", interval ? absl::StrCat(*interval) : "none");
}

void DrawSemantics(const Shape& shape, const KvCacheConfig& config, Numbers& numbers,
                   KvCacheManagerOptions& options) {
  const Semantics presets[] = {Semantics::Vllm033(), Semantics::Vllm025(),
                               Semantics::Vllm033Exactly()};
  Semantics& semantics = options.semantics;
  const auto [name, member] = kSemanticsSwitches[numbers.Below(std::size(kSemanticsSwitches))];
  semantics = presets[numbers.Below(3)];
  if (numbers.OneIn(3)) semantics.*member = !(semantics.*member);

  const auto sizes = ResolveBlockSizes(config, options);
  const int64_t unit = sizes.ok() ? sizes->scheduler_block_size : 1;
  const bool has_sparse_groups =
      std::any_of(config.groups.begin(), config.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.sliding_window() || group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  const int64_t interval = has_sparse_groups ? unit * numbers.Below(3) : 0;
  if (shape.retention_interval) {
    semantics.retention_interval = shape.retention_interval;
  } else if (shape.register_unreachable || numbers.OneIn(3)) {
    semantics.retention_interval = std::nullopt;
  } else {
    semantics.retention_interval = interval;
  }
  const bool has_drafts =
      shape.use_eagle || std::any_of(config.groups.begin(), config.groups.end(),
                                     [](const KvCacheGroup& group) { return group.is_draft; });
  if (!has_drafts && !shape.is_drawn) {
    if (numbers.OneIn(6)) options.num_hash_lookahead_tokens = 1 + numbers.Below(3);
    return;
  }
  if (numbers.OneIn(2)) options.use_eagle = true;
  if (numbers.OneIn(3)) {
    options.num_hash_lookahead_tokens = 1 + numbers.Below(shape.is_drawn ? 4 : 3);
  }
  if (numbers.OneIn(2)) {
    options.prefill_lookahead_tokens = std::min<int64_t>(unit, 1 + numbers.Below(4));
  }
}

}  // namespace

void SetPoolSize(KvCacheConfig& config, int64_t num_blocks, int64_t min_chunks) {
  config.num_blocks = num_blocks;
  if (!config.native) return;
  const int64_t ids = config.native->ids_per_chunk();
  config.native->num_chunks = std::max(min_chunks, (num_blocks - 1) / ids);
  config.num_blocks = 1 + config.native->num_chunks * ids;
}

Scenario MakeScenario(const Shape& shape, uint64_t store) {
  Numbers numbers(store);
  Scenario scenario;
  KvCacheConfig& config = scenario.config;
  config.groups = shape.groups;
  config.scheduler_block_size = shape.scheduler_block_size;
  config.hash_block_size = shape.hash_block_size;
  const int64_t sizes[] = {24, 12, 40, 80, 6};
  config.native = shape.native;
  SetPoolSize(config, sizes[numbers.Below(5)] + numbers.Below(4));
  const int64_t lengths[] = {40, 24, 64};
  const int64_t in_flight[] = {8, 16, 4, 64};

  KvCacheManagerOptions& options = scenario.options;
  options.max_model_len = lengths[numbers.Below(3)];
  options.max_in_flight_tokens = in_flight[numbers.Below(4)];
  options.enable_caching = !shape.always_caching_off && !numbers.OneIn(8);
  options.use_eagle = shape.use_eagle;
  options.enable_events = !numbers.OneIn(4);
  options.log_stats = !numbers.OneIn(8);
  const double watermarks[] = {0.0, 0.1, 0.25};
  options.watermark = watermarks[numbers.Below(3)];
  options.free_order = numbers.OneIn(2) ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  options.hash_algorithm = numbers.OneIn(2) ? HashAlgorithm::kXxh3_128 : HashAlgorithm::kSha256;
  options.hash_seed = "property";
  options.compare_tokens_on_hit = numbers.OneIn(4) && !shape.partial_hits;
  options.partial_hits = shape.partial_hits;
  options.max_encoder_tokens = 24;
  options.register_unreachable_blocks = shape.register_unreachable;
  options.decode_context_parallel = shape.decode_ranks;
  options.prefill_context_parallel = shape.prefill_ranks;
  options.checkpoint_alignment = shape.checkpoint_alignment;
  options.block_count_formula =
      numbers.OneIn(2) ? BlockCountFormula::kUpstream : BlockCountFormula::kExact;

  DrawSemantics(shape, config, numbers, options);
  if (shape.is_drawn) {
    options.partial_hits = shape.partial_hits && SupportsPartialHits(config, options);
    options.compare_tokens_on_hit = options.compare_tokens_on_hit && !options.partial_hits;
  }
  return scenario;
}

std::string Scenario::ToString() const {
  std::string text = absl::StrCat("N=", config.num_blocks, " groups=[");
  for (const KvCacheGroup& group : config.groups) {
    absl::StrAppend(&text, group.spec.ToString(), group.is_draft ? " draft; " : "; ");
  }
  if (config.native) {
    absl::StrAppend(&text, "] chunks=[", absl::StrJoin(config.native->pages_per_chunk, ","),
                    "] of groups [", absl::StrJoin(config.native->class_of_group, ","));
  }
  absl::StrAppend(&text, "] max_model_len=", options.max_model_len,
                  " in_flight=", *options.max_in_flight_tokens, " caching=", options.enable_caching,
                  " eagle=", options.use_eagle, " events=", options.enable_events,
                  " watermark=", options.watermark,
                  " unhashed_first=", options.free_order == FreeOrder::kUnhashedFirst,
                  " exact_caps=",
                  options.block_count_formula == BlockCountFormula::kExact,
                  " hash_lookahead=", options.num_hash_lookahead_tokens,
                  " prefill_lookahead=", options.prefill_lookahead_tokens,
                  " ranks=", options.decode_context_parallel * options.prefill_context_parallel,
                  " semantics=", Describe(options.semantics));
  return text;
}

}  // namespace kvblocks::property
