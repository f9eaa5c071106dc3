#include "kvblocks/cache_blend.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "attention/blend/blend_rows.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

using Clock = std::chrono::steady_clock;
double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class Run {
 public:
  Run(const AttentionOps& ops, const ExecContext& context, const BlendConfig& config,
      const BlendStep& step, const BlendModel& model, const BlendRows& rows, const BlendWork& work)
      : ops_(ops),
        context_(context),
        config_(config),
        step_(step),
        model_(model),
        rows_(rows),
        work_(work) {}

  // Integers to the device, then what every layer's operations refuse.
  absl::Status Prepare();
  absl::Status All(BlendResult* result);

 private:
  struct RowViews {
    ConstTensorView positions, slots, origins;
  };

  absl::Status Layer(int layer, BlendLayerReport* report);
  // Old rows of chunks: K rotated into the work memory, both into the cache, V also to compare
  // with.
  absl::Status TakeOldKeys(int64_t b, int layer);
  absl::Status StoreOldRows(int64_t b, int layer, BlendLayerReport* report);
  absl::Status Select(int64_t b, int layer, BlendLayerReport* report);
  // Rows that attend behind a selection into the other place, with all that travels with them.
  absl::Status TakeAlong(int layer, const std::vector<BlendRun>& runs);
  absl::Status FindLimits(int layer);

  absl::Status Gather(const ConstTensorView& in, const ConstTensorView& index,
                      const TensorView& out) const {
    return ops_.GatherRows(context_, {in, index, out});
  }
  absl::Status Rotate(const ConstTensorView& in, const ConstTensorView& positions,
                      const ConstTensorView& rotated_for, const TensorView& out) const;
  ReshapeAndCacheArgs StoreArgs(int layer, const ConstTensorView& k, const ConstTensorView& v,
                                const ConstTensorView& slots) const;
  PagedPrefillArgs AttendArgs(int layer) const;
  TensorView Part(const TensorView& view, int64_t begin, int64_t end) const {
    return RowsOfView(view, begin, end);
  }
  int64_t KvRowBytes() const {
    return 2 * config_.num_kv_heads * config_.head_dim * ElementBytes(config_.dtype);
  }
  void At(BlendMoment moment, int layer = -1) const {
    if (model_.at != nullptr) model_.at(moment, layer);
  }

  const AttentionOps& ops_;
  const ExecContext& context_;
  const BlendConfig& config_;
  const BlendStep& step_;
  const BlendModel& model_;
  const BlendRows& rows_;
  const BlendWork& work_;

  int place_ = 0;  // of work_.rows
  RowViews now_;   // of the rows that are there
  ConstTensorView limits_;
};

absl::Status Run::Rotate(const ConstTensorView& in, const ConstTensorView& positions,
                         const ConstTensorView& rotated_for, const TensorView& out) const {
  RotateKeysArgs args;
  args.in = in;
  args.positions = positions;
  args.from_positions = rotated_for;
  args.theta = config_.theta;
  args.rotary_dim = config_.rotary_dim;
  args.pairs = config_.pairs;
  args.out = out;
  return ops_.RotateKeys(context_, args);
}

ReshapeAndCacheArgs Run::StoreArgs(int layer, const ConstTensorView& k, const ConstTensorView& v,
                                   const ConstTensorView& slots) const {
  return {.k = k,
          .v = v,
          .slot_mapping = slots,
          .cache = step_.layers[layer].cache,
          .scales = step_.layers[layer].scales};
}

PagedPrefillArgs Run::AttendArgs(int layer) const {
  const int64_t rows = rows_.attends(layer, rows_.num_requests());
  PagedPrefillArgs args;
  args.q = Part(work_.rows[place_].q, 0, rows);
  args.cache = step_.layers[layer].cache;
  args.query_start_loc = rows_.query_start_loc(work_.integers, layer);
  args.seq_lens = step_.metadata->seq_lens;
  args.block_table = step_.metadata->block_table;
  args.max_query_len = rows_.max_attending(layer);
  args.max_seq_len = step_.metadata->max_seq_len;
  args.query_positions = limits_;
  args.params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  args.params.scales = step_.layers[layer].scales;
  args.out = Part(work_.attention, 0, rows);
  return args;
}

absl::Status Run::Prepare() {
  const auto* const from = reinterpret_cast<const std::byte*>(rows_.integers().data());
  const absl::Span<const std::byte> bytes(from, rows_.integers().size() * sizeof(int32_t));
  if (context_.device.on_host()) {
    std::memcpy(work_.integers.data, bytes.data(), bytes.size());
  } else if (absl::Status status = step_.upload(work_.integers.data, bytes); !status.ok()) {
    return status;
  }
  const int64_t num_tokens = rows_.bounds().max_num_tokens;
  now_.positions = limits_ = rows_.positions(work_.integers);
  now_.origins = rows_.origins(work_.integers);
  now_.slots = RowsOfView(step_.metadata->slot_mapping, 0, num_tokens);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    absl::Status status =
        ops_.Check(context_, StoreArgs(layer, work_.k_new, work_.v_new, now_.slots)).status();
    // As if no row had been left behind: what is left is not known yet.
    PagedPrefillArgs attend = AttendArgs(layer);
    attend.q = work_.rows[0].q;
    attend.out = work_.attention;
    attend.query_start_loc = step_.metadata->query_start_loc;
    attend.max_query_len = step_.metadata->max_query_len;
    if (status.ok()) status = ops_.Check(context_, attend).status();
    if (!status.ok()) return status;
  }
  return Gather(step_.hidden, RowsOfView(rows_.numbers(work_.integers), 0, num_tokens),
                work_.rows[0].hidden);
}

absl::Status Run::TakeOldKeys(int64_t b, int layer) {
  int64_t at = rows_.first(b);
  for (const BlendPiece& piece : rows_.session(b)->pieces()) {
    const int64_t end = at + piece.num_rows;
    KVBLOCKS_RETURN_IF_ERROR(
        Rotate(piece.k[layer], RowsOfView(rows_.positions(work_.integers), at, end),
               RowsOfView(rows_.rotated_for(work_.integers), at, end), Part(work_.k_old, at, end)));
    at = end;
  }
  return absl::OkStatus();
}

absl::Status Run::StoreOldRows(int64_t b, int layer, BlendLayerReport* report) {
  int64_t at = rows_.first(b);
  for (const BlendPiece& piece : rows_.session(b)->pieces()) {
    const int64_t end = at + piece.num_rows;
    KVBLOCKS_RETURN_IF_ERROR(ops_.ReshapeAndCache(
        context_, StoreArgs(layer, Part(work_.k_old, at, end), piece.v[layer],
                            RowsOfView(step_.metadata->slot_mapping, at, end))));
    at = end;
  }
  const int64_t bytes = rows_.session(b)->num_old_rows() * KvRowBytes();
  report->bytes_from_chunks += bytes;
  report->bytes_stored += bytes;
  return absl::OkStatus();
}

absl::Status Run::Select(int64_t b, int layer, BlendLayerReport* report) {
  const BlendSession& session = *rows_.session(b);
  const bool by_keys = session.config().rank_by_keys;
  const int64_t first = rows_.first(b), num_old = session.num_old_rows();
  const int64_t candidates = rows_.num_candidates(layer, b);
  if (!by_keys) {
    int64_t at = first;
    for (const BlendPiece& piece : session.pieces()) {
      KVBLOCKS_RETURN_IF_ERROR(Gather(piece.v[layer],
                                      RowsOfView(rows_.numbers(work_.integers), 0, piece.num_rows),
                                      Part(work_.v_old, at, at + piece.num_rows)));
      at += piece.num_rows;
    }
  }
  report->bytes_from_chunks += num_old * KvRowBytes() / 2;
  TensorView old = by_keys ? work_.k_old : work_.v_old;
  const int64_t begin = rows_.projected(layer, b);
  const int64_t num_rows = rows_.num_projected(layer, b);
  if (candidates < num_old) {
    KVBLOCKS_RETURN_IF_ERROR(Gather(Part(old, first, first + num_old),
                                    RowsOfView(now_.origins, begin, begin + candidates),
                                    Part(work_.picked, first, first + candidates)));
    old = work_.picked;
  }
  const int64_t to = rows_.attends(layer, b), attending = rows_.num_attending(layer, b);
  const int64_t suffix = num_rows - candidates;
  SelectHkvdArgs args;
  args.v_new = Part(by_keys ? work_.k_new : work_.v_new, begin, begin + num_rows);
  // Behind the old rows there is anything; it is not compared.
  args.v_old = Part(old, first, first + num_rows);
  // The share of these candidates that leaves as many as the ratio does of all.
  args.ratio = static_cast<double>(attending - suffix) / static_cast<double>(candidates);
  args.suffix_len = suffix;
  args.imp = Part(work_.selected, to, to + attending);
  return ops_.SelectHkvd(context_, args);
}

absl::Status Run::TakeAlong(int layer, const std::vector<BlendRun>& runs) {
  const BlendRowTensors &from = work_.rows[place_], &to = work_.rows[1 - place_];
  const std::pair<ConstTensorView, TensorView> travelling[] = {{from.hidden, to.hidden},
                                                               {from.q, to.q},
                                                               {now_.positions, to.positions},
                                                               {now_.slots, to.slots},
                                                               {now_.origins, to.origins}};
  for (const BlendRun& run : runs) {
    const int64_t begin = rows_.projected(layer, run.first_request);
    const int64_t end = rows_.projected(layer, run.end_request);
    const int64_t new_begin = rows_.attends(layer, run.first_request);
    const int64_t new_end = rows_.attends(layer, run.end_request);
    const ConstTensorView index =
        run.selects ? ConstTensorView(Part(work_.selected, new_begin, new_end))
                    : RowsOfView(rows_.numbers(work_.integers), 0, new_end - new_begin);
    for (const auto& [in, out] : travelling) {
      KVBLOCKS_RETURN_IF_ERROR(
          Gather(RowsOfView(in, begin, end), index, Part(out, new_begin, new_end)));
    }
  }
  place_ = 1 - place_;
  now_ = {to.positions, to.slots, to.origins};
  return FindLimits(layer);
}

absl::Status Run::FindLimits(int layer) {
  const int64_t num_rows = rows_.attends(layer, rows_.num_requests());
  now_.positions = RowsOfView(now_.positions, 0, num_rows);
  now_.slots = RowsOfView(now_.slots, 0, num_rows);
  now_.origins = RowsOfView(now_.origins, 0, num_rows);
  limits_ = now_.positions;
  if (!rows_.has_compat_masks()) return absl::OkStatus();
  const ConstTensorView numbers = rows_.numbers(work_.integers);
  for (int64_t b = 0; b < rows_.num_requests(); ++b) {
    const int64_t begin = rows_.attends(layer, b), end = rows_.attends(layer, b + 1);
    const BlendSession* const session = rows_.session(b);
    // r + n - M of the rows r of M.
    const bool compat =
        session != nullptr && session->config().mask == BlendMask::kCompatBottomRight;
    const ConstTensorView in =
        compat ? RowsOfView(numbers, session->num_tokens() - (end - begin), session->num_tokens())
               : RowsOfView(now_.positions, begin, end);
    KVBLOCKS_RETURN_IF_ERROR(
        Gather(in, RowsOfView(numbers, 0, end - begin), Part(work_.limits, begin, end)));
  }
  limits_ = RowsOfView(ConstTensorView(work_.limits), 0, num_rows);
  return absl::OkStatus();
}

absl::Status Run::Layer(int layer, BlendLayerReport* report) {
  const int64_t requests = rows_.num_requests();
  const int64_t projected = rows_.projected(layer, requests);
  const int64_t attending = rows_.attends(layer, requests);
  const TensorView k = Part(work_.k_new, 0, projected), v = Part(work_.v_new, 0, projected);
  absl::Status status = model_.project(layer, Part(work_.rows[place_].hidden, 0, projected),
                                       Part(work_.rows[place_].q, 0, projected), k, v);
  if (status.ok()) status = Rotate(k, now_.positions, {}, k);
  report->projected_rows = projected;
  report->attended_rows = attending;

  // Old rows first: the new ones go over them.
  for (int64_t b = 0; status.ok() && b < requests; ++b) {
    const BlendSession* const session = rows_.session(b);
    if (session == nullptr) continue;
    report->recomputed_rows += rows_.num_candidates(layer, b);
    const bool stores = rows_.ReusesIn(layer, b) && session->config().store == BlendStore::kAllRows;
    const bool compares = rows_.SelectsIn(layer, b) && session->config().rank_by_keys;
    if (stores || compares) status = TakeOldKeys(b, layer);
    if (stores && status.ok()) status = StoreOldRows(b, layer, report);
  }
  if (status.ok()) status = ops_.ReshapeAndCache(context_, StoreArgs(layer, k, v, now_.slots));
  if (!status.ok()) return status;
  report->bytes_stored += projected * KvRowBytes();

  if (const std::vector<BlendRun> runs = rows_.RunsOf(layer); !runs.empty()) {
    const auto start = Clock::now();
    At(BlendMoment::kSelectionBegins, layer);
    for (const BlendRun& run : runs) {
      if (run.selects) status = Select(run.first_request, layer, report);
      if (!status.ok()) return status;
    }
    if (status = TakeAlong(layer, runs); !status.ok()) return status;
    At(BlendMoment::kSelectionEnds, layer);
    report->selection_microseconds = MicrosecondsSince(start);
  }

  const PagedPrefillArgs args = AttendArgs(layer);
  const TensorView q = Part(work_.rows[place_].q, 0, attending);
  status = Rotate(q, now_.positions, {}, q);
  if (status.ok()) status = model_.attend(layer, args);
  if (!status.ok()) return status;
  return model_.finish(layer, args.out, Part(work_.rows[place_].hidden, 0, attending));
}

absl::Status Run::All(BlendResult* result) {
  const auto start = Clock::now();
  At(BlendMoment::kRunBegins);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    BlendLayerReport& report = result->layers.emplace_back();
    KVBLOCKS_RETURN_IF_ERROR(Layer(layer, &report));
    At(BlendMoment::kLayerEnds, layer);
    report.ended_microseconds = MicrosecondsSince(start);
  }
  At(BlendMoment::kHiddenRowsAreThere);
  const int last = config_.num_layers - 1;
  for (int64_t b = 0; b <= rows_.num_requests(); ++b) {
    result->row_start.push_back(rows_.attends(last, b));
  }
  result->hidden = Part(work_.rows[place_].hidden, 0, result->row_start.back());
  result->positions = now_.positions;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BlendResult> RunBlend(const AttentionOps& ops, const ExecContext& context,
                                     const BlendConfig& config, const BlendStep& step,
                                     const BlendModel& model) {
  absl::Status status = CheckBlendModel(config);
  if (status.ok()) status = CheckBlendStep(context, config, step, model);
  if (!status.ok()) return status;
  BlendResult result;
  if (step.metadata->num_actual_tokens == 0) return result;
  const BlendRows rows(config, *step.metadata, step.sessions);
  TensorView memory = step.work;
  if (memory.absent()) {
    KVBLOCKS_ASSIGN_OR_RETURN(const int64_t bytes, BlendWorkBytes(config, rows.bounds()));
    result.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    memory = TensorView::Contiguous(result.memory.get(), DType::kU8, {bytes});
  } else if (context.device.on_host() ? !memory.device.on_host()
                                      : memory.device != context.device) {
    return InvalidArgument("RunBlend: the work memory is on ", Name(memory.device),
                           "; the run is on ", Name(context.device));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const BlendWork work, MakeBlendWork(config, rows.bounds(), memory));
  Run run(ops, context, config, step, model, rows, work);
  status = run.Prepare();
  if (status.ok()) status = run.All(&result);
  if (!status.ok()) return status;
  return result;
}

}  // namespace kvblocks::attention
