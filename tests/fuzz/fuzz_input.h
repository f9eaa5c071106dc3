// FuzzInput: turns the bytes of a fuzzer into decisions, and FUZZ_EXPECT: what a fuzzer checks.
//
// Reading past the end gives zeros, so every byte string is a complete input and a prefix of an
// input behaves like the input up to its end. Nothing but the bytes decides: equal bytes, equal
// run.

#ifndef KVBLOCKS_TESTS_FUZZ_FUZZ_INPUT_H_
#define KVBLOCKS_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

// Stops the process, which is how a fuzzer reports a finding. `what` may be std::string.
#define FUZZ_EXPECT(condition, what)                                                   \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "%s:%d: expected %s\n%s\n", __FILE__, __LINE__, #condition, \
                   std::string(what).c_str());                                         \
      std::abort();                                                                    \
    }                                                                                  \
  } while (false)

namespace kvblocks::fuzz {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return position_ == size_; }

  uint8_t Byte() { return empty() ? 0 : data_[position_++]; }
  bool Bool() { return (Byte() & 1) != 0; }

  // low .. high, at most 256 values.
  int64_t Small(int64_t low, int64_t high) { return low + Byte() % (high - low + 1); }

  // Any 64 bits, little-endian.
  int64_t Word() {
    uint64_t word = 0;
    for (int shift = 0; shift < 64; shift += 8) word |= uint64_t{Byte()} << shift;
    return static_cast<int64_t>(word);
  }

  // Mostly a number from low to high, now and then one that no sane caller passes.
  int64_t Wild(int64_t low, int64_t high) {
    const uint8_t kind = Byte();
    switch (kind) {
      case 255:
        return Word();
      case 254:
        return std::numeric_limits<int64_t>::max() - Byte();
      case 253:
        return std::numeric_limits<int64_t>::min() + Byte();
      case 252:
        return -1 - int64_t{Byte()};
      case 251:
        return int64_t{1} << (Byte() & 63) >> 1;
      case 250:
        return high + 1 + Byte();
      default:
        return low + kind % (high - low + 1);
    }
  }
  // The same as 32 bits.
  int32_t Wild32(int64_t low, int64_t high) { return static_cast<int32_t>(Wild(low, high)); }

  std::string Text(size_t most) {
    const size_t length = std::min<size_t>(most, Byte());
    const size_t take = std::min(length, size_ - position_);
    std::string text(reinterpret_cast<const char*>(data_) + position_, take);
    position_ += take;
    return text;
  }

  std::string_view Rest() {
    const std::string_view rest(reinterpret_cast<const char*>(data_) + position_,
                                size_ - position_);
    position_ = size_;
    return rest;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

}  // namespace kvblocks::fuzz

#endif  // KVBLOCKS_TESTS_FUZZ_FUZZ_INPUT_H_
