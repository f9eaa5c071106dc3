#include "kvblocks/kv_events.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "events/msgpack.h"
#include "gtest/gtest.h"

namespace kvblocks::events {
namespace {

BlockHash Filled(unsigned char byte, size_t size = 32) {
  BlockHash hash;
  std::memset(hash.words.data(), byte, size);
  return hash;
}

std::string Text(std::string_view text) {
  std::string out;
  msgpack::Writer(&out).Text(text);
  return out;
}
std::string Hex(const char* digits) { return absl::HexStringToBytes(digits); }

// VE-60 in the field order of V-60.
std::string Example() {
  const std::string hash = Hex("91c420") + std::string(32, '\x01');
  return Hex("93cb3ff800000000000093de000b") + Text("type") + Text("BlockStored") +
         Text("block_hashes") + hash + Text("parent_block_hash") + Hex("c0") + Text("token_ids") +
         Hex("9401020304") + Text("block_size") + Hex("04") + Text("lora_id") + Hex("c0") +
         Text("medium") + Text("GPU") + Text("lora_name") + Hex("c0") + Text("extra_keys") +
         Hex("91c0") + Text("group_idx") + Hex("00") + Text("kv_cache_spec_kind") +
         Text("full_attention") + Hex("84") + Text("type") + Text("BlockRemoved") +
         Text("block_hashes") + hash + Text("medium") + Text("GPU") + Text("group_idx") +
         Hex("00") + Hex("81") + Text("type") + Text("AllBlocksCleared") + Hex("c0");
}
std::vector<KvEvent> ExampleEvents() {
  return {BlockStored{.block_hashes = {Filled(1)},
                      .token_ids = {1, 2, 3, 4},
                      .block_size = 4,
                      .extra_keys = {std::nullopt},
                      .kv_cache_spec_kind = "full_attention"},
          BlockRemoved{.block_hash = Filled(1)}, AllBlocksCleared{}};
}

std::string Encode(const std::vector<KvEvent>& events, const EncodeOptions& options = {}) {
  std::string out;
  EncodeEvents(events, options, &out);
  return out;
}
std::string ErrorOf(const std::string& payload) {
  const auto batch = DecodeEvents(payload);
  return batch.ok() ? "" : std::string(batch.status().message());
}

TEST(EventCodecTest, WritesTheBytesOfUpstream) {  // VE-60, V-64
  EXPECT_EQ(absl::BytesToHexString(Encode(ExampleEvents(), {.timestamp = 1.5})),
            absl::BytesToHexString(Example()));
}

TEST(EventCodecTest, ReadsTheBytesOfUpstream) {  // VE-60
  const auto batch = DecodeEvents(Example());
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->timestamp, 1.5);
  EXPECT_EQ(batch->data_parallel_rank, std::nullopt);
  EXPECT_EQ(batch->events, ExampleEvents());
  EXPECT_EQ(batch->hash_form, HashForm{});
}

// Every field of V-60, in one event each.
std::vector<KvEvent> FullEvents() {
  BlockStored stored{
      .block_hashes = {Filled(2), Filled(3)},
      .parent_block_hash = Filled(9),
      .token_ids = {-5, 0, 127, 128, 255, 256, 65535, 65536, 2147483647, -2147483647},
      .block_size = 5,
      .lora_id = -7,
      .lora_name = "sql",
      .medium = "a medium that nobody knows",
      .group_idx = 3,
      .kv_cache_spec_kind = "sliding_window",
      .kv_cache_spec_sliding_window = 1024,
      .locality = "LOCAL",
      .ownership = "tier",
      .session_id = std::string(300, 's'),
      .lookahead_token_ids = {{{11}, {12}}}};
  stored.extra_keys = {
      ExtraKeys{{.kind = ExtraKey::Kind::kLora, .value = "sql"},
                {.kind = ExtraKey::Kind::kMultimodal, .value = "img", .offset = -3},
                {.kind = ExtraKey::Kind::kSalt, .value = "sql"},
                {.kind = ExtraKey::Kind::kPromptEmbedding, .value = "\xff\x01"}},
      std::nullopt};
  return {stored,
          BlockRemoved{.block_hash = Filled(4),
                       .medium = "CPU",
                       .group_idx = 2,
                       .locality = "REMOTE",
                       .ownership = "x"},
          BlockRemoved{.block_hash = Filled(5), .medium = ""}};
}

TEST(EventCodecTest, EveryFieldSurvivesTheWay) {  // V-60
  const std::string bytes = Encode(FullEvents(), {.timestamp = 1e9, .data_parallel_rank = 6});
  const auto batch = DecodeEvents(bytes);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->events, FullEvents());
  EXPECT_EQ(batch->data_parallel_rank, 6);
  EXPECT_EQ(batch->num_unknown_extra_keys, 0);
  EXPECT_EQ(Encode(batch->events, {.timestamp = 1e9, .data_parallel_rank = 6}), bytes);
}

TEST(EventCodecTest, AnEventWithoutHashesHasNoExtraKeys) {  // V-61
  const std::vector<KvEvent> events = {BlockStored{.token_ids = {1, 2}, .block_size = 2}};
  const std::string bytes = Encode(events);
  EXPECT_EQ(bytes.find("extra_keys"), std::string::npos);
  EXPECT_EQ(DecodeEvents(bytes)->events, events);
}

TEST(EventCodecTest, HashesTravelAsIntegersOrShortDigests) {  // V-63, BM-29
  BlockHash hash;
  std::memcpy(hash.words.data(), "0123456789abcdefghijklmnopqrstuv", 32);
  const std::vector<KvEvent> events = {BlockRemoved{.block_hash = hash}};
  const auto number = DecodeEvents(Encode(events, {.hash_form = {.as_integers = true}}));
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_TRUE(number->hash_form.as_integers);
  const BlockHash got = std::get<BlockRemoved>(number->events[0]).block_hash;
  EXPECT_EQ(BlockHasher().ToUint64(got), BlockHasher().ToUint64(hash));
  EXPECT_EQ(BlockHasher().ToUint64(got), 0x6f70717273747576u);
  EXPECT_EQ(got.words[0], 0u);

  const auto brief = DecodeEvents(Encode(events, {.hash_form = {.digest_size = 16}}));
  ASSERT_TRUE(brief.ok()) << brief.status();
  EXPECT_EQ(brief->hash_form.digest_size, 16u);
  EXPECT_EQ(std::get<BlockRemoved>(brief->events[0]).block_hash.words,
            (std::array<uint64_t, 4>{hash.words[0], hash.words[1], 0, 0}));
}

TEST(EventCodecTest, RunsOfRemovalsTravelAsOneEventIfAsked) {
  std::vector<KvEvent> events;
  for (unsigned char i = 1; i <= 20; ++i)
    events.emplace_back(BlockRemoved{.block_hash = Filled(i)});
  events.emplace_back(BlockRemoved{.block_hash = Filled(21), .group_idx = 1});
  events.emplace_back(AllBlocksCleared{});
  const std::string each = Encode(events), joined = Encode(events, {.join_removals = true});
  const auto count = [](const std::string& bytes) {
    msgpack::Reader reader(bytes);
    msgpack::Item item;
    for (int i = 0; i < 3; ++i) reader.Next(&item);
    return item.count;
  };
  EXPECT_EQ(count(each), 22u);
  EXPECT_EQ(count(joined), 3u);
  EXPECT_EQ(DecodeEvents(each)->events, events);
  EXPECT_EQ(DecodeEvents(joined)->events, events);
}

TEST(EventCodecTest, UnknownKeysAndItemsArePassedOver) {  // V-64
  const std::string event = Hex("83") + Text("new") + Hex("9281a16101c7020001ff") + Text("type") +
                            Text("AllBlocksCleared") + Text("x") + Hex("c3");
  const auto batch = DecodeEvents(Hex("94ca3fc0000091") + event + Hex("02a161"));
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->timestamp, 1.5);
  EXPECT_EQ(batch->data_parallel_rank, 2);
  EXPECT_EQ(batch->events, (std::vector<KvEvent>{AllBlocksCleared{}}));
}

TEST(EventCodecTest, UnknownExtraKeysAreLeftOutAndCounted) {
  const std::string event = Hex("86") + Text("type") + Text("BlockStored") + Text("block_hashes") +
                            Hex("91c40101") + Text("parent_block_hash") + Hex("c0") +
                            Text("token_ids") + Hex("90") + Text("block_size") + Hex("10") +
                            Text("extra_keys") + Hex("9195") + Hex("07") + Hex("92a161a162") +
                            Hex("81a16105") + Hex("93a1610102") + Text("salt");
  const auto batch = DecodeEvents(Hex("920191") + event);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->num_unknown_extra_keys, 4);
  EXPECT_EQ(std::get<BlockStored>(batch->events[0]).extra_keys,
            (std::vector<std::optional<ExtraKeys>>{
                ExtraKeys{{.kind = ExtraKey::Kind::kSalt, .value = "salt"}}}));
}

TEST(EventCodecTest, RefusalsSayWhatAndWhere) {
  EXPECT_EQ(ErrorOf(""),
            "KV event batch: batch: the bytes end inside it, or are no MessagePack "
            "(byte 0)");
  EXPECT_EQ(ErrorOf(Hex("91c0")),
            "KV event batch: got an array of 1 items, expected time, events and rank (byte 1)");
  EXPECT_EQ(ErrorOf(Hex("920191") + Text("x")),
            "KV event batch: event 0: event: got a text, expected a map (byte 5)");
  // An event as an array (V-64).
  EXPECT_EQ(ErrorOf(Hex("92019191") + Text("AllBlocksCleared")),
            "KV event batch: event 0: event: got an array, expected a map (byte 4)");
  EXPECT_NE(ErrorOf(Hex("92019181") + Text("type") + Text("Other")).find("got \"Other\""),
            std::string::npos);
  EXPECT_NE(ErrorOf(Hex("92019180")).find("event 0: has no type"), std::string::npos);
  EXPECT_NE(ErrorOf(Hex("92019181") + Text("type") + Text("BlockStored"))
                .find("BlockStored without block_hashes"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Hex("92019182") + Text("type") + Text("AllBlocksCleared") + Text("type") +
                    Text("AllBlocksCleared"))
                .find("type is there twice"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Example() + "x").find("got 1 bytes more"), std::string::npos);
  const std::string removal =
      Hex("92019182") + Text("type") + Text("BlockRemoved") + Text("block_hashes");
  EXPECT_NE(ErrorOf(removal + Hex("92c401aac402aabb")).find("expected one form in a batch"),
            std::string::npos);
  EXPECT_NE(ErrorOf(removal + Hex("91c421") + std::string(33, 'x')).find("got a hash of 33 bytes"),
            std::string::npos);
  EXPECT_NE(ErrorOf(removal + Hex("ddffffffff")).find("the bytes end"), std::string::npos);
  EXPECT_NE(ErrorOf(Hex("92019181") + Text("group_idx") + Hex("cd8000")).find("got 32768"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Hex("92019181") + Text("token_ids") + Hex("91cf0000000100000000"))
                .find("token_ids: got 4294967296"),
            std::string::npos);
}

TEST(EventCodecTest, NoCutOfABatchIsABatch) {
  const std::string bytes = Encode(FullEvents());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(DecodeEvents(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
}

// An event of the batch [1, [event]] that removes `num_hashes` hashes of one byte.
std::string RemovalOf(uint32_t num_hashes) {
  std::string bytes =
      Hex("92019183") + Text("type") + Text("BlockRemoved") + Text("block_hashes") + Hex("dd");
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(num_hashes >> shift));
  return bytes + std::string(num_hashes, '\x01');
}

TEST(EventCodecTest, NothingTakesMuchMoreMemoryThanItSent) {
  // The smallest thing on the wire that becomes an event: a hash of one byte as an integer.
  const std::string refused = ErrorOf(RemovalOf(200'000) + Text("medium") + Text("GPU"));
  EXPECT_NE(refused.find("bytes of memory, the limit for a batch of this size"), std::string::npos)
      << refused;
  const auto taken = DecodeEvents(RemovalOf(140'000) + Text("medium") + Text("GPU"));
  EXPECT_TRUE(taken.ok()) << taken.status();
  EXPECT_LE(taken->events.capacity() * sizeof(KvEvent), kFreeDecodedBytes + (size_t{2} << 20));
  // The smallest extra keys and lists.
  for (const auto& [key, item] : {std::pair("extra_keys", '\xc0'),
                                  std::pair("lookahead_token_ids", '\x90')}) {
    const std::string bytes = Hex("92019181") + Text(key) + Hex("dd00800000") +
                              std::string(size_t{1} << 23, item);
    EXPECT_NE(ErrorOf(bytes).find(std::string(key) + ": needs more than"), std::string::npos);
  }
}

TEST(EventCodecTest, ATextIsNotCopiedIntoMoreEventsThanFit) {
  const std::string text = Hex("da9c40") + std::string(40'000, 'l');
  for (const char* key : {"locality", "ownership"}) {
    const std::string refused = ErrorOf(RemovalOf(2'000) + Text(key) + text);
    EXPECT_NE(refused.find("bytes of memory, the limit"), std::string::npos) << refused;
    EXPECT_TRUE(DecodeEvents(RemovalOf(1'000) + Text(key) + text).ok());
  }
}

TEST(MsgpackTest, IntegersHaveTheirShortestForm) {
  const std::vector<std::pair<int64_t, const char*>> forms = {{0, "00"},
                                                              {127, "7f"},
                                                              {128, "cc80"},
                                                              {255, "ccff"},
                                                              {256, "cd0100"},
                                                              {65535, "cdffff"},
                                                              {65536, "ce00010000"},
                                                              {4294967295, "ceffffffff"},
                                                              {4294967296, "cf0000000100000000"},
                                                              {-1, "ff"},
                                                              {-32, "e0"},
                                                              {-33, "d0df"},
                                                              {-128, "d080"},
                                                              {-129, "d1ff7f"},
                                                              {-32768, "d18000"},
                                                              {-32769, "d2ffff7fff"},
                                                              {INT32_MIN, "d280000000"},
                                                              {INT64_MIN, "d38000000000000000"}};
  for (const auto& [value, hex] : forms) {
    std::string out;
    msgpack::Writer(&out).Int(value);
    EXPECT_EQ(absl::BytesToHexString(out), hex) << value;
    msgpack::Reader reader(out);
    msgpack::Item item;
    ASSERT_TRUE(reader.Next(&item));
    EXPECT_EQ(static_cast<int64_t>(item.bits), value);
    EXPECT_EQ(item.type, value < 0 ? msgpack::Type::kNegative : msgpack::Type::kUint);
    EXPECT_TRUE(reader.at_end());
  }
}

TEST(MsgpackTest, LengthsHaveTheirShortestForm) {
  for (const size_t size : {0, 15, 16, 31, 32, 255, 256, 65535, 65536}) {
    std::string out;
    msgpack::Writer writer(&out);
    writer.Text(std::string(size, 't'));
    writer.Bytes(std::string(size, 'b'));
    writer.Array(size);
    for (size_t i = 0; i < size; ++i) writer.Nil();
    msgpack::Reader reader(out);
    msgpack::Item item;
    ASSERT_TRUE(reader.Next(&item));
    EXPECT_EQ(item.bytes, std::string(size, 't'));
    EXPECT_EQ(reader.position() - size, size < 32 ? 1u : size < 256 ? 2u : size < 65536 ? 3u : 5u);
    const size_t before = reader.position();
    ASSERT_TRUE(reader.Next(&item));
    EXPECT_EQ(item.type, msgpack::Type::kBytes);
    EXPECT_EQ(item.bytes.size(), size);
    EXPECT_EQ(reader.position() - before - size, size < 256 ? 2u : size < 65536 ? 3u : 5u);
    ASSERT_TRUE(reader.Skip());
    EXPECT_TRUE(reader.at_end());
  }
}

TEST(MsgpackTest, DepthCostsNoStack) {
  std::string deep(1 << 20, '\x91');
  EXPECT_FALSE(msgpack::Reader(deep).Skip());
  deep += '\xc0';
  EXPECT_TRUE(msgpack::Reader(deep).Skip());
}

}  // namespace
}  // namespace kvblocks::events
