#include "attention/cpu/simd_dense.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/cpu/host_scalars.h"
#include "attention/cpu/simd_key_rows.h"
#include "attention/cpu/simd_rows.h"
#include "attention/cpu/simd_states.h"
#include "attention/cpu/visibility.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention::simd {
namespace {

// Rows of a group that a task has at most, more or less: enough to use a tile's rows many times,
// few enough for their sums to stay in the second-level cache.
constexpr int64_t kTaskRows = 128;
// Keys and values of a tile: two of them are half of a second-level cache.
constexpr int64_t kTaskTileBytes = 256 << 10;
// From so many rows on, narrow rows are widened once instead of by every group of rows.
constexpr int64_t kWidenRows = 16;

struct Task {
  int64_t token_begin = 0, token_end = 0;
  int64_t table_row = 0;  // the request whose keys these are
  int64_t group_begin = 0, group_end = 0;
  int64_t head_begin = 0, head_end = 0;  // within each group
  const Pieces* pieces = nullptr;
  double cost = 0;
};

uint64_t BitsBelow(int64_t n) {
  return n <= 0 ? 0 : n >= kTileKeys ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}
// The keys of [lo, hi) in the tile that begins at `first`.
uint64_t BitsOf(int64_t first, int64_t lo, int64_t hi) {
  return BitsBelow(hi - first) & ~BitsBelow(lo - first);
}

// What one thread needs for its tasks, and how it does one.
class Worker {
 public:
  // `next` is what this thread does after, or null: its first keys are fetched from memory while
  // the last ones of this task are computed.
  void Run(const DenseBatch& batch, const Visibility& visibility, const KeyRows& key_rows,
           const Task& task, const Task* next, TakeStates take);

 private:
  void Begin();
  void LoadQueries();
  Visibility::Request RequestOf(int64_t index) const;
  Visibility::Row ViewOf(const Visibility::Request& request, int64_t token, int64_t head) const;
  void AttendPiece(int64_t begin, int64_t end, bool last);
  uint64_t FindSeen(int64_t group, int64_t first, int64_t begin, int64_t end);
  void FindAddresses(int64_t table_row, int64_t first, uint64_t wanted,
                     TileAddresses* addresses) const;
  uint64_t FindFirstTile(const Task& task, TileAddresses* addresses) const;
  void FinishPiece(int64_t piece);

  int64_t row_count() const { return num_tokens_ * num_heads_; }
  int64_t num_pieces() const {
    return std::max<int64_t>(1, static_cast<int64_t>(task_->pieces->size())) - 1;
  }
  int64_t HeadOf(int64_t group, int64_t row) const {
    return group * heads_per_group_ + task_->head_begin + row % num_heads_;
  }

  const DenseBatch* batch_;
  const Visibility* visibility_;
  const KeyRows* key_rows_;
  const Task* task_;
  const Task* next_task_;
  int64_t heads_per_group_, num_groups_, num_tokens_, num_heads_;
  bool per_head_, has_rules_;

  RowBlock rows_;
  std::vector<int64_t> request_of_;         // per token
  std::vector<Visibility::Row> row_views_;  // per token, or per group, token and head
  std::vector<uint64_t> seen_;
  std::vector<ScoreRules> rules_;
  std::vector<double> biases_;
  std::vector<State> states_;
  AlignedBuffer<float> scratch_, piece_values_;
};

void Worker::Run(const DenseBatch& batch, const Visibility& visibility, const KeyRows& key_rows,
                 const Task& task, const Task* next, TakeStates take) {
  batch_ = &batch;
  visibility_ = &visibility;
  key_rows_ = &key_rows;
  task_ = &task;
  next_task_ = next;
  Begin();
  LoadQueries();
  const int64_t pieces = num_pieces();
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (piece > 0) rows_.Restart();
    AttendPiece((*task.pieces)[piece], (*task.pieces)[piece + 1], piece + 1 == pieces);
    FinishPiece(piece);
  }
  for (int64_t group = 0; group < num_groups_; ++group) {
    for (int64_t row = 0; row < row_count(); ++row) {
      take(task.token_begin + row / num_heads_, HeadOf(task.group_begin + group, row),
           states_.data() + (group * row_count() + row) * pieces, pieces);
    }
  }
}

void Worker::Begin() {
  const AttnParams& params = batch_->params;
  heads_per_group_ = batch_->num_heads() / batch_->cache.num_kv_heads();
  num_groups_ = task_->group_end - task_->group_begin;
  num_tokens_ = task_->token_end - task_->token_begin;
  num_heads_ = task_->head_end - task_->head_begin;
  per_head_ = params.block_sparse.enabled() || params.mask.form == MaskForm::kPerHead;
  rows_.Begin(num_groups_, row_count(), key_rows_->key_dim(), key_rows_->value_dim());
  scratch_.Reserve(key_rows_->scratch_floats());
  seen_.assign(static_cast<size_t>(row_count()), 0);
  rules_.assign(static_cast<size_t>(row_count()), ScoreRules{});
  const int64_t states = num_groups_ * row_count() * num_pieces();
  states_.resize(static_cast<size_t>(states));
  piece_values_.Reserve(states * key_rows_->value_dim());
  has_rules_ = params.soft_cap != 0 || !params.alibi_slopes.absent();

  request_of_.clear();
  row_views_.clear();
  const auto& starts = batch_->query_start;
  int64_t b =
      std::upper_bound(starts.begin(), starts.end(), task_->token_begin) - starts.begin() - 1;
  Visibility::Request request;
  request.index = -1;
  for (int64_t token = task_->token_begin; token < task_->token_end; ++token) {
    while (token >= starts[b + 1]) ++b;
    request_of_.push_back(b);
  }
  for (int64_t group = 0; group < (per_head_ ? num_groups_ : 1); ++group) {
    for (int64_t row = 0; row < row_count(); row += per_head_ ? 1 : num_heads_) {
      const int64_t token = task_->token_begin + row / num_heads_;
      const int64_t index = request_of_[row / num_heads_];
      if (request.index != index) request = RequestOf(index);
      row_views_.push_back(ViewOf(request, token, HeadOf(task_->group_begin + group, row)));
      if (row_views_.back().has_bias) has_rules_ = true;
    }
  }
  if (has_rules_ && params.mask.enabled()) {
    biases_.assign(static_cast<size_t>(row_count()) * kTileKeys, 0.0);
  }
}

Visibility::Request Worker::RequestOf(int64_t index) const {
  const auto& starts = batch_->query_start;
  Visibility::Request request;
  request.index = index;
  request.q_len = starts[index + 1] - starts[index];
  request.kv_len = batch_->lengths[index];
  if (batch_->params.mask.form == MaskForm::kRaggedBits) {
    for (int64_t i = 0; i < index; ++i) {
      request.mask_bits_before += (starts[i + 1] - starts[i]) * batch_->lengths[i];
    }
  }
  return request;
}

Visibility::Row Worker::ViewOf(const Visibility::Request& request, int64_t token,
                               int64_t head) const {
  const int64_t i = token - batch_->query_start[request.index];
  int64_t p = request.kv_len - request.q_len + i;
  if (!batch_->query_positions.absent()) {
    p = *reinterpret_cast<const int32_t*>(batch_->query_positions.At(token));
  }
  return visibility_->RowOf(request, i, p, head);
}

void Worker::LoadQueries() {
  const AttnParams& params = batch_->params;
  const bool split = !batch_->query_rest.absent();
  std::vector<float> parts;
  if (split) parts.resize(static_cast<size_t>(key_rows_->key_dim() + 2 * kRowPad));
  for (int64_t group = 0; group < num_groups_; ++group) {
    for (int64_t row = 0; row < row_count(); ++row) {
      const int64_t token = task_->token_begin + row / num_heads_;
      const int64_t kv_head = task_->group_begin + group;
      const int64_t head = HeadOf(kv_head, row);
      float* query = rows_.query(group, row);
      if (split) {
        std::fill(parts.begin(), parts.end(), 0.0f);
        ReadQuery(batch_->query, token, head, parts.data());
        ReadQuery(batch_->query_rest, token, head, parts.data() + batch_->query.extent[2]);
        std::copy_n(parts.begin(), Padded(key_rows_->key_dim()), query);
      } else {
        ReadQuery(batch_->query, token, head, query);
      }
      rows_.factor(group, row) = static_cast<double>(params.scale) *
                                 ScaleAt(params.scales.q, 0, kv_head) *
                                 ScaleAt(params.scales.k, request_of_[row / num_heads_], kv_head);
    }
  }
}

// Fills seen_ and rules_ for the rows of a group and returns the keys that any of them sees.
uint64_t Worker::FindSeen(int64_t group, int64_t first, int64_t begin, int64_t end) {
  const AttnParams& params = batch_->params;
  const Visibility::Row* views = row_views_.data() + (per_head_ ? group * row_count() : 0);
  uint64_t any = 0;
  for (int64_t row = 0; row < row_count(); ++row) {
    const bool same = !per_head_ && row % num_heads_ != 0;
    const Visibility::Row& view = views[per_head_ ? row : row / num_heads_];
    if (same) {
      seen_[row] = seen_[row - 1];
    } else {
      uint64_t bits = BitsOf(first, std::max(view.lo, begin), std::min(view.hi, end));
      if (view.needs_test) {
        for (uint64_t left = bits; left != 0; left &= left - 1) {
          const int key = __builtin_ctzll(left);
          if (!visibility_->Visible(view, first + key)) bits &= ~(uint64_t{1} << key);
        }
      }
      seen_[row] = bits;
      any |= bits;
    }
    if (!has_rules_) continue;
    ScoreRules& rules = rules_[row];
    rules.soft_cap = params.soft_cap;
    if (!params.alibi_slopes.absent()) {
      rules.alibi_slope =
          LoadElement(DType::kF32, params.alibi_slopes.At(HeadOf(task_->group_begin + group, row)));
    }
    rules.first_distance = static_cast<double>(first - view.p);
    if (!view.has_bias) continue;
    double* bias = biases_.data() + row * kTileKeys;
    rules.additive = bias;
    if (same) {
      rules.additive = rules_[row - 1].additive;
      continue;
    }
    for (uint64_t left = seen_[row]; left != 0; left &= left - 1) {
      const int key = __builtin_ctzll(left);
      bias[key] = visibility_->Bias(view, first + key);
    }
  }
  return any;
}

void Worker::FindAddresses(int64_t table_row, int64_t first, uint64_t wanted,
                           TileAddresses* addresses) const {
  if (batch_->block_table.absent()) {
    const int64_t slot = batch_->first_slot[table_row] + first;
    for (int key = 0; key < kTileKeys; ++key) {
      addresses->block[key] = 0;
      addresses->offset[key] = slot + key;
    }
    return;
  }
  const int64_t block_size = batch_->cache.block_size();
  const ConstTensorView& table = batch_->block_table;
  int64_t column = first / block_size;
  int64_t offset = first % block_size;
  for (int64_t key = 0; key < kTileKeys; ++column, offset = 0) {
    const int64_t end = std::min<int64_t>(kTileKeys, key + block_size - offset);
    if ((wanted & BitsOf(0, key, end)) == 0) {
      key = end;
      continue;
    }
    int32_t block;
    std::memcpy(&block, table.At(table_row, column), sizeof(block));
    for (; key < end; ++key, ++offset) {
      addresses->block[key] = block;
      addresses->offset[key] = offset;
    }
  }
}

// The first keys that the first token of a task sees; 0 where that takes more than intervals, or
// where the task is not a single request's of as many heads as this one's.
uint64_t Worker::FindFirstTile(const Task& task, TileAddresses* addresses) const {
  const auto& starts = batch_->query_start;
  const int64_t index = task.table_row;
  if (per_head_ || task.group_end - task.group_begin != num_groups_ || task.pieces->size() < 2 ||
      task.token_begin < starts[index] || task.token_end > starts[index + 1]) {
    return 0;
  }
  const Visibility::Row view =
      ViewOf(RequestOf(index), task.token_begin, task.group_begin * heads_per_group_);
  const int64_t lo = std::max(view.lo, task.pieces->front());
  const int64_t hi = std::min(view.hi, task.pieces->back());
  if (view.needs_test || lo >= hi) return 0;
  const int64_t first = lo / kTileKeys * kTileKeys;
  const uint64_t wanted = BitsOf(first, lo, hi);
  FindAddresses(index, first, wanted, addresses);
  return wanted;
}

void Worker::AttendPiece(int64_t begin, int64_t end, bool last) {
  int64_t lo = end, hi = begin;
  bool tested = false;
  for (const Visibility::Row& view : row_views_) {
    if (view.lo >= view.hi) continue;
    lo = std::min(lo, view.lo);
    hi = std::max(hi, view.hi);
    tested |= view.needs_test;
  }
  lo = std::max(lo, begin);
  hi = std::min(hi, end);
  if (lo >= hi) return;
  const bool widen = row_count() >= kWidenRows;
  // Which keys of the next tile will be wanted is known in advance where intervals say it all.
  const bool fetch_ahead = !tested;
  TileAddresses addresses, next_addresses;
  TileRows tile;
  TileSources upcoming;
  for (int64_t first = lo / kTileKeys * kTileKeys; first < hi; first += kTileKeys) {
    uint64_t wanted = 0, next_wanted = 0;
    int64_t next_group = task_->group_begin;
    if (fetch_ahead) {
      for (const Visibility::Row& view : row_views_) {
        next_wanted |= BitsOf(first + kTileKeys, std::max(view.lo, begin), std::min(view.hi, end));
      }
    }
    if (next_wanted != 0) {
      FindAddresses(task_->table_row, first + kTileKeys, next_wanted, &next_addresses);
    } else if (last && next_task_ != nullptr && first + kTileKeys >= hi) {
      next_wanted = FindFirstTile(*next_task_, &next_addresses);
      next_group = next_task_->group_begin;
    }
    if (next_wanted != 0) key_rows_->Locate(next_wanted, &next_addresses);
    for (int64_t group = 0; group < num_groups_; ++group) {
      if (group == 0 || per_head_ || has_rules_) wanted = FindSeen(group, first, begin, end);
      if (wanted == 0) continue;
      if (group == 0 || per_head_) {
        FindAddresses(task_->table_row, first, wanted, &addresses);
        key_rows_->Locate(wanted, &addresses);
      }
      key_rows_->Load(addresses, wanted, task_->group_begin + group, widen, scratch_.data(), &tile);
      if (next_wanted != 0) {
        key_rows_->FindSources(next_addresses, next_wanted, next_group, num_groups_, group,
                               &upcoming);
      }
      rows_.AddTile(group, tile, seen_.data(), rules_.data(),
                    next_wanted != 0 ? &upcoming : nullptr);
    }
  }
}

void Worker::FinishPiece(int64_t piece) {
  const int64_t pieces = num_pieces();
  const int64_t values = key_rows_->value_dim();
  for (int64_t group = 0; group < num_groups_; ++group) {
    for (int64_t row = 0; row < row_count(); ++row) {
      const int64_t index = (group * row_count() + row) * pieces + piece;
      float* out = piece_values_.data() + index * values;
      State& state = states_[index];
      state.out = out;
      const double scale = ScaleAt(batch_->params.scales.v, request_of_[row / num_heads_],
                                   task_->group_begin + group);
      rows_.Finish(group, row, scale, &state.max, &state.sum, out);
    }
  }
}

// Cuts tokens [begin, end), whose keys are those of `table_row`, into tasks.
void AddTasks(const DenseBatch& batch, int64_t begin, int64_t end, int64_t table_row,
              const Pieces& pieces, int64_t share, std::vector<Task>* tasks) {
  if (begin >= end) return;
  const int64_t groups = batch.cache.num_kv_heads();
  const int64_t heads = batch.num_heads() / groups;
  // Few tasks for many threads: heads of a group part, too.
  const int64_t heads_per_task = std::min(
      {heads, kTaskRows, std::max<int64_t>(4, heads / std::max<int64_t>(1, share / groups))});
  const int64_t tokens_per_task =
      std::min(end - begin, std::max<int64_t>(1, kTaskRows / heads_per_task));
  // Small groups of rows go together, because heads are neighbours in memory; where a head's keys
  // are the nearer neighbours, only as long as two tiles of all stay in the cache.
  int64_t groups_per_task = std::max<int64_t>(1, kTaskRows / (tokens_per_task * heads_per_task));
  groups_per_task =
      std::min(groups_per_task, std::max<int64_t>(1, groups / std::max<int64_t>(1, share)));
  if (batch.cache.layout == KvLayout::kHnd) {
    const int64_t tile_bytes =
        kTileKeys * (batch.cache.key_dim() * ElementBytes(batch.cache.k.dtype) +
                     batch.cache.value_dim() * ElementBytes(batch.cache.v.dtype));
    groups_per_task = std::min(groups_per_task, std::max<int64_t>(1, kTaskTileBytes / tile_bytes));
  }
  Task task;
  task.table_row = table_row;
  task.pieces = &pieces;
  for (int64_t token = begin; token < end; token += tokens_per_task) {
    task.token_begin = token;
    task.token_end = std::min(end, token + tokens_per_task);
    for (int64_t group = 0; group < groups; group += groups_per_task) {
      task.group_begin = group;
      task.group_end = std::min(groups, group + groups_per_task);
      for (int64_t head = 0; head < heads; head += heads_per_task) {
        task.head_begin = head;
        task.head_end = std::min(heads, head + heads_per_task);
        task.cost = static_cast<double>(pieces.back() - pieces.front()) *
                    static_cast<double>(task.token_end - task.token_begin);
        tasks->push_back(task);
      }
    }
  }
}

void RunTasks(const DenseBatch& batch, std::vector<Task> tasks, ThreadPool* threads,
              TakeStates take) {
  // The longest first, so that threads end together.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.cost > b.cost; });
  const Visibility visibility(batch.params, batch.num_heads(), batch.cache.num_kv_heads());
  const KeyRows key_rows(batch.cache);
  // Short tasks are handed out several at a time, so that a thread knows which one it does next.
  double cost = 0, total = 0;
  for (const Task& task : tasks) total += task.cost;
  const double enough = total / (8 * NumThreads(threads));
  std::vector<size_t> starts = {0};
  for (size_t i = 0; i < tasks.size(); ++i) {
    cost += tasks[i].cost;
    if (cost < enough && i + 1 < tasks.size()) continue;
    starts.push_back(i + 1);
    cost = 0;
  }
  ParallelFor(threads, static_cast<int64_t>(starts.size()) - 1, [&](int64_t item, int) {
    // Kept from call to call: its memory is what a thread needs at most for a task.
    thread_local Worker worker;
    for (size_t i = starts[item]; i < starts[item + 1]; ++i) {
      const Task* next = i + 1 < starts[item + 1] ? &tasks[i + 1] : nullptr;
      worker.Run(batch, visibility, key_rows, tasks[i], next, take);
    }
  });
}

// How many tasks each of `requests` requests must give so that no thread is left without work. A
// lone request's tasks take the same time, and the more heads they have, the longer are the pieces
// of memory that they read.
int64_t TasksPerRequest(ThreadPool* threads, int64_t requests) {
  const int64_t all = requests <= 1 ? NumThreads(threads) : 2 * NumThreads(threads);
  return CeilDiv(all, std::max<int64_t>(1, requests));
}

}  // namespace

void AttendDense(const DenseBatch& batch, const std::vector<Pieces>& pieces, ThreadPool* threads,
                 TakeStates take) {
  std::vector<Task> tasks;
  int64_t active = 0;
  for (int64_t b = 0; b < batch.num_requests(); ++b) {
    if (batch.query_start[b] < batch.query_start[b + 1]) ++active;
  }
  const int64_t share = TasksPerRequest(threads, active);
  for (int64_t b = 0; b < batch.num_requests(); ++b) {
    AddTasks(batch, batch.query_start[b], batch.query_start[b + 1], b, pieces[b], share, &tasks);
  }
  RunTasks(batch, std::move(tasks), threads, take);
}

void AttendSharedPrefix(const DenseBatch& batch, ThreadPool* threads, TakeStates take) {
  std::vector<Task> tasks;
  const Pieces pieces = {0, batch.shared_prefix};
  AddTasks(batch, batch.query_start.front(), batch.query_start.back(), 0, pieces,
           TasksPerRequest(threads, 1), &tasks);
  RunTasks(batch, std::move(tasks), threads, take);
}

}  // namespace kvblocks::attention::simd
