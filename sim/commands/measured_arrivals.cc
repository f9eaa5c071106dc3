#include "kvblocks/sim/commands/measured_arrivals.h"

#include <cstdint>
#include <utility>


namespace kvblocks::sim {
namespace {

class MeasuredArrivals final : public ForwardingReader {
 public:
  MeasuredArrivals(std::unique_ptr<TraceReader> reader, const Measurement& measurement)
      : ForwardingReader(std::move(reader)), measurement_(measurement) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    auto more = ForwardingReader::Next(out);
    if (!more.ok() || !*more) return more;
    if (out.row < static_cast<int64_t>(measurement_.requests.size())) {
      last_ = measurement_.requests[static_cast<size_t>(out.row)].start_ns -
              measurement_.requests.front().start_ns;
    }
    out.arrival_ns = last_;
    return true;
  }
  absl::Status Restart() override {
    last_ = 0;
    return ForwardingReader::Restart();
  }

 private:
  const Measurement& measurement_;
  int64_t last_ = 0;
};

}  // namespace

std::unique_ptr<TraceReader> WithMeasuredArrivals(std::unique_ptr<TraceReader> reader,
                                                  const Measurement& measurement) {
  int64_t before = 0;
  for (size_t i = 0; i < measurement.requests.size(); ++i) {
    const MeasuredRequest& request = measurement.requests[i];
    if (request.row != static_cast<int64_t>(i) || request.start_ns < before) return reader;
    before = request.start_ns;
  }
  return std::make_unique<MeasuredArrivals>(std::move(reader), measurement);
}

}  // namespace kvblocks::sim
