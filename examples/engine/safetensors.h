// Safetensors: the tensors of one or more .safetensors files by name, read when asked for.
//
// A file is 8 bytes of length, a JSON header of that length, and the tensors' bytes; the header has
// dtype, shape and the place of each. Files may come from anywhere: the header is at most 64 MiB,
// and every shape, place and name is checked before anything is read. Nothing but the header is
// held. What a caller asks for takes its float32 or int32 size, and while it is read its stored
// size as well; both follow from the length of the file.
//
// Errors read "FILE: TENSOR: WHAT". Cost: one read and one conversion per tensor. Single-threaded.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_SAFETENSORS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks::engine {

class Safetensors {
 public:
  // All files together; a name may be in one of them only.
  static absl::StatusOr<Safetensors> Open(const std::vector<std::string>& paths);
  // The model*.safetensors of a folder, as a checkpoint has them.
  static absl::StatusOr<Safetensors> OpenModel(const std::string& folder);

  bool Has(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> Names() const;
  // NotFound names the tensor and the files.
  absl::StatusOr<std::vector<int64_t>> ShapeOf(const std::string& name) const;
  // Values in row-major order; bf16 and f16 become float32, exactly. InvalidArgument if shape or
  // type is another one.
  absl::StatusOr<std::vector<float>> Floats(const std::string& name,
                                            const std::vector<int64_t>& shape) const;
  // Of int64 what fits, or the nearest.
  absl::StatusOr<std::vector<int32_t>> Ints(const std::string& name,
                                            const std::vector<int64_t>& shape) const;
  absl::StatusOr<std::vector<uint8_t>> Bytes(const std::string& name,
                                             const std::vector<int64_t>& shape) const;

 private:
  struct Tensor {
    size_t file = 0;
    std::string dtype;  // as the header has it, "BF16"
    std::vector<int64_t> shape;
    int64_t begin = 0, bytes = 0;  // in the file
  };

  absl::Status AddFile(const std::string& path);
  absl::StatusOr<std::string> Read(const std::string& name, const std::vector<int64_t>& shape,
                                   const std::string& dtypes) const;
  absl::StatusOr<const Tensor*> Find(const std::string& name) const;

  std::vector<std::string> paths_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_SAFETENSORS_H_
