// How a plan assigns tiles to parts: the rules of metadata/split_planner.h, by one warp.
//
// AssignToParts walks through all parts, a step per part or per request that fills several;
// PlanOwnPart finds what one part does, for few requests, so that every block of a decode can plan
// for itself. Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PARTITION_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PARTITION_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMaxOwnRequests = 128;  // of PlanOwnPart

KVB_DEVICE int CeilDiv(int a, int b) { return (a + b - 1) / b; }
KVB_DEVICE int Min(int a, int b) { return a < b ? a : b; }

// Less than 5 where parts have few tiles: there balance is worth more than whole requests.
KVB_DEVICE int ChooseOverhead(int tiles, int num_parts) {
  return tiles < 8 * num_parts ? 0 : Min(5, tiles / (8 * num_parts));
}

// As DecodePiece lies in memory: count pieces of the request, this one at `index`.
KVB_DEVICE int4 MakePiece(int request, int begin, int end, int count, int index) {
  return make_int4(
      request, begin, end,
      static_cast<int>(static_cast<unsigned>(count) << 16 | static_cast<unsigned>(index)));
}

// Where the assignment continues: the next part, its first request, and how many tiles of that
// request are assigned already.
struct PartCursor {
  int part = 0, request = 0, done = 0;
};

// The state of the assignment when it comes to part `last`, or no request is left before: what
// AssignToParts does, without telling anyone. A block's first copies wait for it.
KVB_DEVICE PartCursor SkipParts(int num_requests, int num_parts, int last, const int32_t* sums,
                                int overhead, int payload) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int full = payload - overhead;
  PartCursor at;
  int before = 0, next = sums[1], whole = 0;  // requests of the part before, if it had no others
  while (at.part < last && at.request < num_requests) {
    if (whole > 0) {
      // Parts of as many whole requests, 32 at a look: less room than an overhead is left in them,
      // so that no other request begins there.
      const int b = at.request + lane * whole;
      const int first = sums[Min(b, num_requests)], end = sums[Min(b + whole, num_requests)];
      const int room = payload - (end - first);
      const bool is_same =
          at.part + lane < last && b + whole < num_requests && room >= 0 && room <= overhead;
      const unsigned others = ~__ballot_sync(kFullWarp, is_same);
      const int count = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
      if (count > 0) {
        before = __shfl_sync(kFullWarp, end, count - 1);
        at.part += count;
        at.request += count * whole;
        next = sums[at.request + 1];
        if (count < 32) whole = 0;
        continue;
      }
      whole = 0;
    }
    const int left = next - before - overhead - at.done;
    if (left > full) {
      const int parts = Min((left - 1) / full, Min(num_parts, last) - at.part);
      at.part += parts;
      at.done += parts * full;
      continue;
    }
    int end = before + payload;
    const int begin = at.done > 0 ? num_requests : at.request;
    if (at.done > 0) {
      // The rest of a request that was cut takes its tiles and an overhead.
      before = next;
      end = next + payload - left - overhead;
      ++at.request;
    }
    for (int fitting = 32; fitting == 32;) {
      const int b = at.request + 1 + lane;
      const int sum = sums[Min(b, num_requests)];
      fitting = __popc(__ballot_sync(kFullWarp, b <= num_requests && sum <= end));
      if (fitting > 0) before = __shfl_sync(kFullWarp, sum, fitting - 1);
      next = __shfl_sync(kFullWarp, sum, Min(fitting, 31));
      at.request += fitting;
    }
    const int room = end - before;
    at.done = at.request < num_requests && room > overhead ? room - overhead : 0;
    if (at.done == 0) whole = at.request - begin;
    ++at.part;
  }
  return at;
}

// sums[b]: tiles and overheads of the requests before b. Calls, each by one lane or another:
//   sink.BeginPart(part, at), at: pieces before it, also for parts that stay empty
//   sink.BeginRequest(b, at)
//   sink.Add(part, position in the part, at, piece)
// Begins at `from`, before which are no pieces, and stops behind last_part. Returns the number of
// pieces.
template <typename Sink>
KVB_DEVICE int AssignToParts(int num_requests, int num_parts, PartCursor from, int last_part,
                             const int32_t* sums, int overhead, int payload, const Sink& sink) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int full = payload - overhead;  // the most tiles of one request in a part
  int b = from.request, done = from.done, at = 0, part = from.part;
  while (part <= last_part && b < num_requests) {
    const int tiles = sums[b + 1] - sums[b] - overhead;
    if (tiles - done > full) {
      // Parts that this request fills.
      const int index = CeilDiv(done, full);
      const int count = index + CeilDiv(tiles - done, full);
      const int parts = Min((tiles - done - 1) / full, num_parts - part);
      if (done == 0 && lane == 0) sink.BeginRequest(b, at);
      for (int i = lane; i < parts; i += 32) {
        sink.BeginPart(part + i, at + i);
        sink.Add(part + i, 0, at + i,
                 MakePiece(b, done + i * full, done + (i + 1) * full, count, index + i));
      }
      part += parts;
      at += parts;
      done += parts * full;
      continue;
    }
    if (lane == 0) sink.BeginPart(part, at);
    int room = payload, position = 0;
    if (done > 0) {
      // The rest of a request that was cut.
      const int index = CeilDiv(done, full);
      if (lane == 0) sink.Add(part, 0, at, MakePiece(b, done, tiles, index + 1, index));
      room -= tiles - done + overhead;
      position = 1;
      ++b;
      done = 0;
    }
    // Whole requests, 32 at a look.
    for (int fitting = 32; fitting == 32;) {
      const int next = b + 1 + lane;
      const bool fits = next <= num_requests && sums[Min(next, num_requests)] - sums[b] <= room;
      fitting = __popc(__ballot_sync(kFullWarp, fits));
      if (fits) {
        sink.BeginRequest(next - 1, at + position + lane);
        sink.Add(part, position + lane, at + position + lane,
                 MakePiece(next - 1, 0, sums[next] - sums[next - 1] - overhead, 1, 0));
      }
      room -= sums[b + fitting] - sums[b];
      position += fitting;
      b += fitting;
    }
    if (b < num_requests && room > overhead) {
      done = room - overhead;
      const int left = sums[b + 1] - sums[b] - overhead - done;
      if (lane == 0) {
        sink.BeginRequest(b, at + position);
        sink.Add(part, position, at + position, MakePiece(b, 0, done, 1 + CeilDiv(left, full), 0));
      }
      ++position;
    }
    at += position;
    ++part;
  }
  for (int i = part + lane; i <= Min(last_part, num_parts - 1); i += 32) sink.BeginPart(i, at);
  return at;
}

struct OwnPartSink {
  int own;
  int4* pieces;
  KVB_DEVICE void BeginPart(int, int) const {}
  KVB_DEVICE void BeginRequest(int, int) const {}
  KVB_DEVICE void Add(int part, int position, int, int4 piece) const {
    if (part == own) pieces[position] = piece;
  }
};

// The pieces of part `own` into shared memory, which has room for kMaxOwnRequests; returns how
// many. tiles_of(b): of request b. `sums`: shared, kMaxOwnRequests + 1.
template <typename TilesOf>
KVB_DEVICE int PlanOwnPart(int num_requests, int num_parts, int own, const TilesOf& tiles_of,
                           int32_t* sums, int4* pieces) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const OwnPartSink sink = {own, pieces};
  int total = 0;
  for (int base = 0; base < num_requests; base += 32) {
    int sum = base + lane < num_requests ? tiles_of(base + lane) : 0;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += other;
    }
    if (base + lane < num_requests) sums[base + lane + 1] = total + sum;
    total += __shfl_sync(kFullWarp, sum, 31);
  }
  if (lane == 0) sums[0] = 0;
  __syncwarp();
  const int overhead = ChooseOverhead(total, num_parts);
  const int payload = CeilDiv(total + num_requests * overhead, num_parts) + overhead;
  int count = 0;
  if (overhead == 0) {
    // Parts are equal stretches of all tiles laid end to end.
    const int begin = own * payload, end = begin + payload;
    for (int base = 0; base < num_requests; base += 32) {
      const int b = base + lane;
      int first = 0, next = 0;
      if (b < num_requests) first = sums[b], next = sums[b + 1];
      const int low = first > begin ? first : begin, high = Min(next, end);
      const unsigned takers = __ballot_sync(kFullWarp, low < high);
      if (low < high) {
        const int first_part = first / payload;
        pieces[count + __popc(takers & ((1u << lane) - 1))] = MakePiece(
            b, low - first, high - first, (next - 1) / payload - first_part + 1, own - first_part);
      }
      count += __popc(takers);
    }
    __syncwarp();
    return count;
  }
  for (int b = lane; b < num_requests; b += 32) {
    sums[b + 1] += (b + 1) * overhead;
    pieces[b] = make_int4(-1, 0, 0, 0);
  }
  __syncwarp();
  const PartCursor from = SkipParts(num_requests, num_parts, own, sums, overhead, payload);
  AssignToParts(num_requests, num_parts, from, own, sums, overhead, payload, sink);
  __syncwarp();
  for (int base = 0; base < num_requests; base += 32) {
    const int b = base + lane;
    const bool used = b < num_requests && pieces[b].x >= 0;
    count += __popc(__ballot_sync(kFullWarp, used));
  }
  return count;
}

// How many keys of a request count and where its tiles begin: what planner and decode must agree
// on. Device code: included by .cu files only.

KVB_DEVICE int ClampLength(int seq_len, int max_keys) {
  return seq_len < 0 ? 0 : seq_len > max_keys ? max_keys : seq_len;
}

// The keys that a query sees at most: a window's, of which it is the last, and those of its chunk
// up to itself. 0: no such limit.
struct KeyLimits {
  int window = 0, chunk = 0;
};

// The first key of the block in which those begin that the first of q_len queries sees.
KVB_DEVICE int FirstKey(int length, int q_len, KeyLimits limits, int block_size) {
  if (limits.window <= 0 && limits.chunk <= 0) return 0;
  const int position = length - (q_len > 1 ? q_len : 1);
  if (position <= 0) return 0;
  int first = 0;
  if (limits.window > 0) first = position - limits.window + 1;
  if (limits.chunk > 0) {
    const int of_chunk = position / limits.chunk * limits.chunk;
    if (of_chunk > first) first = of_chunk;
  }
  return first <= 0 ? 0 : first / block_size * block_size;
}

// Tiles of a request, at least one: an empty request still writes its output.
KVB_DEVICE int TilesOfRequest(const int32_t* seq_lens, const int32_t* query_start_loc, int b,
                              int max_keys, KeyLimits limits, int block_size, int tile) {
  int q_len = 1;
  if (query_start_loc != nullptr) q_len = query_start_loc[b + 1] - query_start_loc[b];
  const int length = q_len > 0 ? ClampLength(seq_lens[b], max_keys) : 0;
  const int keys = length - FirstKey(length, q_len, limits, block_size);
  const int tiles = keys / tile + (keys % tile != 0 ? 1 : 0);
  return tiles > 1 ? tiles : 1;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PARTITION_H_
