// The C interface with bytes for a caller: configuration texts, plan requests, and operations on a
// small manager with sizes, counts and indices that no sane caller passes. Pointers are good, for
// nothing can check them. After every call the invariants hold, and a failure has a text.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/c/kvblocks.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kvblocks::fuzz::FuzzInput;

constexpr std::string_view kConfig =
    "cache { num_blocks: 24 hash_block_size: 4\n"
    "  groups { num_layers: 1 spec { full_attention {\n"
    "    block_size: 4 num_kv_heads: 1 head_size: 16 dtype: \"bf16\" } } }\n"
    "  groups { num_layers: 1 spec { sliding_window {\n"
    "    block_size: 4 num_kv_heads: 1 head_size: 16 dtype: \"bf16\" sliding_window: 8 } } } }\n"
    "options { max_model_len: 64 enable_events: true hash_seed: \"fuzz\" ";

// How the options go on.
constexpr std::string_view kVersions[] = {
    "}", "semantics: \"vllm-0.25\" }",
    "semantics: \"vllm-0.33-exactly\" semantics_switches { trusts_hits: false } }",
    "use_eagle: true prefill_lookahead_tokens: 3 }",
    "use_eagle: true num_hash_lookahead_tokens: 2 retention_interval: 8 }"};

// A failure says why, but "not now" needs no words.
kvb_status Checked(kvb_status status) {
  const bool has_text = status > KVB_IN_USE;
  FUZZ_EXPECT(!has_text || kvb_last_error()[0] != '\0', kvb_status_name(status));
  FUZZ_EXPECT(status != KVB_INTERNAL, kvb_last_error());
  return status;
}

// Pools of millions of blocks are valid, and slow to make. Exponents and hexadecimal digits say
// large numbers in few characters.
bool AsksForMuch(std::string_view text) {
  size_t digits = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (digits > 0 && !is_digit && std::string_view("eExX.").find(c) != std::string_view::npos) {
      return true;
    }
    digits = is_digit ? digits + 1 : 0;
    if (digits > 4) return true;
  }
  return false;
}

void RunConfig(FuzzInput& input) {
  const int32_t format = input.Wild32(0, 1);
  const std::string text(input.Rest());
  if (AsksForMuch(text)) return;
  kvb_manager* manager = nullptr;
  const kvb_status status = Checked(kvb_manager_create(text.data(), text.size(), format, &manager));
  FUZZ_EXPECT((status == KVB_OK) == (manager != nullptr), kvb_status_name(status));
  if (manager != nullptr) FUZZ_EXPECT(kvb_manager_check_invariants(manager) == KVB_OK, text);
  kvb_manager_destroy(manager);
}

void RunPlan(FuzzInput& input) {
  const std::string model = input.Text(120);
  const bool has_model = input.Bool();
  const std::string options(input.Rest());
  char* json = nullptr;
  const kvb_status status = Checked(kvb_plan_json(
      options.data(), options.size(), has_model ? model.data() : nullptr, model.size(), &json));
  FUZZ_EXPECT((status == KVB_OK) == (json != nullptr), kvb_status_name(status));
  kvb_string_free(json);
}

class Caller {
 public:
  explicit Caller(std::string_view version) {
    const std::string config = std::string(kConfig) + std::string(version);
    FUZZ_EXPECT(
        kvb_manager_create(config.data(), config.size(), KVB_FORMAT_TEXT, &manager_) == KVB_OK,
        kvb_last_error());
  }
  ~Caller() {
    kvb_manager_destroy(manager_);
    for (kvb_request* request : requests_) kvb_request_destroy(request);
  }

  void Step(FuzzInput& input) {
    const uint8_t operation = input.Byte() % 14;
    if (operation == 0 || requests_.empty()) return New(input);
    kvb_request* request = requests_[static_cast<size_t>(input.Byte()) % requests_.size()];
    const int32_t* blocks = nullptr;
    size_t num_blocks = 0;
    std::array<int32_t, 4> ids;
    for (int32_t& id : ids) id = input.Wild32(0, 23);
    switch (operation) {
      case 1:
        return Allocate(input, request);
      case 2: {
        int64_t hit = 0;
        Checked(kvb_request_lookup(request, &hit));
        break;
      }
      case 3:
        Checked(kvb_request_set_num_computed_tokens(request, input.Wild(0, 40)));
        Checked(kvb_request_set_num_inflight_tokens(request, input.Wild(0, 8)));
        Checked(kvb_request_set_status(request, input.Wild32(0, 3)));
        break;
      case 4:
        Checked(kvb_request_preempt(request));
        break;
      case 5:
        Checked(kvb_request_append_tokens(request, ids.data(), input.Byte() % ids.size()));
        break;
      case 6:
        Checked(kvb_request_cache_blocks(request, input.Wild(0, 40)));
        Checked(kvb_request_remove_skipped_blocks(request, input.Wild(0, 40)));
        Checked(kvb_request_truncate_hits(request, input.Wild(0, 40)));
        break;
      case 7:
        Checked(kvb_manager_evict_blocks(manager_, ids.data(), ids.size()));
        break;
      case 8:
        if (Checked(kvb_manager_pin_blocks(manager_, ids.data(), 2)) == KVB_OK && input.Bool()) {
          Checked(kvb_manager_free_blocks(manager_, ids.data(), 2));
        }
        break;
      case 9:
        if (Checked(kvb_request_pop_blocks(request, &blocks, &num_blocks)) == KVB_OK) {
          Checked(kvb_manager_free_blocks(manager_, blocks, num_blocks));
        }
        break;
      case 10:
        Checked(kvb_manager_reset_prefix_cache(manager_));
        break;
      case 11:
        Read(input, request);
        break;
      case 12:
        Events(input);
        break;
      default:
        kvb_request_destroy(request);
        requests_.erase(std::find(requests_.begin(), requests_.end(), request));
    }
  }

  void Check() const {
    FUZZ_EXPECT(kvb_manager_check_invariants(manager_) == KVB_OK, kvb_last_error());
  }

 private:
  void New(FuzzInput& input) {
    if (requests_.size() >= 6) return;
    std::array<int32_t, 40> tokens;
    const int32_t document = input.Byte() % 3;
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = document * 100 + static_cast<int32_t>(i);
    kvb_request_options options = KVB_INIT(kvb_request_options);
    options.struct_size = static_cast<size_t>(input.Wild(sizeof(options), sizeof(options)));
    if (options.struct_size > sizeof(options) && options.struct_size <= 4096) {
      return;  // would read what is not there
    }
    options.token_ids = tokens.data();
    options.num_tokens = input.Byte() % tokens.size();
    options.cache_salt = input.Bool() ? "salt" : nullptr;
    options.lora_name = input.Byte() % 4 == 0 ? "adapter" : nullptr;
    options.lora_path = input.Byte() % 8 == 0 ? "/adapter" : nullptr;
    options.skip_reading_prefix_cache = input.Byte() % 8 == 0;
    kvb_feature feature = KVB_INIT(kvb_feature);
    feature.identifier = "image";
    feature.offset = input.Wild(0, 20);
    feature.length = input.Wild(1, 8);
    options.features = &feature;
    options.num_features = input.Bool();
    kvb_request* request = nullptr;
    Checked(kvb_request_create(manager_, &options, &request));
    if (request != nullptr) requests_.push_back(request);
  }

  void Allocate(FuzzInput& input, kvb_request* request) {
    kvb_allocation allocation = KVB_INIT(kvb_allocation);
    allocation.num_new_tokens = input.Wild(0, 40);
    allocation.num_lookahead_tokens = input.Byte() % 4 == 0 ? input.Wild(0, 4) : 0;
    allocation.num_external_tokens = input.Byte() % 4 == 0 ? input.Wild(0, 12) : 0;
    allocation.reserved_blocks = input.Byte() % 8 == 0 ? input.Wild(0, 24) : 0;
    allocation.num_encoder_tokens = input.Byte() % 16 == 0 ? input.Wild(0, 4) : 0;
    const uint8_t flags = input.Byte();
    allocation.use_hits = flags & 1;
    allocation.delay_cache_blocks = flags >> 1 & 1;
    allocation.full_sequence_must_fit = flags >> 2 & 1;
    allocation.has_scheduled_requests = flags >> 3 & 1;
    // Sizes of older callers.
    if (flags >> 4 == 15) allocation.struct_size = input.Byte() % (sizeof(allocation) + 1);
    Checked(kvb_request_allocate(request, &allocation));
  }

  // Everything that only reads.
  void Read(FuzzInput& input, kvb_request* request) {
    const int32_t group = input.Wild32(0, 1), block = input.Wild32(0, 23);
    const int32_t* blocks = nullptr;
    size_t num_blocks = 0;
    int64_t sum = 0;
    for (const auto get :
         {kvb_request_get_blocks, kvb_request_get_new_blocks, kvb_request_get_hits}) {
      if (Checked(get(request, group, &blocks, &num_blocks)) != KVB_OK) continue;
      for (size_t i = 0; i < num_blocks; ++i) sum += blocks[i];
    }
    FUZZ_EXPECT(sum >= 0, "block ids");
    kvb_hash hash;
    Checked(kvb_request_get_block_hash(request, group, input.Wild(0, 9), &hash));
    kvb_block_info info = KVB_INIT(kvb_block_info);
    Checked(kvb_manager_get_block(manager_, block, &info));
    kvb_request_info request_info = KVB_INIT(kvb_request_info);
    request_info.struct_size = input.Byte() % (sizeof(request_info) + 1);
    Checked(kvb_request_get_info(request, &request_info));
    std::array<int64_t, 2> counts;
    Checked(kvb_request_get_num_common_prefix_blocks(request, counts.data(), 2));
    char* json = nullptr;
    Checked(kvb_request_explain_json(request, &json));
    kvb_string_free(json);
    Checked(kvb_request_record_admission(request, input.Bool()));
  }

  void Events(FuzzInput& input) {
    kvb_events* events = nullptr;
    FUZZ_EXPECT(Checked(kvb_manager_take_events(manager_, &events)) == KVB_OK, "events");
    for (size_t i = 0; i < kvb_events_count(events); ++i) {
      kvb_event event = KVB_INIT(kvb_event);
      FUZZ_EXPECT(kvb_events_get(events, i, &event) == KVB_OK, kvb_last_error());
      kvb_extra_key key = KVB_INIT(kvb_extra_key);
      Checked(kvb_events_get_extra_key(events, i, input.Byte(), input.Byte() % 3, &key));
      const int32_t* tokens = nullptr;
      size_t num_tokens = 0;
      Checked(kvb_events_get_lookahead_tokens(events, i, input.Byte() % 3, &tokens, &num_tokens));
    }
    kvb_event event = KVB_INIT(kvb_event);
    FUZZ_EXPECT(kvb_events_get(events, kvb_events_count(events), &event) == KVB_NOT_FOUND, "end");
    kvb_events_destroy(events);
  }

  kvb_manager* manager_ = nullptr;
  std::vector<kvb_request*> requests_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t kind = input.Byte();
  if (kind == 't') {
    RunConfig(input);
  } else if (kind == 'p') {
    RunPlan(input);
  } else {
    Caller caller(kVersions[kind % std::size(kVersions)]);
    for (int i = 0; i < 200 && !input.empty(); ++i) {
      caller.Step(input);
      caller.Check();
    }
  }
  return 0;
}
