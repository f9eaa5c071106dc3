#include "sim/trace/trace_reader.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/gen/philox.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/row_checker.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

using SourceFactory = std::function<absl::StatusOr<std::unique_ptr<ByteSource>>()>;

OpenedRows MakeRowSource(std::unique_ptr<ByteSource> bytes, const TraceReaderOptions& options,
                         RowLog* log) {
  RowInput input{std::move(bytes), options, log, options.format};
  // Columns are named for files whose format nobody knows.
  if (input.format == "auto" && !options.fields.empty()) input.format = "fields";
  if (input.format == "auto") {
    KVBLOCKS_ASSIGN_OR_RETURN(std::string head, PeekHead(input));
    KVBLOCKS_ASSIGN_OR_RETURN(input.format, DetectFormat(std::move(head), log->file));
  }
  return MakeReaderOfFormat(input);
}

class TraceReaderImpl : public TraceReader {
 public:
  TraceReaderImpl(std::string file, SourceFactory factory, const TraceReaderOptions& options)
      : file_(std::move(file)), factory_(std::move(factory)), options_(options) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    if (!pass_.outcome.ok()) return pass_.outcome;
    absl::StatusOr<bool> more = NextSelected(out);
    if (!more.ok()) pass_.outcome = more.status();
    return more;
  }

  const TraceInfo& info() const override { return source_->info(); }
  std::string dialect() const override { return source_->dialect(); }
  ReadProgress progress() const override { return source_->progress(); }
  const TraceReaderCounters& counters() const override { return log_.counters; }
  const std::vector<std::string>& warnings() const override { return log_.warnings; }

  absl::Status Restart() override {
    KVBLOCKS_ASSIGN_OR_RETURN(auto bytes, factory_());
    log_ = RowLog();
    log_.file = file_;
    log_.max_warnings = std::max(options_.max_errors, 0);
    log_.listener = options_.listener;
    KVBLOCKS_ASSIGN_OR_RETURN(source_, MakeRowSource(std::move(bytes), options_, &log_));
    checker_ = std::make_unique<RowChecker>(options_, source_->info(), &log_);
    window_ = options_.require_sorted || source_->info().sorted
                  ? 0
                  : static_cast<size_t>(std::max<int64_t>(options_.reorder_window, 0));
    pass_ = Pass();
    pass_.errors = ErrorList(log_.max_warnings);
    return absl::OkStatus();
  }

 private:
  // In file order: rows that pass all checks.
  absl::StatusOr<bool> NextGoodRow(TraceRequest* out) {
    while (true) {
      problems_.clear();
      absl::StatusOr<RowOutcome> outcome = source_->Next(&row_, &problems_);
      if (!outcome.ok()) {
        if (pass_.errors.empty()) return outcome.status();
        pass_.errors.Add(std::string(outcome.status().message()), /*is_last=*/true);
        return false;
      }
      if (*outcome == RowOutcome::kEnd) return false;
      ++log_.counters.rows;
      if (*outcome == RowOutcome::kRow) {
        const ArrivalBound bound = {pass_.last_popped_ns, pass_.last_popped_line,
                                    static_cast<int64_t>(window_),
                                    pass_.is_cut_short ? options_.reorder_bytes : 0};
        if (checker_->Check(&row_, bound, &problems_)) {
          *out = std::move(row_.request);
          return true;
        }
      }
      if (options_.skip_bad_rows) ++log_.counters.bad_rows;
      for (const TraceProblem& problem : problems_) NoteError(problem);
    }
  }

  void NoteError(const TraceProblem& problem) {
    if (log_.listener != nullptr) log_.listener->OnProblem(problem);
    if (options_.skip_bad_rows) {
      if (static_cast<int>(log_.warnings.size()) < log_.max_warnings) {
        log_.warnings.push_back(ProblemMessage(log_.file, problem));
      }
      return;
    }
    pass_.errors.Add(ProblemMessage(log_.file, problem));
  }

  static bool Later(const TraceRequest& a, const TraceRequest& b) {
    return a.arrival_ns != b.arrival_ns ? a.arrival_ns > b.arrival_ns : a.row > b.row;
  }

  // In arrival order, by way of the heap.
  absl::StatusOr<bool> NextInOrder(TraceRequest* out) {
    while (!pass_.rows_ended && pass_.heap.size() <= window_) {
      if (!pass_.heap.empty() && pass_.heap_bytes > options_.reorder_bytes) {
        pass_.is_cut_short = true;
        break;
      }
      TraceRequest request;
      KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextGoodRow(&request));
      pass_.rows_ended = !more;
      if (pass_.rows_ended) break;
      if (!pass_.errors.empty()) continue;  // only looking for further errors
      pass_.heap_bytes += BytesOf(request);
      pass_.heap.push_back(std::move(request));
      std::push_heap(pass_.heap.begin(), pass_.heap.end(), Later);
    }
    if (!pass_.errors.empty()) return pass_.errors.status();
    log_.counters.peak_held_requests =
        std::max(log_.counters.peak_held_requests, static_cast<int64_t>(pass_.heap.size()));
    log_.counters.peak_held_bytes = std::max(log_.counters.peak_held_bytes, pass_.heap_bytes);
    if (pass_.heap.empty()) return false;
    std::pop_heap(pass_.heap.begin(), pass_.heap.end(), Later);
    pass_.heap_bytes -= BytesOf(pass_.heap.back());
    *out = std::move(pass_.heap.back());
    pass_.heap.pop_back();
    pass_.last_popped_ns = out->arrival_ns;
    pass_.last_popped_line = out->line;
    return true;
  }

  struct Timed {
    TraceRequest request;
    int64_t arrival_ns = 0;  // what it arrives at; request.arrival_ns is what the file says
  };

  // Distributes the requests of pass_.group over `gap_ns`. Those without a time of their own stay
  // with what they wait for.
  void SpreadGroup(__int128 gap_ns) {
    const auto has_time = [](const Timed& timed) { return timed.request.has_arrival; };
    const __int128 num = std::count_if(pass_.group.begin(), pass_.group.end(), has_time);
    absl::flat_hash_map<int64_t, int64_t> arrival_of_row;
    __int128 i = 0;
    for (Timed& timed : pass_.group) {
      if (timed.request.has_arrival) {
        timed.arrival_ns += static_cast<int64_t>(gap_ns * i++ / num);
      } else {
        for (const int64_t row : timed.request.waits_for) {
          const auto found = arrival_of_row.find(row);
          if (found == arrival_of_row.end()) continue;
          timed.arrival_ns = std::max(timed.arrival_ns, found->second);
        }
      }
      if (num < static_cast<__int128>(pass_.group.size())) {
        arrival_of_row[timed.request.row] = timed.arrival_ns;
      }
    }
    std::stable_sort(pass_.group.begin(), pass_.group.end(),
                     [](const Timed& a, const Timed& b) { return a.arrival_ns < b.arrival_ns; });
  }

  // Keeps the requests of one timestamp until the next timestamp is known.
  absl::StatusOr<bool> NextSpread(Timed* out) {
    if (!options_.spread) {
      absl::StatusOr<bool> more = NextInOrder(&out->request);
      out->arrival_ns = out->request.arrival_ns;
      return more;
    }
    while (pass_.group_ready == 0) {
      TraceRequest request;
      KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextInOrder(&request));
      if (!more) {
        pass_.group_ready = pass_.group.size();
        break;
      }
      const int64_t arrival = request.arrival_ns;
      if (!pass_.group.empty() && pass_.group.front().request.arrival_ns < arrival) {
        SpreadGroup(arrival - pass_.group.front().request.arrival_ns);
        pass_.group_ready = pass_.group.size();
      }
      pass_.group_bytes += BytesOf(request);
      if (pass_.group_bytes > options_.reorder_bytes && pass_.group_ready == 0) {
        return absl::ResourceExhaustedError(RowError(
            log_, request.line,
            absl::StrCat("--spread: got more than ", options_.reorder_bytes,
                         " bytes of requests with one timestamp, expected less (they are held "
                         "until the next timestamp; leave out --spread)")));
      }
      pass_.group.push_back({std::move(request), arrival});
    }
    if (pass_.group.empty()) return false;
    pass_.group_bytes -= BytesOf(pass_.group.front().request);
    *out = std::move(pass_.group.front());
    pass_.group.pop_front();
    if (pass_.group_ready > 0) --pass_.group_ready;
    return true;
  }

  bool Selects(const TraceRequest& request) const {
    if (options_.start_ns && request.arrival_ns < *options_.start_ns) return false;
    const uint64_t hash = request.session != 0 ? MixBits(request.session)
                                               : ~MixBits(static_cast<uint64_t>(request.row));
    using Wide = unsigned __int128;
    return static_cast<Wide>(hash) * static_cast<uint64_t>(options_.sample.denominator) <
           static_cast<Wide>(static_cast<uint64_t>(options_.sample.numerator)) << 64;
  }

  absl::StatusOr<bool> NextSelected(TraceRequest& out) {
    Timed timed;
    while (true) {
      if (options_.limit && pass_.num_selected >= *options_.limit) return false;
      KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextSpread(&timed));
      if (!more) return false;
      if (options_.end_ns && timed.request.arrival_ns >= *options_.end_ns) return false;
      if (Selects(timed.request)) break;
      ++log_.counters.not_selected;
      const size_t row = static_cast<size_t>(timed.request.row);
      if (pass_.left_out.size() <= row) pass_.left_out.resize(row + 1, false);
      pass_.left_out[row] = true;
    }
    out = std::move(timed.request);
    std::erase_if(out.waits_for, [&](int64_t row) {
      return static_cast<size_t>(row) < pass_.left_out.size() &&
             pass_.left_out[static_cast<size_t>(row)];
    });
    if (out.waits_for.empty()) out.has_arrival = true;
    if (pass_.num_selected++ == 0 && options_.rebase) pass_.base_ns = timed.arrival_ns;
    const __int128 shifted = timed.arrival_ns - pass_.base_ns;
    const __int128 arrival = shifted * options_.speedup.denominator / options_.speedup.numerator;
    if (arrival > INT64_MAX) {
      return absl::InvalidArgumentError(RowError(
          log_, out.line, "arrival after --speedup: got more than 2^63 ns, expected less"));
    }
    out.arrival_ns = static_cast<int64_t>(arrival);
    return true;
  }

  const std::string file_;
  const SourceFactory factory_;
  const TraceReaderOptions options_;
  RowLog log_;
  std::unique_ptr<RowSource> source_;
  std::unique_ptr<RowChecker> checker_;
  RawRow row_;
  std::vector<TraceProblem> problems_;  // of row_

  size_t window_ = 0;
  // What a restart forgets.
  struct Pass {
    std::vector<TraceRequest> heap;
    int64_t heap_bytes = 0;
    bool is_cut_short = false;  // reorder_bytes, not the window, once ended what is held
    int64_t last_popped_ns = -1;
    int64_t last_popped_line = 0;
    std::deque<Timed> group;
    int64_t group_bytes = 0;
    size_t group_ready = 0;  // leading members of group whose time is final
    std::vector<bool> left_out;
    int64_t base_ns = 0;
    int64_t num_selected = 0;

    ErrorList errors{0};
    bool rows_ended = false;
    absl::Status outcome;
  } pass_;
};

absl::Status CheckOptions(const TraceReaderOptions& options) {
  if (options.speedup.numerator <= 0 || options.speedup.denominator <= 0) {
    return absl::InvalidArgumentError("--speedup: got 0 or less, expected a positive ratio");
  }
  if (options.sample.numerator < 0 || options.sample.denominator <= 0) {
    return absl::InvalidArgumentError("--sample: got a negative ratio, expected 0 to 1");
  }
  if (options.max_line_bytes < 1 || options.max_line_bytes > int64_t{1} << 40) {
    return absl::InvalidArgumentError(
        absl::StrCat("longest line: got ", options.max_line_bytes, ", expected 1 to 2^40 bytes"));
  }
  if (options.reorder_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("reorder bytes: got ", options.reorder_bytes, ", expected 1 or more"));
  }
  if (options.bytes_per_token < 1 || options.bytes_per_token > 1 << 20) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--bytes-per-token: got ", options.bytes_per_token, ", expected 1 to ", 1 << 20));
  }
  if (options.sharegpt != "first-turn" && options.sharegpt != "first-turn-all" &&
      options.sharegpt != "sessions") {
    return absl::InvalidArgumentError(
        absl::StrCat("--sharegpt: got ", Shown(options.sharegpt),
                     ", expected first-turn, first-turn-all or sessions"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TraceReader>> Open(std::string file, SourceFactory factory,
                                                  const TraceReaderOptions& options) {
  KVBLOCKS_RETURN_IF_ERROR(CheckOptions(options));
  auto reader = std::make_unique<TraceReaderImpl>(std::move(file), std::move(factory), options);
  KVBLOCKS_RETURN_IF_ERROR(reader->Restart());
  if (options.link_turns) return WithTurnLinks(std::move(reader));
  return reader;
}

}  // namespace

int64_t BytesOf(const TraceRequest& request) {
  size_t bytes = sizeof(TraceRequest) + request.content_ids.capacity() * sizeof(int64_t) +
                 request.waits_for.capacity() * sizeof(int64_t) +
                 (request.output_ids.capacity() + request.accepted_drafts.capacity()) *
                     sizeof(uint32_t);
  for (const std::string* text : {&request.id, &request.tenant, &request.slo_class,
                                  &request.adapter, &request.salt, &request.unknown_fields}) {
    bytes += text->size();
  }
  return static_cast<int64_t>(bytes);
}

absl::Status CheckHeldBytes(int64_t bytes, const TraceReader& reader) {
  constexpr int64_t kPerByte = 64;  // what real traces take, compressed ones too
  if (bytes / kPerByte <= kMostSortedBytes / kPerByte + reader.progress().bytes_read) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      reader.info().name, ": requests held at once: got ", bytes,
      " bytes of them, expected at most ", kMostSortedBytes, " and ", kPerByte,
      " for each byte of the file (--limit and --sample take a part of the trace)"));
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& path,
                                                       const TraceReaderOptions& options) {
  const int window_log = options.zstd_window_log;
  bool opened = false;
  return Open(
      path == "-" ? "<stdin>" : path,
      [path, window_log, opened]() mutable -> absl::StatusOr<std::unique_ptr<ByteSource>> {
        if (std::exchange(opened, true)) {
          if (path == "-") {
            return absl::InvalidArgumentError(
                "<stdin>: error: restart: got standard input, expected a file to read again");
          }
          if (!CanBeReadAgain(path)) {
            return absl::InvalidArgumentError(absl::StrCat(
                path, ": error: restart: got a pipe or device, expected a file to read again"));
          }
        }
        return OpenByteSource(path, window_log);
      },
      options);
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenTraceString(std::string content,
                                                             const std::string& name,
                                                             const TraceReaderOptions& options) {
  const int window_log = options.zstd_window_log;
  return Open(
      name,
      [content = std::move(content), window_log]() -> absl::StatusOr<std::unique_ptr<ByteSource>> {
        return ByteSourceOfString(content, window_log);
      },
      options);
}

}  // namespace kvblocks::sim
