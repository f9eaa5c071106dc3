#include "kvblocks/attention_metadata.h"

#include <utility>

#include "absl/status/statusor.h"
#include "attention/metadata/slot_mapping.h"
#include "checks/ceil_div.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kMaxTableEntries = kMaxInt32;

int64_t SlotOfRow(const KvGroupConfig& config, int32_t id, int64_t row) {
  const int64_t rows = config.kernel_block_size;
  const int64_t stride = config.block_map ? config.block_map->block_stride : 1;
  return (config.FirstKernelBlock(id) + row / rows * stride) * rows + row % rows;
}

}  // namespace

absl::Status CheckKvGroup(const KvGroupConfig& config, int64_t max_num_reqs, int64_t max_seq_len) {
  if (config.window < 0 || config.window > kMaxInt32) {
    return InvalidArgument("window is ", config.window, "; it must be 0 (none) to ", kMaxInt32);
  }
  if (config.manager_block_size < 1 || config.manager_block_size > kMaxInt32) {
    return InvalidArgument("manager_block_size is ", config.manager_block_size,
                           "; it must be from 1 to ", kMaxInt32);
  }
  const int64_t ratio = config.compression_ratio;
  if (ratio < 1 || config.manager_block_size % ratio != 0) {
    return InvalidArgument("compression_ratio is ", ratio, "; it must divide the manager's ",
                           config.manager_block_size, " tokens per block");
  }
  const ContextParallel& parallel = config.context_parallel;
  if (parallel != ContextParallel()) {
    const bool whole =
        parallel.num_ranks > 0 && config.manager_block_size % parallel.num_ranks == 0;
    KVBLOCKS_RETURN_IF_ERROR(CheckContextParallel(
        parallel, whole ? config.manager_block_size / parallel.num_ranks : parallel.interleave));
    if (!whole) {
      return InvalidArgument("manager_block_size is ", config.manager_block_size, "; over ",
                             parallel.num_ranks, " ranks it must be a multiple of their number");
    }
    if (config.window > 0 || ratio > 1 || !config.sink_blocks.empty()) {
      return InvalidArgument(
          "context_parallel has ", parallel.num_ranks, " ranks and the group ",
          config.window > 0 ? "a window" : (ratio > 1 ? "compressed rows" : "sink blocks"),
          ", which cannot be spread over ranks; use one rank");
    }
  }
  const absl::StatusOr<int64_t> expansion = BlockExpansion(
      config.manager_block_size / ratio / parallel.num_ranks, config.kernel_block_size);
  if (!expansion.ok()) {
    return InvalidArgument(std::string(expansion.status().message()).c_str(),
                           ratio == 1 ? "" : " (in rows of the compressed cache)",
                           parallel.enabled() ? " (in rows of a rank)" : "");
  }
  if (config.num_blocks < 1 || config.num_blocks > kMaxInt32 / *expansion) {
    return InvalidArgument("num_blocks is ", config.num_blocks, "; it must be from 1 to ",
                           kMaxInt32 / *expansion, ", so that kernel block ids fit in int32");
  }
  if (config.null_block < -1 || config.null_block >= config.num_blocks) {
    return InvalidArgument("null_block is ", config.null_block, "; it must be a block id below ",
                           config.num_blocks, ", or -1 for none");
  }
  if (config.block_map) {
    const BlockMap& map = *config.block_map;
    for (const auto& [name, value] : {std::pair("page_stride", map.page_stride),
                                      {"block_stride", map.block_stride},
                                      {"ids_per_chunk", map.ids_per_chunk},
                                      {"pages_per_chunk", map.pages_per_chunk},
                                      {"chunk_stride", map.chunk_stride},
                                      {"null_number", map.null_number}}) {
      if (value < 0 || value > kMaxInt32) {
        return InvalidArgument("block_map.", name, " is ", value, "; from 0 to ", kMaxInt32);
      }
    }
    const int64_t last = map.ids_per_chunk == 0
                             ? (config.num_blocks - 1) * map.page_stride
                             : std::max(map.null_number,
                                        (config.num_blocks - 1) / map.ids_per_chunk *
                                                map.chunk_stride +
                                            map.ids_per_chunk * map.page_stride);
    if (last > kMaxInt32 - (*expansion - 1) * map.block_stride) {
      return InvalidArgument("block_map leads to block numbers of ", last,
                             " and more; they must fit in int32");
    }
  }
  if (!config.sink_blocks.empty() && ratio > 1) {
    return InvalidArgument("sink_blocks has ", config.sink_blocks.size(),
                           " blocks, and compression_ratio is ", ratio,
                           "; a compressed cache has no sink rows");
  }
  for (auto at = config.sink_blocks.begin(); at != config.sink_blocks.end(); ++at) {
    if (*at < 0 || *at >= config.num_blocks || *at == config.null_block || !config.IsPage(*at) ||
        std::find(config.sink_blocks.begin(), at, *at) != at) {
      return InvalidArgument("sink_blocks has ", *at, "; distinct ids from 0 to ",
                             config.num_blocks - 1, ", but not the null block ", config.null_block);
    }
  }
  const auto num_sinks = static_cast<int64_t>(config.sink_blocks.size());
  const int64_t max_columns = kMaxTableEntries / std::max<int64_t>(1, max_num_reqs) / *expansion;
  if (CeilDiv(max_seq_len, config.manager_block_size) > max_columns - num_sinks ||
      max_seq_len > kMaxInt32 - config.num_sink_rows()) {
    return InvalidArgument("a table of max_num_reqs ", max_num_reqs, " times max_seq_len ",
                           max_seq_len, " in blocks of ", config.kernel_block_size,
                           " has more than ", kMaxTableEntries, " entries; lower a bound");
  }
  return absl::OkStatus();
}

void FillSinkSlots(const KvGroupConfig& config, int64_t* slots) {
  for (const int32_t id : config.sink_blocks) {
    for (int64_t row = 0; row < config.rows_per_block(); ++row) {
      *slots++ = SlotOfRow(config, id, row);
    }
  }
}

void FillSlots(const KvGroupConfig& config, absl::Span<const int32_t> ids,
               const RequestInput& request, int64_t* slots) {
  if (const ContextParallel& parallel = config.context_parallel; parallel.enabled()) {
    const int64_t first = request.num_computed_tokens, rows = config.rows_per_block();
    for (int64_t p = first; p < first + request.num_scheduled_tokens; ++p) {
      const int32_t id = ids[p / config.manager_block_size];
      const bool stored = parallel.IsLocal(p) && id != config.null_block;
      *slots++ = stored ? SlotOfRow(config, id, parallel.LocalRow(p) % rows) : -1;
    }
    return;
  }
  const int64_t block_size = config.manager_block_size, ratio = config.compression_ratio;
  const int64_t rows_per_block = config.rows_per_block();
  // Whether the rows of a page have successive slots.
  const bool is_run = !config.block_map || config.expansion() == 1;
  int64_t p = request.num_computed_tokens;
  const int64_t end = p + request.num_scheduled_tokens;
  while (p < end) {
    // 32-bit division is several times faster, and positions fit.
    const int64_t block = static_cast<uint32_t>(p) / static_cast<uint32_t>(block_size);
    const int64_t block_begin = block * block_size;
    const int64_t run_end = std::min(end, block_begin + block_size);
    const int32_t id = ids[block];
    const int64_t first_row = config.block_map
                                  ? config.block_map->First(id) * config.kernel_block_size
                                  : id * rows_per_block;
    if (id == config.null_block) {
      slots = std::fill_n(slots, run_end - p, int64_t{-1});
      p = run_end;
    } else if (!is_run) {
      for (; p < run_end; ++p) {
        *slots++ = (p + 1) % ratio == 0 ? SlotOfRow(config, id, (p - block_begin) / ratio) : -1;
      }
    } else if (ratio == 1) {
      const int64_t first = first_row - block_begin;
      for (; p < run_end; ++p) *slots++ = first + p;
    } else {
      for (; p < run_end; ++p) {
        *slots++ = (p + 1) % ratio == 0 ? first_row + (p - block_begin) / ratio : -1;
      }
    }
  }
}

}  // namespace kvblocks::attention
