// BlockSize: a number of tokens to divide by, with the division as a shift where it is a power of
// two, as nearly all are: a 64-bit division costs more than the rest of a decode step's
// book-keeping. And kMaxTokens: the largest token count accepted anywhere in the managers, so that
// sums of a few never overflow 64 bits.

#ifndef KVBLOCKS_MANAGERS_BLOCK_SIZE_H_
#define KVBLOCKS_MANAGERS_BLOCK_SIZE_H_

#include <bit>
#include <cstdint>

namespace kvblocks {

inline constexpr int64_t kMaxTokens = int64_t{1} << 40;

class BlockSize {
 public:
  // REQUIRES: value >= 1.
  explicit constexpr BlockSize(int64_t value)
      : value_(value),
        shift_(std::has_single_bit(static_cast<uint64_t>(value))
                   ? std::countr_zero(static_cast<uint64_t>(value))
                   : -1) {}

  constexpr int64_t value() const { return value_; }

  // REQUIRES: n >= 0.
  constexpr int64_t FloorDiv(int64_t n) const { return shift_ >= 0 ? n >> shift_ : n / value_; }
  constexpr int64_t CeilDiv(int64_t n) const {
    return shift_ >= 0 ? (n >> shift_) + ((n & (value_ - 1)) != 0) : n / value_ + (n % value_ != 0);
  }
  constexpr int64_t RoundDown(int64_t n) const { return FloorDiv(n) * value_; }

 private:
  int64_t value_;
  int shift_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_BLOCK_SIZE_H_
