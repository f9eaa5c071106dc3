// Writes the shipped example workload: make_example OUT (compressed by the name's ending, "-" is
// standard output).

#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/example/example_workload.h"
#include "sim/trace/byte_sink.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_example OUT\n");
    return 2;
  }
  absl::StatusOr<std::unique_ptr<kvblocks::sim::ByteSink>> sink =
      kvblocks::sim::OpenByteSink(argv[1]);
  absl::Status status = sink.status();
  if (status.ok()) status = (*sink)->Write(kvblocks::sim::MakeExampleWorkload());
  if (status.ok()) status = (*sink)->Close();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 2;
}
