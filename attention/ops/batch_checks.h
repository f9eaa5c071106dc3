// Checks that the attention operations share: of their parameters, their cache, and the lengths and
// block tables of their batch.
//
// All add their finding to an ArgChecker and return whether there was none so far. Cost: O(elements
// read) of arrays on the host; nothing of arrays on a device is read.

#ifndef KVBLOCKS_ATTENTION_OPS_BATCH_CHECKS_H_
#define KVBLOCKS_ATTENTION_OPS_BATCH_CHECKS_H_

#include <cstdint>

#include "attention/ops/arg_checker.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

// A cache of one of the MLA layouts, or of one of the others. `written`: it is an output.
enum class CacheFamily { kHeads, kMla, kAny };
struct CacheNames {
  const char *cache = "cache", *k = "cache.k", *v = "cache.v";
  const char *k_scales = "cache.k_scales", *v_scales = "cache.v_scales";
};
bool CheckCache(ArgChecker& check, const CacheNames& names, const ConstKvCacheView& cache,
                CacheFamily family, bool written);

// Scales of a cache: one element, [Hkv] or, if `num_requests` >= 0, [R, Hkv].
bool CheckScale(ArgChecker& check, const char* name, const ConstTensorView& scale,
                DType cache_dtype, int64_t num_kv_heads, int64_t num_requests);
// Those of an operation without queries that could be codes, which has none for them.
bool CheckScales(ArgChecker& check, const KvScales& scales, const ConstKvCacheView& cache,
                 int64_t num_requests);
// ... of one with queries q, which may be e4m3.
bool CheckScales(ArgChecker& check, const KvScales& scales, const ConstKvCacheView& cache,
                 int64_t num_requests, const ConstTensorView& q);
bool CheckQueryScale(ArgChecker& check, const ConstTensorView& scale, const ConstTensorView& q,
                     int64_t num_kv_heads);
// At most one slot per token of `name`.
bool CheckSlotCount(ArgChecker& check, const Dim& slots, const Dim& tokens, const char* name);
// Slots of a cache that is written: each below its slots, no two non-negative ones the same.
bool CheckSlots(ArgChecker& check, const ConstTensorView& slot_mapping, int64_t num_blocks,
                int64_t block_size);
// Float32 [H] or longer, no NaN if the host can tell; or absent.
bool CheckSinks(ArgChecker& check, const ConstTensorView& sinks, int64_t num_heads);
// That query heads divide into groups, one per KV head.
bool CheckGroups(ArgChecker& check, int64_t num_heads, int64_t num_kv_heads);
// 0, or a factor of an output in e4m3 or e5m2.
bool CheckOutScale(ArgChecker& check, float out_scale);
// Of queries, and of contiguous keys and values.
inline constexpr DTypeSet kAttendedTypes = kComputeTypes | DType::kF8E4M3;
inline DTypeSet OutTypes(float out_scale) { return out_scale > 0 ? kFloatCodes : kComputeTypes; }

// The lengths of a batch, as far as the host can read them.
struct BatchLengths {
  int64_t num_requests = 0, num_tokens = 0, num_heads = 0;
  // Rows of q of request b; absent: one each.
  HostArray<int32_t> query_start_loc;
  bool one_query_each = false;
  // Keys of request b: of its own, or the difference of starts.
  HostArray<int32_t> seq_lens, kv_start_loc;
  HostArray<int32_t> query_positions;
  int64_t max_query_len = 0, max_seq_len = 0;  // bounds as given, 0 where there are none

  bool queries_readable() const { return one_query_each || query_start_loc.readable(); }
  bool keys_readable() const { return seq_lens.readable() || kv_start_loc.readable(); }
  int64_t query_begin(int64_t b) const { return one_query_each ? b : query_start_loc[b]; }
  int64_t query_len(int64_t b) const {
    return one_query_each ? 1 : int64_t{query_start_loc[b + 1]} - query_start_loc[b];
  }
  int64_t key_len(int64_t b) const {
    return seq_lens.readable() ? seq_lens[b] : int64_t{kv_start_loc[b + 1]} - kv_start_loc[b];
  }
};

// From 0, never falling, to `total`.
bool CheckStarts(ArgChecker& check, const char* name, const HostArray<int32_t>& starts,
                 const char* total_name, int64_t total);
// Lengths and positions against each other; REQUIRES: starts checked.
bool CheckLengths(ArgChecker& check, const AttnParams& params, const BatchLengths& batch);
// That tables are wide enough and the blocks that some query may see exist. Entries of other blocks
// may be anything.
bool CheckBlockTable(ArgChecker& check, const AttnParams& params, const BatchLengths& batch,
                     const ConstTensorView& block_table, int64_t num_blocks, int64_t block_size);
// That row b has an entry for every block of `length` keys.
bool CheckColumns(ArgChecker& check, const ConstTensorView& block_table, int64_t b, int64_t length,
                  int64_t block_size);
// Positions [begin, end) of request b; REQUIRES: columns checked.
bool CheckTableRow(ArgChecker& check, const ConstTensorView& block_table, int64_t b, int64_t begin,
                   int64_t end, int64_t num_blocks, int64_t block_size);

// --- CheckParams: what AttnParams may not say, explicit masks included.
//
// A mask is held against the lengths of the batch where the host knows them, otherwise against the
// bounds given. Cost: O(1), O(H) for sinks, O(R) for ragged masks.

// Everything but the scales of a quantised cache. block_size 0: keys are not paged.
bool CheckParams(ArgChecker& check, const AttnParams& params, const BatchLengths& batch,
                 int64_t block_size);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_BATCH_CHECKS_H_
