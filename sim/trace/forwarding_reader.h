// ForwardingReader: a reader that hands on what another one reads; what changes or watches requests
// derives from it.

#ifndef KVBLOCKS_SIM_TRACE_FORWARDING_READER_H_
#define KVBLOCKS_SIM_TRACE_FORWARDING_READER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/sim/trace/trace_reader.h"

namespace kvblocks::sim {

class ForwardingReader : public TraceReader {
 public:
  explicit ForwardingReader(std::unique_ptr<TraceReader> reader) : reader_(std::move(reader)) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override { return reader_->Next(out); }
  const TraceInfo& info() const override { return reader_->info(); }
  ReadProgress progress() const override { return reader_->progress(); }
  absl::Status Restart() override { return reader_->Restart(); }
  const TraceReaderCounters& counters() const override { return reader_->counters(); }
  const std::vector<std::string>& warnings() const override { return reader_->warnings(); }
  std::string dialect() const override { return reader_->dialect(); }

 private:
  const std::unique_ptr<TraceReader> reader_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_FORWARDING_READER_H_
