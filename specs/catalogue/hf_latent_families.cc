#include "specs/catalogue/hf_families.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvblocks {
namespace {

void ReadIndexer(ConfigFields& fields, ModelFacts& facts) {
  const int64_t head_dim = fields.Int("index_head_dim", 1, kMaxConfigHeads, 128);
  facts.indexer = IndexerFacts{.num_heads = fields.Int("index_n_heads", 1, kMaxConfigHeads),
                               .head_dim = head_dim,
                               .top_k = fields.Int("index_topk", 1, kMaxConfigSize),
                               .row_bytes = IndexerRowBytes(head_dim)};
}

void ReadLatent(ConfigFields& fields, char letter, ModelFacts& facts) {
  facts.layer_pattern.assign(static_cast<size_t>(ReadNumLayers(fields)), letter);
  facts.head_size = 0;
  facts.latent = LatentFacts{.kv_lora_rank = fields.Int("kv_lora_rank", 1, kMaxConfigSize),
                             .q_lora_rank = fields.Int("q_lora_rank", 0, kMaxConfigSize, 0),
                             .qk_rope_head_dim = fields.Int("qk_rope_head_dim", 0, kMaxConfigHeads),
                             .qk_nope_head_dim = fields.Int("qk_nope_head_dim", 1, kMaxConfigHeads),
                             .v_head_dim = fields.Int("v_head_dim", 1, kMaxConfigHeads)};
  ReadDeepseekExperts(fields, facts);
}

// One ratio per layer; those of the draft model, which may stand behind them, are left out.
std::vector<int64_t> ReadRatios(ConfigFields& fields, int64_t num_layers) {
  const int64_t num_draft = fields.Int("num_nextn_predict_layers", 0, 1'000, 0);
  const auto given = fields.Ints("compress_ratios", 0, 1'000'000);
  if (!given) fields.Refuse("compress_ratios", "nothing", "a list with a ratio per layer");
  std::vector<int64_t> ratios = given.value_or(std::vector<int64_t>());
  const auto size = static_cast<int64_t>(ratios.size());
  if (size != num_layers && size != num_layers + num_draft) {
    fields.Refuse("compress_ratios", std::to_string(size) + " entries",
                  "num_hidden_layers, which is " + std::to_string(num_layers) +
                      ", or num_nextn_predict_layers more");
  }
  ratios.resize(static_cast<size_t>(num_layers), 0);
  return ratios;
}

std::string LettersOfRatios(ConfigFields& fields, const std::vector<int64_t>& ratios) {
  std::string pattern;
  for (const int64_t ratio : ratios) {
    const char letter = ratio <= 1                   ? 'W'
                        : ratio == kCompressRatio4   ? '4'
                        : ratio == kCompressRatio128 ? 'H'
                                                     : '?';
    if (letter == '?') {
      fields.Refuse("compress_ratios", std::to_string(ratio), "0, 1, 4 or 128");
      return std::string(ratios.size(), 'W');
    }
    pattern.push_back(letter);
  }
  return pattern;
}

std::set<int64_t> ReadLayerIds(ConfigFields& fields, std::string_view field, int64_t num_layers) {
  const auto ids = fields.Ints(field, 0, num_layers - 1);
  if (!ids) fields.Refuse(field, "nothing", "a list of layers");
  const std::vector<int64_t> given = ids.value_or(std::vector<int64_t>());
  return {given.begin(), given.end()};
}

// Which layers store rows, which select among them and which read only.
std::string LettersOfSharedRows(ConfigFields& fields, const std::vector<int64_t>& ratios) {
  const auto num_layers = static_cast<int64_t>(ratios.size());
  const std::set<int64_t> sources = ReadLayerIds(fields, "kv_source_layer_ids", num_layers);
  const std::set<int64_t> selectors = ReadLayerIds(fields, "index_source_layer_ids", num_layers);
  std::string pattern(ratios.size(), 'W');
  int64_t ratio_in_front = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    const int64_t ratio = ratios[static_cast<size_t>(i)];
    const std::string layer = " of layer " + std::to_string(i);
    const bool is_source = sources.count(i) > 0;
    if (ratio > 2) {
      fields.Refuse("compress_ratios", std::to_string(ratio) + layer, "0, 1 or 2");
    } else if (ratio == 0 && (is_source || selectors.count(i) > 0)) {
      fields.Refuse("compress_ratios", "0" + layer, "1 or 2 for a layer with rows or an indexer");
    } else if (is_source && selectors.count(i) == 0) {
      fields.Refuse("index_source_layer_ids", "no " + std::to_string(i),
                    "every layer of kv_source_layer_ids");
    } else if (ratio > 0 && !is_source && ratio != ratio_in_front) {
      fields.Refuse("compress_ratios", std::to_string(ratio) + layer,
                    "that of the nearest of kv_source_layer_ids in front of it");
    }
    if (ratio == 0) continue;
    if (is_source) ratio_in_front = ratio;
    char& letter = pattern[static_cast<size_t>(i)];
    if (is_source) {
      letter = ratio == 2 ? '2' : '1';
    } else {
      letter = selectors.count(i) > 0 ? 'I' : 'R';
    }
  }
  return pattern;
}

// A state row has a key and a score part. Windows of ratio 4 overlap and span two rows' tokens.
CompressorStateFacts State(int64_t block_size, int64_t ratio, int64_t overlap, int64_t head_dim,
                           int64_t indexer_dim) {
  return {.block_size = block_size,
          .window = overlap * ratio,
          .row_elements = 2 * overlap * head_dim,
          .indexer_elements = 2 * overlap * indexer_dim};
}

}  // namespace

void ReadDeepseek(ConfigFields& fields, HfModel& model) {
  fields.RefuseIfPresent("index_topk", "no such field: models with an indexer are deepseek_v32");
  fields.RefuseIfPresent("compress_ratios", "no such field with this model_type");
  ReadLatent(fields, 'M', model.facts);
}

void ReadDeepseek32(ConfigFields& fields, HfModel& model) {
  fields.RefuseIfPresent("compress_ratios", "no such field with this model_type");
  ReadLatent(fields, 'N', model.facts);
  ReadIndexer(fields, model.facts);
}

namespace {

// What compressed attention of both versions has. An fp8 row has a scale byte per 64 values and one
// to fill up.
CompressedFacts ReadCompressed(ConfigFields& fields, ModelFacts& facts) {
  facts.window = fields.Int("sliding_window", 1, kMaxConfigSize);
  facts.sink_bias = true;
  const int64_t rope = fields.Int("qk_rope_head_dim", 0, std::max<int64_t>(0, facts.head_size));
  const int64_t nope = facts.head_size - rope;
  CompressedFacts compressed;
  compressed.qk_rope_head_dim = rope;
  compressed.q_lora_rank = fields.Int("q_lora_rank", 0, kMaxConfigSize, 0);
  compressed.o_lora_rank = fields.Int("o_lora_rank", 0, kMaxConfigSize, 0);
  compressed.o_groups = fields.Int("o_groups", 0, kMaxConfigHeads, 0);
  compressed.row_bytes_fp8_ds_mla = nope + 2 * rope + nope / 64 + 1;
  return compressed;
}

}  // namespace

// The blocks are those that engines give these rows and states.
void ReadDeepseek4(ConfigFields& fields, HfModel& model) {
  fields.RefuseIfPresent("kv_lora_rank", "no such field with this model_type");
  ModelFacts& facts = model.facts;
  facts.layer_pattern = LettersOfRatios(fields, ReadRatios(fields, ReadNumLayers(fields)));
  const bool indexed = facts.has(LayerKind::kCompressed4);
  if (indexed) ReadIndexer(fields, facts);
  CompressedFacts compressed = ReadCompressed(fields, facts);
  compressed.main_block_size = 256;
  compressed.sliding_block_size = 64;
  compressed.state4 =
      State(4, kCompressRatio4, 2, facts.head_size, indexed ? facts.indexer->head_dim : 0);
  compressed.state128 = State(8, kCompressRatio128, 1, facts.head_size, 0);
  facts.compressed = compressed;
  ReadDeepseekExperts(fields, facts);
}

void ReadDeepseek41(ConfigFields& fields, HfModel& model) {
  fields.RefuseIfPresent("kv_lora_rank", "no such field with this model_type");
  ModelFacts& facts = model.facts;
  facts.layer_pattern = LettersOfSharedRows(fields, ReadRatios(fields, ReadNumLayers(fields)));
  if (facts.CountLayers(kSharedRowLetters) > 0) ReadIndexer(fields, facts);
  CompressedFacts compressed = ReadCompressed(fields, facts);
  compressed.sliding_block_size = 32;
  compressed.bounded_replay = true;
  if (facts.CountLayers(kSharedRowLetters) > 0) {
    compressed.rows_per_block = 64;
  } else {
    compressed.main_block_size = compressed.sliding_block_size;  // no layer has one
  }
  // A row has a key and a score part.
  if (facts.has(LayerKind::kSharedRows2)) compressed.ring2 = {8, 2 * facts.head_size};
  facts.compressed = compressed;
  ReadDeepseekExperts(fields, facts);
  // Tables of n-grams, of which a token reads a few rows.
  const int64_t dim = fields.Int("engram_head_dim", 1, kMaxConfigSize, 1);
  const auto rows = fields.Ints("engram_num_embeddings", 0, int64_t{1} << 40);
  for (const int64_t n : rows.value_or(std::vector<int64_t>())) {
    model.shape.table_params += static_cast<double>(n) * static_cast<double>(dim);
  }
}

}  // namespace kvblocks
