#include "sim/cost/attention_cost.h"

#include <algorithm>
#include <cmath>

#include "kvblocks/model_facts.h"
#include "specs/row_codec.h"

namespace kvblocks::sim {
namespace {

constexpr double kPsPerSecond = 1e12;
// Beyond it a coefficient alone fills the clock.
constexpr double kMaxCoefficient = 9e18;

double Double(int64_t value) { return static_cast<double>(value); }

// Of one stored vector.
double VectorBytes(int64_t num_values, const AttentionRates& rates) {
  if (!rates.format) return Double(num_values) * rates.bytes_per_element;
  const CheckedInt64 bytes =
      CodecOf(FormatOf(rates.format->mode)).VectorBytes(num_values, rates.format->storage);
  return Double(bytes.value().value_or(0));
}

// K and V of one token on one rank. Ranks beyond the number of heads hold copies.
double KeyValueBytes(int64_t num_kv_heads, int64_t head_size, const AttentionRates& rates) {
  const double heads = std::max(1.0, Double(num_kv_heads) / rates.ranks);
  double row = 2.0 * heads * VectorBytes(head_size, rates);
  if (rates.format) {
    row += heads * Double(CodecOf(FormatOf(rates.format->mode)).footer_bytes_per_token_head);
  }
  return row;
}

// One latent row, compressed ones included.
double LatentBytes(int64_t num_values, bool v4, const AttentionRates& rates) {
  if (rates.format && rates.format->mode == QuantMode::kFp8DsMla) {
    const RowCodec& codec = CodecOf(v4 ? RowFormat::kFp8DsMlaV4 : RowFormat::kFp8DsMla);
    return Double(codec.fixed_row_bytes + codec.footer_bytes_per_row);
  }
  return VectorBytes(num_values, rates);
}

// Rows that the queries 1..n see, summed: floor(j / ratio), at most `limit` each.
Wide RowsSeenUpTo(Wide n, Wide ratio, Wide limit) {
  // From token ratio x limit on every query sees the limit.
  const Wide growing = std::min(n, ratio * limit - 1);
  const Wide full = growing / ratio;
  const Wide rest = growing % ratio;
  return ratio * full * (full - 1) / 2 + full * (rest + 1) + (n - growing) * limit;
}

// Positions within their chunk of the queries 1..n, counted from 1, summed.
Wide PlacesUpTo(Wide n, Wide chunk) {
  const Wide full = n / chunk;
  const Wide rest = n % chunk;
  return full * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2;
}

}  // namespace

Wide AttendedPairs(const AttentionReach& reach, int64_t context, int64_t count) {
  const Wide end = Wide{context} + count;
  if (reach.chunk > 0) return PlacesUpTo(end, reach.chunk) - PlacesUpTo(context, reach.chunk);
  return RowsSeenUpTo(end, reach.ratio, reach.limit) -
         RowsSeenUpTo(context, reach.ratio, reach.limit);
}

int64_t AttendedRows(const AttentionReach& reach, int64_t context, int64_t count) {
  if (reach.chunk > 0) return context % reach.chunk + count;
  const Wide read = Wide{reach.limit} * (reach.is_window ? 1 : count);
  const int64_t before = context / reach.ratio;
  const int64_t written = (context + count) / reach.ratio - before;
  return static_cast<int64_t>(std::min<Wide>(before, read)) + written;
}

int64_t RoundToPicoseconds(double seconds) {
  return static_cast<int64_t>(std::llround(std::min(seconds * kPsPerSecond, kMaxCoefficient)));
}

AttentionCost::AttentionCost(const ModelFacts& model, const AttentionRates& rates) {
  const double flops = rates.ranks * rates.flops_per_s;
  const auto add = [&](std::string_view letter, const AttentionReach& reach, int64_t kv_heads,
                       int64_t head_size) {
    const double layers = Double(model.CountLayers(letter));
    if (layers == 0) return;
    const double pair = 4.0 * Double(model.num_heads) * Double(head_size) / flops;
    const double row =
        KeyValueBytes(kv_heads, head_size, rates) / (rates.bytes_per_s * rates.context_ranks);
    terms_.push_back({.reach = reach,
                      .per_pair = RoundToPicoseconds(pair * layers),
                      .per_row = RoundToPicoseconds(row * layers)});
  };
  add("F", {}, model.full_kv_heads(), model.full_head_size());
  add("S", {.limit = model.window, .is_window = true}, model.num_kv_heads, model.head_size);
  add("C", {.chunk = model.chunk}, model.num_kv_heads, model.head_size);
  if (model.latent) AddLatentTerms(model, rates);
  if (model.compressed) AddCompressedTerms(model, rates);
  AddStates(model, rates);
}

// Every rank scores with all indexer heads.
AttentionCost::Term AttentionCost::IndexTerm(const ModelFacts& model, const AttentionRates& rates,
                                             int64_t ratio, int64_t num_layers) const {
  const IndexerFacts& indexer = *model.indexer;
  const double pair =
      2.0 * Double(indexer.num_heads) * Double(indexer.head_dim) / rates.flops_per_s;
  return {.reach = {.ratio = ratio},
          .per_pair = RoundToPicoseconds(pair * Double(num_layers)),
          .per_row = RoundToPicoseconds(Double(indexer.row_bytes) / rates.bytes_per_s *
                                        Double(num_layers))};
}

void AttentionCost::AddLatentTerms(const ModelFacts& model, const AttentionRates& rates) {
  const LatentFacts& latent = *model.latent;
  const double flops = rates.ranks * rates.flops_per_s;
  const double heads = Double(model.num_heads);
  // Scores against the whole row, values from its latent part.
  const double pair = 2.0 * heads * Double(latent.row_elements() + latent.kv_lora_rank) / flops;
  const double row = LatentBytes(latent.row_elements(), false, rates) /
                     (rates.bytes_per_s * rates.context_ranks);
  if (const int64_t n = model.CountLayers("M"); n > 0) {
    const double nope = Double(latent.qk_nope_head_dim);
    const double values = Double(latent.v_head_dim);
    const double expanded = 2.0 * heads * (nope + Double(latent.qk_rope_head_dim) + values) / flops;
    const double expansion = 2.0 * heads * Double(latent.kv_lora_rank) * (nope + values) / flops;
    terms_.push_back({.per_pair = RoundToPicoseconds(pair * Double(n)),
                      .per_row = RoundToPicoseconds(row * Double(n)),
                      .expanded_per_pair = RoundToPicoseconds(expanded * Double(n)),
                      .expanded_per_row = RoundToPicoseconds(expansion * Double(n))});
  }
  if (const int64_t n = model.CountLayers("N"); n > 0) {
    terms_.push_back(IndexTerm(model, rates, 1, n));
    terms_.push_back({.reach = {.limit = model.indexer->top_k},
                      .per_pair = RoundToPicoseconds(pair * Double(n)),
                      .per_row = RoundToPicoseconds(row * Double(n))});
  }
}

namespace {

// Layers that read rows of one ratio, those that store them included, and those that select rows.
struct SharedRowLayers {
  int64_t readers = 0;
  int64_t selectors = 0;
};

SharedRowLayers LayersOfSharedRows(std::string_view pattern, int64_t ratio) {
  SharedRowLayers layers;
  int64_t in_front = 0;
  for (const char letter : pattern) {
    if (letter == '1' || letter == '2') in_front = letter - '0';
    if (in_front != ratio || kSharedRowLetters.find(letter) == std::string_view::npos) continue;
    ++layers.readers;
    if (letter != static_cast<char>(LayerKind::kReader)) ++layers.selectors;
  }
  return layers;
}

}  // namespace

void AttentionCost::AddCompressedTerms(const ModelFacts& model, const AttentionRates& rates) {
  const CompressedFacts& compressed = *model.compressed;
  const double pair =
      4.0 * Double(model.num_heads) * Double(model.head_size) / (rates.ranks * rates.flops_per_s);
  const double row = LatentBytes(model.head_size, true, rates) / rates.bytes_per_s;
  const auto add_layers = [&](int64_t n, const AttentionReach& reach) {
    if (n == 0) return;
    terms_.push_back({.reach = reach,
                      .per_pair = RoundToPicoseconds(pair * Double(n)),
                      .per_row = RoundToPicoseconds(row * Double(n))});
  };
  const auto add = [&](std::string_view letters, const AttentionReach& reach) {
    add_layers(model.CountLayers(letters), reach);
  };
  // A token writes one state row, and once per compressed row the window of them is read.
  const auto state_bytes = [](const CompressorStateFacts& state, int64_t ratio) {
    return 4.0 * Double(state.row_elements + state.indexer_elements) *
           (1.0 + Double(state.window) / Double(ratio));
  };
  add(kCompressedLetters, {.limit = model.window, .is_window = true});
  double state = 0;
  if (const int64_t n = model.CountLayers("4"); n > 0) {
    terms_.push_back(IndexTerm(model, rates, kCompressRatio4, n));
    add("4", {.ratio = kCompressRatio4, .limit = model.indexer->top_k});
    state += Double(n) * state_bytes(compressed.state4, kCompressRatio4);
  }
  if (const int64_t n = model.CountLayers("H"); n > 0) {
    add("H", {.ratio = kCompressRatio128});
    state += Double(n) * state_bytes(compressed.state128, kCompressRatio128);
  }
  for (const int64_t ratio : {1, 2}) {
    const SharedRowLayers layers = LayersOfSharedRows(model.layer_pattern, ratio);
    if (layers.readers == 0) continue;
    terms_.push_back(IndexTerm(model, rates, ratio, layers.selectors));
    add_layers(layers.readers, {.ratio = ratio, .limit = model.indexer->top_k});
  }
  state += Double(model.CountLayers("2")) *
           state_bytes({.window = 2, .row_elements = compressed.ring2.row_elements}, 2);
  traffic_per_token_ = RoundToPicoseconds(state / rates.bytes_per_s);
}

void AttentionCost::AddStates(const ModelFacts& model, const AttentionRates& rates) {
  double elements = 0, bytes = 0;
  for (const StateFacts& state : model.states) {
    double n = 1;
    for (const int64_t dimension : state.shape) n *= Double(dimension);
    elements += n;
    bytes += n * Double(ElementBytes(state.dtype));
  }
  const double layers = Double(model.CountLayers("L"));
  // A token reads what the state says of it, corrects the state and asks it: three products.
  constexpr double kFlopsPerElement = 6;
  compute_per_token_ =
      RoundToPicoseconds(kFlopsPerElement * elements * layers / (rates.ranks * rates.flops_per_s));
  traffic_per_sequence_ =
      RoundToPicoseconds(2.0 * bytes * layers / (rates.ranks * rates.bytes_per_s));
}

void AttentionCost::Add(const SequenceWork& work, AttentionTime* time) const {
  for (const Term& term : terms_) {
    const Wide pairs = AttendedPairs(term.reach, work.num_context, work.num_new);
    Wide compute = pairs * term.per_pair;
    // A single token is never worth it, so that decodes add up.
    if (term.expanded_per_pair > 0 && work.num_new > 1) {
      compute = std::min(
          compute, pairs * term.expanded_per_pair + Wide{work.num_context} * term.expanded_per_row);
    }
    time->compute += compute;
    time->traffic += Wide{AttendedRows(term.reach, work.num_context, work.num_new)} * term.per_row;
  }
  time->compute += Wide{compute_per_token_} * work.num_new;
  time->traffic += Wide{traffic_per_token_} * work.num_new + traffic_per_sequence_;
}

void AttentionCost::Add(const Decodes& decodes, AttentionTime* time) const {
  const Wide sum = Wide{decodes.sum_context} + decodes.num_sequences;
  for (const Term& term : terms_) {
    time->compute += sum * term.per_pair;
    time->traffic += sum * term.per_row;
  }
  time->compute += Wide{compute_per_token_} * decodes.num_sequences;
  time->traffic += (Wide{traffic_per_token_} + traffic_per_sequence_) * decodes.num_sequences;
}

bool AttentionCost::adds_up() const {
  return std::all_of(terms_.begin(), terms_.end(),
                     [](const Term& term) { return term.reach.adds_up(); });
}

}  // namespace kvblocks::sim
