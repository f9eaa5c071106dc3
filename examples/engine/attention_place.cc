#include "examples/engine/attention_place.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "checks/memory_limit.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {

using attention::ConstTensorView;
using attention::DType;
using attention::TensorView;

absl::StatusOr<AttentionPlace::Memory> AttentionPlace::Allocate(const char* what, int64_t bytes) {
  // One byte more, because none at all may be null.
  void* const data =
      bytes <= MemoryLimit() ? std::calloc(static_cast<size_t>(bytes) + 1, 1) : nullptr;
  if (data != nullptr) return Memory(static_cast<std::byte*>(data), std::free);
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": no ", bytes, " bytes; make the batch or the pool smaller"));
}

absl::StatusOr<TensorView> AttentionPlace::AllocateBytes(const char* what, int64_t bytes,
                                                         Memory* memory) {
  KVBLOCKS_ASSIGN_OR_RETURN(*memory, Allocate(what, bytes));
  return TensorView::Contiguous(memory->get(), DType::kU8, {bytes}, context_.device);
}

absl::Status AttentionPlace::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  std::copy_n(from, bytes, to);
  return absl::OkStatus();
}

absl::Status AttentionPlace::Copy(const TensorView& to, const ConstTensorView& from) {
  if (to.data == from.data) return absl::OkStatus();
  return Copy(to.data, from.data, from.num_elements() * attention::ElementBytes(from.dtype));
}

}  // namespace kvblocks::engine
