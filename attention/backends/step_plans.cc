#include <algorithm>
#include <utility>

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

bool StepPlans::IsFirst(Users& users, const void* layer) const {
  const bool is_first =
      users.step != step_ ||
      std::find(users.layers.begin(), users.layers.end(), layer) != users.layers.end();
  if (is_first) users.layers.clear();
  users.step = step_;
  users.layers.push_back(layer);
  return is_first;
}

// What a plan had before stays where it is: graphs may read it. Twice as much each time keeps the
// sum of all small.
bool StepPlans::Reserve(int64_t needed, TensorView* memory) {
  const int64_t had = memory->absent() ? 0 : memory->extent[0];
  if (had >= needed) return true;
  const int64_t bytes = RoundUp(std::max(needed, 2 * had), kPlanAlignment);
  if (memory_.absent() || memory_.extent[0] - used_ < bytes) return false;
  *memory = *memory_.Slice(0, used_, used_ + bytes);
  used_ += bytes;
  return true;
}

absl::StatusOr<const DeviceDecodePlan*> StepPlans::ForDecode(const AttentionBackend& backend,
                                                             const ExecContext& context,
                                                             const void* layer,
                                                             const PagedDecodeArgs& args) {
  DeviceDecodePlan key = KeyOf(args);
  Decode* of_type = nullptr;
  for (const auto& one : decodes_) {
    if (one->lengths == args.seq_lens.data && one->stream == context.stream &&
        SameType(one->plan, key)) {
      of_type = one.get();
    }
  }
  if (of_type != nullptr && SameBatch(of_type->plan, key)) {
    if (!of_type->is_shared) return nullptr;
    if (!IsFirst(of_type->users, layer)) return &of_type->plan;
  } else {
    if (of_type == nullptr) {
      of_type = decodes_.emplace_back(std::make_unique<Decode>()).get();
      of_type->lengths = args.seq_lens.data, of_type->stream = context.stream;
    }
    const int64_t needed = backend.DecodePlanBytes(context, args);
    key.memory = of_type->plan.memory;
    of_type->is_shared = needed > 0 && Reserve(needed, &key.memory);
    of_type->plan = key;
    if (!of_type->is_shared) return nullptr;
    of_type->users = {step_, {layer}};
  }
  ++num_decode_plans_;
  const absl::Status status = backend.PlanDecode(context, args, &of_type->plan);
  if (!status.ok()) {
    of_type->users = {};
    return status;
  }
  return &of_type->plan;
}

bool StepPlans::HasToList(const LayerConfig& layer, const CommonAttentionMetadata& window,
                          const CommonAttentionMetadata* compressed, const SparseWork& work) {
  const Lists lists = {work.all_slots.data,
                       {window.seq_lens.data, compressed ? compressed->seq_lens.data : nullptr},
                       layer.window,
                       layer.sparse.compress_ratio,
                       layer.sparse.topk};
  Work& there = works_[work.window_slots.data];
  if (there.lists != lists) there = {lists, {}};
  if (!IsFirst(there.users, &layer)) return false;
  ++num_lists_;
  return true;
}

}  // namespace kvblocks::attention
