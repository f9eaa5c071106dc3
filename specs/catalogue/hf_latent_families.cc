#include "kvblocks/specs/catalogue/hf_latent_families.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kvblocks/specs/catalogue/hf_experts.h"

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

// One ratio per layer, and per layer of the draft model behind them.
std::string ReadRatios(ConfigFields& fields, int64_t num_layers) {
  const int64_t num_draft = fields.Int("num_nextn_predict_layers", 0, 1'000, 0);
  const auto ratios = fields.Ints("compress_ratios", 0, 1'000'000);
  std::string pattern;
  if (!ratios) fields.Refuse("compress_ratios", "nothing", "a list with a ratio per layer");
  for (const int64_t ratio : ratios.value_or(std::vector<int64_t>())) {
    const char letter = ratio <= 1                   ? 'W'
                        : ratio == kCompressRatio4   ? '4'
                        : ratio == kCompressRatio128 ? 'H'
                                                     : '?';
    if (letter == '?') {
      fields.Refuse("compress_ratios", std::to_string(ratio), "0, 1, 4 or 128");
      break;
    }
    pattern.push_back(letter);
  }
  const auto size = static_cast<int64_t>(pattern.size());
  if (size != num_layers && size != num_layers + num_draft) {
    fields.Refuse("compress_ratios", std::to_string(size) + " entries",
                  "num_hidden_layers, which is " + std::to_string(num_layers) +
                      ", or num_nextn_predict_layers more");
  }
  pattern.resize(static_cast<size_t>(num_layers), 'W');
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

void ReadDeepseek4(ConfigFields& fields, HfModel& model) {
  fields.RefuseIfPresent("kv_lora_rank", "no such field with this model_type");
  ModelFacts& facts = model.facts;
  facts.layer_pattern = ReadRatios(fields, ReadNumLayers(fields));
  facts.window = fields.Int("sliding_window", 1, kMaxConfigSize);
  facts.sink_bias = true;
  const bool indexed = facts.has(LayerKind::kCompressed4);
  if (indexed) ReadIndexer(fields, facts);
  const int64_t rope = fields.Int("qk_rope_head_dim", 0, std::max<int64_t>(0, facts.head_size));
  const int64_t nope = facts.head_size - rope;
  // The blocks are those that engines give these rows and states. An fp8 row has a scale byte per
  // 64 values and one to fill up.
  facts.compressed =
      CompressedFacts{.qk_rope_head_dim = rope,
                      .q_lora_rank = fields.Int("q_lora_rank", 0, kMaxConfigSize, 0),
                      .o_lora_rank = fields.Int("o_lora_rank", 0, kMaxConfigSize, 0),
                      .o_groups = fields.Int("o_groups", 0, kMaxConfigHeads, 0),
                      .row_bytes_fp8_ds_mla = nope + 2 * rope + nope / 64 + 1,
                      .main_block_size = 256,
                      .sliding_block_size = 64,
                      .state4 = State(4, kCompressRatio4, 2, facts.head_size,
                                      indexed ? facts.indexer->head_dim : 0),
                      .state128 = State(8, kCompressRatio128, 1, facts.head_size, 0)};
  ReadDeepseekExperts(fields, facts);
}

}  // namespace kvblocks
