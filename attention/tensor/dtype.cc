#include "kvblocks/device_types.h"

#include <array>
#include <iterator>


namespace kvblocks::attention {

namespace {

constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f64", true, 1.7976931348623157e308},
    {"f32", true, 3.4028234663852886e38},
    {"f16", true, 65504},
    {"bf16", true, 3.3895313892515355e38},
    {"f8e4m3", true, 448},
    {"f8e5m2", true, 57344},
    {"f8e8m0", true, 1.7014118346046923e38},
    {"i8", false, 127},
    {"u8", false, 255},
    {"bool", false, 1},
    {"i32", false, 2147483647},
    {"i64", false, 9223372036854775807.0},
}};

}  // namespace

const DTypeInfo& Info(DType dtype) { return kInfo[static_cast<uint8_t>(dtype)]; }

const char* Name(KvLayout layout) {
  static constexpr const char* kNames[] = {"paged_x", "nhd", "hnd", "mla_latent", "mla_split", "mla_fp8_656", "mla_fp8_584"};
  const auto index = static_cast<size_t>(layout);
  return index < std::size(kNames) ? kNames[index] : "?";
}

const char* Name(KvRowFormat format) {
  static constexpr const char* kNames[] = {"elements", "per_token_head", "int4_per_token_head", "nvfp4", "mla_v41_528", "mla_v41_fp4_288", "mla_nvfp4_352"};
  const auto index = static_cast<size_t>(format);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace kvblocks::attention
