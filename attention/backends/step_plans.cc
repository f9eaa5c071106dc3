#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_layer.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kPlanAlignment = 256;

// What a plan for the call is a plan for, without its memory.
DeviceDecodePlan KeyOf(const PagedDecodeArgs& args) {
  DeviceDecodePlan key;
  key.num_requests = args.seq_lens.extent[0];
  key.num_heads = args.q.extent[1];
  key.num_kv_heads = args.cache.num_kv_heads();
  key.key_dim = args.cache.key_dim();
  key.value_dim = args.cache.value_dim();
  key.block_size = args.cache.block_size();
  key.window_left = args.params.window_left;
  key.chunk = args.params.chunk;
  key.table_columns = args.block_table.extent[1];
  key.max_seq_len = args.max_seq_len;
  key.cache_dtype = args.cache.k.dtype;
  key.split = args.params.split;
  return key;
}

// Of layers of one type: only the batch may differ.
bool SameType(const DeviceDecodePlan& a, const DeviceDecodePlan& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.key_dim == b.key_dim && a.value_dim == b.value_dim && a.block_size == b.block_size &&
         a.window_left == b.window_left && a.chunk == b.chunk && a.cache_dtype == b.cache_dtype &&
         a.split == b.split;
}
bool SameBatch(const DeviceDecodePlan& a, const DeviceDecodePlan& b) {
  return a.num_requests == b.num_requests && a.table_columns == b.table_columns &&
         a.max_seq_len == b.max_seq_len;
}

}  // namespace

struct StepPlans::State {
  // Which layers took something in which step.
  struct Users {
    int64_t step = -1;
    std::vector<const void*> layers;
  };
  struct Decode {
    const void* lengths = nullptr;
    void* stream = nullptr;
    DeviceDecodePlan plan;
    bool is_shared = false;  // else calls plan for themselves
    Users users;
  };
  // What lies where a work begins.
  struct Lists {
    const void* all_slots = nullptr;
    const void* lengths[2] = {};
    int64_t window = 0, ratio = 0, topk = 0;

    friend bool operator==(const Lists&, const Lists&) = default;
  };
  struct Work {
    Lists lists;
    Users users;
  };

  // True if the layer is the first of the step, or comes again.
  bool IsFirst(Users& users, const void* layer) const {
    const bool is_first =
        users.step != step ||
        std::find(users.layers.begin(), users.layers.end(), layer) != users.layers.end();
    if (is_first) users.layers.clear();
    users.step = step;
    users.layers.push_back(layer);
    return is_first;
  }
  // What a plan had before stays where it is: graphs may read it. Twice as much each time keeps the
  // sum of all small.
  bool Reserve(int64_t needed, TensorView* out) {
    const int64_t had = out->absent() ? 0 : out->extent[0];
    if (had >= needed) return true;
    const int64_t bytes = RoundUp(std::max(needed, 2 * had), kPlanAlignment);
    if (memory.absent() || memory.extent[0] - used < bytes) return false;
    *out = *memory.Slice(0, used, used + bytes);
    used += bytes;
    return true;
  }

  TensorView memory;
  int64_t used = 0;  // bytes of it
  int64_t step = 0, num_decode_plans = 0, num_lists = 0;
  std::vector<std::unique_ptr<Decode>> decodes;  // plans stay where they are
  absl::flat_hash_map<const void*, Work> works;
};

StepPlans::StepPlans(TensorView memory) : state_(std::make_unique<State>()) {
  state_->memory = memory;
}
StepPlans::~StepPlans() = default;

void StepPlans::BeginStep() { ++state_->step; }
int64_t StepPlans::num_decode_plans() const { return state_->num_decode_plans; }
int64_t StepPlans::num_lists() const { return state_->num_lists; }

absl::StatusOr<const DeviceDecodePlan*> StepPlans::ForDecode(const AttentionBackend& backend,
                                                             const ExecContext& context,
                                                             const void* layer,
                                                             const PagedDecodeArgs& args) {
  DeviceDecodePlan key = KeyOf(args);
  State& state = *state_;
  State::Decode* of_type = nullptr;
  for (const auto& one : state.decodes) {
    if (one->lengths == args.seq_lens.data && one->stream == context.stream &&
        SameType(one->plan, key)) {
      of_type = one.get();
    }
  }
  if (of_type != nullptr && SameBatch(of_type->plan, key)) {
    if (!of_type->is_shared) return nullptr;
    if (!state.IsFirst(of_type->users, layer)) return &of_type->plan;
  } else {
    if (of_type == nullptr) {
      of_type = state.decodes.emplace_back(std::make_unique<State::Decode>()).get();
      of_type->lengths = args.seq_lens.data, of_type->stream = context.stream;
    }
    const int64_t needed = backend.DecodePlanBytes(context, args);
    key.memory = of_type->plan.memory;
    of_type->is_shared = needed > 0 && state.Reserve(needed, &key.memory);
    of_type->plan = key;
    if (!of_type->is_shared) return nullptr;
    of_type->users = {state.step, {layer}};
  }
  ++state.num_decode_plans;
  const absl::Status status = backend.PlanDecode(context, args, &of_type->plan);
  if (!status.ok()) {
    of_type->users = {};
    return status;
  }
  return &of_type->plan;
}

bool StepPlans::HasToList(const LayerConfig& layer, const CommonAttentionMetadata& window,
                          const CommonAttentionMetadata* compressed, const SparseWork& work) {
  State& state = *state_;
  const State::Lists lists = {work.all_slots.data,
                       {window.seq_lens.data, compressed ? compressed->seq_lens.data : nullptr},
                       layer.window,
                       layer.sparse.compress_ratio,
                       layer.sparse.topk};
  State::Work& there = state.works[work.window_slots.data];
  if (there.lists != lists) there = {lists, {}};
  if (!state.IsFirst(there.users, &layer)) return false;
  ++state.num_lists;
  return true;
}

}  // namespace kvblocks::attention
