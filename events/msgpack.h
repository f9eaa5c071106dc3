// MessagePack, as much of it as KV events are made of: a writer and a strict reader.
//
// The writer gives every value its shortest form, as vLLM's encoder does; only a map may get the
// wider header that a writer leaves room for before it knows how many pairs there will be.
//
// The reader takes any valid MessagePack. It never reads past its bytes, allocates nothing, does
// not recurse, and takes no count at its word: an array of n items needs at least n bytes. It is
// ours because the bytes come from a network or a file: what it accepts is on one page, and fuzzed.

#ifndef KVBLOCKS_EVENTS_MSGPACK_H_
#define KVBLOCKS_EVENTS_MSGPACK_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvblocks::events::msgpack {

class Writer {
 public:
  // Appends to `out`, which must outlive it.
  explicit Writer(std::string* out) : out_(out) {}

  void Nil() { out_->push_back('\xc0'); }
  void Uint(uint64_t value) {
    if (value < 0x80) {
      out_->push_back(static_cast<char>(value));
    } else if (value < 0x100) {
      Head<1>(0xcc, value);
    } else if (value < 0x10000) {
      Head<2>(0xcd, value);
    } else if (value < 0x100000000) {
      Head<4>(0xce, value);
    } else {
      Head<8>(0xcf, value);
    }
  }
  void Int(int64_t value) {
    if (value >= 0) return Uint(static_cast<uint64_t>(value));
    const auto bits = static_cast<uint64_t>(value);
    if (value >= -32) {
      out_->push_back(static_cast<char>(value));
    } else if (value >= INT8_MIN) {
      Head<1>(0xd0, bits);
    } else if (value >= INT16_MIN) {
      Head<2>(0xd1, bits);
    } else if (value >= INT32_MIN) {
      Head<4>(0xd2, bits);
    } else {
      Head<8>(0xd3, bits);
    }
  }
  void Double(double value) { Head<8>(0xcb, std::bit_cast<uint64_t>(value)); }
  // Of at most 2^32 - 1 bytes or items, as all that follow.
  void Text(std::string_view text) {
    if (text.size() < 32) {
      out_->push_back(static_cast<char>(0xa0 | text.size()));
    } else {
      Sized(0xd9, text.size());
    }
    out_->append(text);
  }
  void Bytes(std::string_view bytes) {
    Sized(0xc4, bytes.size());
    out_->append(bytes);
  }
  void Array(size_t count) { Counted(0x90, 0xdc, count); }
  void Map(size_t count) { Counted(0x80, 0xde, count); }
  // Of at most 65,535 pairs, in three bytes.
  void WideMap(size_t count) { Head<2>(0xde, count); }

 private:
  template <size_t kWidth>
  void Head(uint8_t type, uint64_t value) {
    char bytes[1 + kWidth];
    bytes[0] = static_cast<char>(type);
    for (size_t i = 0; i < kWidth; ++i) {
      bytes[1 + i] = static_cast<char>(value >> (8 * (kWidth - 1 - i)));
    }
    out_->append(bytes, sizeof(bytes));
  }
  void Sized(uint8_t first, size_t size) {
    if (size < 0x100) {
      Head<1>(first, size);
    } else if (size < 0x10000) {
      Head<2>(static_cast<uint8_t>(first + 1), size);
    } else {
      Head<4>(static_cast<uint8_t>(first + 2), size);
    }
  }
  void Counted(uint8_t small, uint8_t wide, size_t count) {
    if (count < 16) {
      out_->push_back(static_cast<char>(small | count));
    } else if (count < 0x10000) {
      Head<2>(wide, count);
    } else {
      Head<4>(static_cast<uint8_t>(wide + 1), count);
    }
  }

  std::string* out_;
};

enum class Type { kNil, kBool, kUint, kNegative, kDouble, kText, kBytes, kArray, kMap, kExtension };

constexpr const char* TypeName(Type type) {
  constexpr const char* kNames[] = {"nil",     "a truth value", "an integer", "a negative integer",
                                    "a float", "a text",        "bytes",      "an array",
                                    "a map",   "an extension"};
  return kNames[static_cast<size_t>(type)];
}

// One value, or the head of an array or map whose items follow.
struct Item {
  Type type = Type::kNil;
  uint64_t bits = 0;            // kUint, kBool; kNegative: two's complement
  double real = 0;              // kDouble
  std::string_view bytes = {};  // kText, kBytes, kExtension: inside the reader's bytes
  size_t count = 0;             // kArray: items; kMap: pairs

  int64_t negative() const { return static_cast<int64_t>(bits); }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  bool at_end() const { return remaining() == 0; }

  // The next value; its head, if it is an array or a map. False: the bytes end within it, or are
  // none; the reader is then of no more use.
  bool Next(Item* item) {
    uint64_t first, value;
    if (!Big(1, &first)) return false;
    if (first < 0x80) return Set(item, Type::kUint, first);
    if (first < 0x90) return Count(item, Type::kMap, first & 0x0f);
    if (first < 0xa0) return Count(item, Type::kArray, first & 0x0f);
    if (first < 0xc0) return Take(item, Type::kText, first & 0x1f);
    if (first >= 0xe0) return Set(item, Type::kNegative, first | ~uint64_t{0xff});
    const size_t width = kWidths[first - 0xc0];
    if (first == 0xc1 || !Big(width, &value)) return false;  // 0xc1 is never used
    if (first == 0xc0) return Set(item, Type::kNil, 0);
    if (first <= 0xc3) return Set(item, Type::kBool, first & 1);
    if (first <= 0xc6) return Take(item, Type::kBytes, value);
    if (first <= 0xc9) return Take(item, Type::kExtension, value + 1);  // with its kind
    if (first == 0xca) return Real(item, std::bit_cast<float>(static_cast<uint32_t>(value)));
    if (first == 0xcb) return Real(item, std::bit_cast<double>(value));
    if (first <= 0xcf) return Set(item, Type::kUint, value);
    if (first <= 0xd3) return Signed(item, value, width);
    if (first <= 0xd8) return Take(item, Type::kExtension, 1 + (uint64_t{1} << (first - 0xd4)));
    if (first <= 0xdb) return Take(item, Type::kText, value);
    return Count(item, first <= 0xdd ? Type::kArray : Type::kMap, value);
  }

  // Passes one value with all that is in it.
  bool Skip() {
    uint64_t waiting = 1;
    for (; waiting > 0; --waiting) {
      Item item;
      if (!Next(&item)) return false;
      if (item.type == Type::kArray) waiting += item.count;
      if (item.type == Type::kMap) waiting += 2 * item.count;
    }
    return true;
  }

 private:
  // Of the number that follows a first byte from 0xc0 on: the value, or how much there is of it.
  static constexpr uint8_t kWidths[] = {0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8,
                                        1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4};

  bool Big(size_t width, uint64_t* value) {
    if (remaining() < width) return false;
    uint64_t sum = 0;
    for (size_t i = 0; i < width; ++i) {
      sum = sum << 8 | static_cast<uint8_t>(bytes_[position_ + i]);
    }
    position_ += width;
    *value = sum;
    return true;
  }
  static bool Set(Item* item, Type type, uint64_t bits) {
    item->type = type;
    item->bits = bits;
    return true;
  }
  static bool Real(Item* item, double real) {
    item->real = real;
    return Set(item, Type::kDouble, 0);
  }
  static bool Signed(Item* item, uint64_t value, size_t width) {
    const size_t unused = 64 - 8 * width;
    const int64_t number = static_cast<int64_t>(value << unused) >> unused;
    return Set(item, number < 0 ? Type::kNegative : Type::kUint, static_cast<uint64_t>(number));
  }
  bool Take(Item* item, Type type, uint64_t size) {
    if (remaining() < size) return false;
    item->bytes = bytes_.substr(position_, static_cast<size_t>(size));
    position_ += static_cast<size_t>(size);
    return Set(item, type, 0);
  }
  bool Count(Item* item, Type type, uint64_t count) {
    const uint64_t least = type == Type::kMap ? 2 * count : count;  // a byte for each value
    if (remaining() < least) return false;
    item->count = static_cast<size_t>(count);
    return Set(item, type, 0);
  }

  std::string_view bytes_;
  size_t position_ = 0;
};

}  // namespace kvblocks::events::msgpack

#endif  // KVBLOCKS_EVENTS_MSGPACK_H_
