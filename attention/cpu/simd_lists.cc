#include <algorithm>

#include "attention/cpu/simd_dense.h"
#include "attention/cpu/simd_key_rows.h"
#include "attention/cpu/simd_rows.h"
#include "attention/cpu/simd_states.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention::simd {
namespace {

constexpr int64_t kTaskHeads = 64;

struct Worker {
  RowBlock rows;
  AlignedBuffer<float> scratch, values;
  std::vector<uint64_t> seen;
  std::vector<ScoreRules> rules;
  std::vector<State> states;
};

// Adds the keys that query n has in one cache.
void AddList(const KeyLists& lists, const KeyRows& key_rows, int64_t n, Worker* worker) {
  const int64_t block_size = lists.cache.block_size();
  TileAddresses addresses;
  TileRows tile;
  worker->scratch.Reserve(key_rows.scratch_floats());
  for (int64_t first = lists.starts[n]; first < lists.starts[n + 1]; first += kTileKeys) {
    const int64_t count = std::min<int64_t>(kTileKeys, lists.starts[n + 1] - first);
    for (int64_t key = 0; key < count; ++key) {
      addresses.block[key] = lists.slots[first + key] / block_size;
      addresses.offset[key] = lists.slots[first + key] % block_size;
    }
    const uint64_t wanted = count == kTileKeys ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    key_rows.Locate(wanted, &addresses);
    key_rows.Load(addresses, wanted, 0, true, worker->scratch.data(), &tile);
    std::fill(worker->seen.begin(), worker->seen.end(), wanted);
    worker->rows.AddTile(0, tile, worker->seen.data(), worker->rules.data());
  }
}

}  // namespace

void AttendLists(const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
                 ThreadPool* threads, TakeStates take) {
  std::vector<KeyRows> key_rows;
  for (const KeyLists& list : lists) key_rows.emplace_back(list.cache);
  const int64_t num_heads = query.extent[2], q_len = query.extent[1];
  const int64_t num_queries = query.extent[0] * q_len;
  const int64_t value_dim = key_rows[0].value_dim();
  // With few queries, threads share the heads of one.
  const int64_t wanted = NumThreads(threads) == 1 ? 1 : 4 * NumThreads(threads);
  const int64_t parts = std::max<int64_t>(1, wanted / std::max<int64_t>(1, num_queries));
  const int64_t heads_per_task =
      std::min({num_heads, kTaskHeads, std::max<int64_t>(8, num_heads / parts)});
  const int64_t tasks_per_query = CeilDiv(num_heads, heads_per_task);
  ParallelFor(threads, num_queries * tasks_per_query, [&](int64_t item, int) {
    thread_local Worker worker;
    const int64_t n = item / tasks_per_query;
    const int64_t head_begin = item % tasks_per_query * heads_per_task;
    const int64_t heads = std::min(heads_per_task, num_heads - head_begin);
    const ConstTensorView request = query.Select(0, n / q_len).value();
    worker.rows.Begin(1, heads, key_rows[0].key_dim(), value_dim);
    worker.seen.assign(static_cast<size_t>(heads), 0);
    worker.rules.assign(static_cast<size_t>(heads), ScoreRules{});
    worker.states.assign(static_cast<size_t>(2 * heads), State{});
    worker.values.Reserve(2 * heads * value_dim);
    for (int64_t head = 0; head < heads; ++head) {
      ReadQuery(request, n % q_len, head_begin + head, worker.rows.query(0, head));
    }
    int64_t num_states = 0;
    for (size_t i = 0; i < lists.size(); ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        worker.rows.factor(0, head) = scale * lists[i].code_scale;
      }
      AddList(lists[i], key_rows[i], n, &worker);
      // Codes with a scale of their own make a state of their own.
      if (i + 1 < lists.size() && lists[i].code_scale == lists[i + 1].code_scale) continue;
      for (int64_t head = 0; head < heads; ++head) {
        State& state = worker.states[2 * head + num_states];
        float* out = worker.values.data() + (2 * head + num_states) * value_dim;
        worker.rows.Finish(0, head, lists[i].code_scale, &state.max, &state.sum, out);
        state.out = out;
      }
      ++num_states;
      worker.rows.Restart();
    }
    for (int64_t head = 0; head < heads; ++head) {
      take(n, head_begin + head, &worker.states[2 * head], num_states);
    }
  });
}

}  // namespace kvblocks::attention::simd
