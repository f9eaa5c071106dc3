#include "kvblocks/attention/cache/mla_records.h"

#include <algorithm>

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/cache/mla_fp8_rows.h"
#include "kvblocks/attention/cache/quantised_rows.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr int kValues = 512;       // with a scale
constexpr int kMxGroup = 32;       // of kMlaV41
constexpr int kScalesAtV41 = 512;
constexpr int kScalesAtV41Fp4 = 256;
constexpr int kRotaryAtNvfp4 = 256, kScalesAtNvfp4 = 320;
constexpr int kGroups = kValues / kNvfp4GroupValues;

// Where the e4m3 scale of a group lies in a record of e2m1 codes.
int ScaleAt(KvRowFormat format, int group) {
  return format == KvRowFormat::kMlaV41Fp4 ? kScalesAtV41Fp4 + group
                                           : kScalesAtNvfp4 + 8 * (group % 4) + group / 4;
}

template <typename T>
void Decode(KvRowFormat format, const std::byte* record, T* out) {
  double codes[kValues];
  if (format == KvRowFormat::kMlaV41) {
    LoadElements(DType::kF8E4M3, record, 1, kValues, codes);
    for (int group = 0; group < kValues / kMxGroup; ++group) {
      const double scale =
          E8M0ToDouble(std::to_integer<uint8_t>(record[kScalesAtV41 + group]));
      for (int d = group * kMxGroup; d < (group + 1) * kMxGroup; ++d) {
        out[d] = static_cast<T>(codes[d] * scale);
      }
    }
    return;
  }
  std::byte scales[kGroups];
  for (int group = 0; group < kGroups; ++group) scales[group] = record[ScaleAt(format, group)];
  DecodePackedRow(KvRowFormat::kNvfp4, record, scales, kValues, out);
  if (format == KvRowFormat::kMlaV41Fp4) return;
  LoadElements(DType::kF8E4M3, record + kRotaryAtNvfp4, 1, kMlaRotaryValues, codes);
  std::copy_n(codes, kMlaRotaryValues, out + kValues);
}

}  // namespace

void EncodeMlaRecord(KvRowFormat format, const double* values, std::byte* record) {
  if (format == KvRowFormat::kMlaV41) {
    double scaled[kMxGroup];
    for (int group = 0; group < kValues / kMxGroup; ++group, values += kMxGroup) {
      const uint8_t scale = MlaTileScaleE8M0(FiniteAmax(values, kMxGroup));
      for (int i = 0; i < kMxGroup; ++i) scaled[i] = values[i] / E8M0ToDouble(scale);
      StoreElements(DType::kF8E4M3, scaled, kMxGroup, record + group * kMxGroup);
      record[kScalesAtV41 + group] = static_cast<std::byte>(scale);
    }
    return;
  }
  for (int group = 0; group < kGroups; ++group) {
    const double* of = values + group * kNvfp4GroupValues;
    const uint8_t scale =
        DoubleToE4M3(std::clamp(FiniteAmax(of, kNvfp4GroupValues) / 6, 0x1p-9, 448.0));
    record[ScaleAt(format, group)] = static_cast<std::byte>(scale);
    EncodeNvfp4Group(of, E4M3ToDouble(scale), record + group * kNvfp4GroupValues / 2);
  }
  if (format == KvRowFormat::kMlaNvfp4) {
    StoreElements(DType::kF8E4M3, values + kValues, kMlaRotaryValues, record + kRotaryAtNvfp4);
  }
}

void DecodeMlaRecord(KvRowFormat format, const std::byte* record, double* out) {
  Decode(format, record, out);
}
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, float* out) {
  Decode(format, record, out);
}

}  // namespace kvblocks::attention
