// Canonical CBOR (RFC 8949, 4.2): the few forms that block hashes are made of. An integer, a length
// and a count each have one form only, the shortest, so equal values have equal bytes.
//
// Strings are written as they are; callers decide whether a text is UTF-8.

#ifndef KVBLOCKS_BLOCK_POOL_CBOR_H_
#define KVBLOCKS_BLOCK_POOL_CBOR_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace kvblocks::cbor {

enum class Major : uint8_t { kUnsigned = 0, kNegative = 1, kBytes = 2, kText = 3, kArray = 4 };

inline constexpr char kNull = '\xf6';
inline constexpr size_t kMaxHeadBytes = 9;
inline constexpr size_t kMaxInt32Bytes = 5;

// The head of an item: its type and its value, length or count. Returns where it ends.
inline char* WriteHead(Major major, uint64_t value, char* out) {
  const auto type = static_cast<uint8_t>(static_cast<uint8_t>(major) << 5);
  if (value < 24) {
    *out = static_cast<char>(type | value);
    return out + 1;
  }
  const int width = value < 0x100 ? 0 : value < 0x10000 ? 1 : value < 0x100000000 ? 2 : 3;
  *out++ = static_cast<char>(type | (24 + width));
  for (int shift = (8 << width) - 8; shift >= 0; shift -= 8) {
    *out++ = static_cast<char>(value >> shift);
  }
  return out;
}

inline char* WriteInt(int64_t value, char* out) {
  return value >= 0 ? WriteHead(Major::kUnsigned, static_cast<uint64_t>(value), out)
                    : WriteHead(Major::kNegative, ~static_cast<uint64_t>(value), out);
}

// The same for 32 bits, without branches: which of its four lengths the next token has is hard to
// predict. Overwrites 8 bytes, of which at most 5 count.
inline char* WriteInt32(int32_t value, char* out) {
  const auto sign = static_cast<uint32_t>(value >> 31);
  const uint32_t magnitude = static_cast<uint32_t>(value) ^ sign;  // -1 - value if negative
  const uint32_t is_long = magnitude >= 24;
  const uint32_t is_longer = magnitude >= 0x100;
  const uint32_t is_longest = magnitude >= 0x10000;
  const uint32_t more_bytes = is_long + is_longer + 2 * is_longest;  // 0, 1, 2, 4
  const uint32_t info = is_long ? 23 + is_long + is_longer + is_longest : magnitude;
  const uint64_t big_endian = uint64_t{__builtin_bswap32(magnitude)} >> (32 - 8 * more_bytes);
  const uint64_t word = (sign & 0x20) | info | big_endian << 8;
  std::memcpy(out, &word, sizeof(word));
  return out + 1 + more_bytes;
}

inline void AppendHead(Major major, uint64_t value, std::string& out) {
  char bytes[kMaxHeadBytes];
  for (const char* at = bytes, *end = WriteHead(major, value, bytes); at != end; ++at) out += *at;
}
inline void AppendInt(int64_t value, std::string& out) {
  char bytes[kMaxHeadBytes];
  for (const char* at = bytes, *end = WriteInt(value, bytes); at != end; ++at) out += *at;
}
inline void AppendText(std::string_view text, std::string& out) {
  AppendHead(Major::kText, text.size(), out);
  out.append(text);
}
inline void AppendBytes(std::string_view bytes, std::string& out) {
  AppendHead(Major::kBytes, bytes.size(), out);
  out.append(bytes);
}
// Its elements follow.
inline void AppendArray(size_t count, std::string& out) { AppendHead(Major::kArray, count, out); }

}  // namespace kvblocks::cbor

#endif  // KVBLOCKS_BLOCK_POOL_CBOR_H_
