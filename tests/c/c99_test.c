/* The C interface from C99, compiled with -std=c99 -pedantic -Wall -Wextra -Werror: what a caller
 * sees of every function, the rules of growing structs, and hostile arguments. Prints the failed
 * lines. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvblocks/c/kvblocks.h"

static int num_failures = 0;

#define EXPECT(condition)                                                                        \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      ++num_failures;                                                                            \
      printf("%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, kvb_last_error()); \
    }                                                                                            \
  } while (0)
#define EXPECT_OK(call) EXPECT((call) == KVB_OK)
/* The call fails with this status and says `part`. */
#define EXPECT_FAILS(call, status, part) \
  EXPECT((call) == (status) && strstr(kvb_last_error(), (part)) != NULL)

static const char kText[] =
    "cache { num_blocks: 11 groups { num_layers: 2 spec { full_attention {\n"
    "  block_size: 4 num_kv_heads: 2 head_size: 8 dtype: \"bf16\" } } } }\n"
    "options { max_model_len: 64 enable_events: true hash_seed: \"test\"\n"
    "          lookup_history_blocks: 16 }\n";
static const char kJson[] =
    "{\"cache\": {\"num_blocks\": 11, \"groups\": [{\"num_layers\": 2, \"spec\": "
    "{\"full_attention\": "
    "{\"block_size\": 4, \"num_kv_heads\": 2, \"head_size\": 8, \"dtype\": \"bf16\"}}}]},"
    " \"options\": {\"max_model_len\": 64, \"enable_events\": true, \"hash_seed\": \"test\"}}";

static kvb_manager* NewManager(void) {
  kvb_manager* manager = NULL;
  EXPECT_OK(kvb_manager_create(kText, strlen(kText), KVB_FORMAT_TEXT, &manager));
  if (manager == NULL) exit(1);
  return manager;
}

/* A request of `n` tokens that count up from `first`. */
static kvb_request* NewRequest(kvb_manager* manager, int32_t first, size_t n) {
  int32_t tokens[64];
  size_t i;
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_request* request = NULL;
  for (i = 0; i < n; ++i) tokens[i] = first + (int32_t)i;
  options.id = "r";
  options.token_ids = tokens;
  options.num_tokens = n;
  EXPECT_OK(kvb_request_create(manager, &options, &request));
  if (request == NULL) exit(1);
  return request;
}

/* Look-up and prefill of all that is missing. */
static kvb_status Prefill(kvb_request* request, int64_t* hit) {
  kvb_allocation step = KVB_INIT(kvb_allocation);
  kvb_request_info info = KVB_INIT(kvb_request_info);
  EXPECT_OK(kvb_request_lookup(request, hit));
  EXPECT_OK(kvb_request_get_info(request, &info));
  EXPECT(info.num_hit_tokens == *hit);
  step.num_new_tokens = info.num_tokens - *hit;
  step.use_hits = 1;
  {
    const kvb_status status = kvb_request_allocate(request, &step);
    if (status == KVB_OK) kvb_request_set_num_computed_tokens(request, info.num_tokens);
    return status;
  }
}

static int TableIs(const kvb_request* request, const char* expected) {
  const int32_t* blocks = NULL;
  size_t n = 99, i;
  char text[256] = "";
  if (kvb_request_get_blocks(request, 0, &blocks, &n) != KVB_OK) return 0;
  for (i = 0; i < n; ++i) sprintf(text + strlen(text), "%s%d", i ? " " : "", (int)blocks[i]);
  if (strcmp(text, expected) == 0) return 1;
  printf("table is \"%s\", expected \"%s\"\n", text, expected);
  return 0;
}

static void TestLife(void) {
  kvb_manager* manager = NewManager();
  kvb_manager_info info = KVB_INIT(kvb_manager_info);
  kvb_group_info group = KVB_INIT(kvb_group_info);
  kvb_pool_stats pool = KVB_INIT(kvb_pool_stats);
  kvb_prefix_stats prefix = KVB_INIT(kvb_prefix_stats);
  kvb_request_info state = KVB_INIT(kvb_request_info);
  kvb_allocation step = KVB_INIT(kvb_allocation);
  const int32_t* blocks = NULL;
  size_t n = 0;
  int64_t hit = -1, common = -1;
  kvb_request *a, *b, *c;
  const int32_t token = 777;

  EXPECT_OK(kvb_manager_get_info(manager, &info));
  EXPECT(info.num_blocks == 11 && info.num_groups == 1 && info.hash_block_size == 4 &&
         info.scheduler_block_size == 4 && info.hit_alignment == 4 && info.max_model_len == 64 &&
         info.enable_caching == 1 && info.needs_zeroed_blocks == 0);
  EXPECT_OK(kvb_manager_get_group(manager, 0, &group));
  EXPECT(strcmp(group.kind, "full_attention") == 0 && group.block_size == 4 &&
         group.page_bytes == 256 && group.num_layers == 2 && group.sliding_window == 0);

  a = NewRequest(manager, 0, 10);
  EXPECT_OK(kvb_manager_start_step(manager));
  EXPECT(Prefill(a, &hit) == KVB_OK && hit == 0);
  EXPECT(TableIs(a, "1 2 3"));
  EXPECT_OK(kvb_request_get_new_blocks(a, 0, &blocks, &n));
  EXPECT(n == 3 && blocks[0] == 1);

  /* A decode step inside a block takes nothing; the block after it is one more. */
  EXPECT_OK(kvb_request_append_tokens(a, &token, 1));
  step.num_new_tokens = 1;
  EXPECT_OK(kvb_request_allocate(a, &step));
  EXPECT_OK(kvb_request_get_new_blocks(a, 0, &blocks, &n));
  EXPECT(n == 0);
  step.num_lookahead_tokens = 2;
  EXPECT_OK(kvb_request_allocate(a, &step));
  EXPECT(TableIs(a, "1 2 3 4"));
  EXPECT_OK(kvb_request_get_new_blocks(a, 0, &blocks, &n));
  EXPECT(n == 1 && blocks[0] == 4);

  /* The same beginning is hit, and shared. */
  b = NewRequest(manager, 0, 12);
  EXPECT_OK(kvb_request_lookup(b, &hit));
  EXPECT(hit == 8);
  EXPECT_OK(kvb_request_get_hits(b, 0, &blocks, &n));
  EXPECT(n == 2 && blocks[0] == 1 && blocks[1] == 2);
  EXPECT_OK(kvb_request_record_admission(b, 1));
  EXPECT_OK(kvb_request_truncate_hits(b, 4));
  step = (kvb_allocation)KVB_INIT(kvb_allocation);
  step.use_hits = 1;
  step.num_new_tokens = 4;
  step.num_external_tokens = 4;
  step.delay_cache_blocks = 1;
  EXPECT_OK(kvb_request_allocate(b, &step));
  EXPECT(TableIs(b, "1 5 6"));
  EXPECT_OK(kvb_request_set_num_computed_tokens(b, 12));
  EXPECT_OK(kvb_request_cache_blocks(b, 12));
  EXPECT_OK(kvb_request_get_num_common_prefix_blocks(a, &common, 1));
  EXPECT(common == 1);

  /* Too large now; it fits after somebody made room. */
  c = NewRequest(manager, 1000, 28);
  EXPECT(Prefill(c, &hit) == KVB_NO_SPACE);
  EXPECT(TableIs(c, ""));
  EXPECT_OK(kvb_request_get_new_blocks(c, 0, &blocks, &n));
  EXPECT(n == 0);
  EXPECT(kvb_manager_reset_prefix_cache(manager) == KVB_IN_USE);
  EXPECT_OK(kvb_request_preempt(a));
  EXPECT_OK(kvb_request_get_info(a, &state));
  EXPECT(state.status == KVB_REQUEST_PREEMPTED && state.num_preemptions == 1 &&
         state.num_computed_tokens == 0 && state.holds_blocks == 0 && state.num_tokens == 11);
  EXPECT_OK(kvb_request_free(b));
  EXPECT(Prefill(c, &hit) == KVB_OK && hit == 0);
  EXPECT_OK(kvb_manager_get_pool_stats(manager, &pool));
  EXPECT(pool.num_live == 7 && pool.num_free == 3 && pool.num_requests_holding_blocks == 1 &&
         pool.usage > 0.69 && pool.usage < 0.71);
  EXPECT_OK(kvb_manager_take_prefix_stats(manager, &prefix));
  EXPECT(prefix.requests == 1 && prefix.queries == 12 && prefix.hits == 8);
  {
    int64_t missed = 0;
    int32_t i;
    for (i = 0; i < KVB_MAX_MISS_REASONS; ++i) {
      if (prefix.missed[i] != 0) EXPECT(kvb_miss_reason_name(i) != NULL);
      missed += prefix.missed[i];
    }
    EXPECT(missed == 4);
  }
  EXPECT_OK(kvb_manager_take_prefix_stats(manager, &prefix));
  EXPECT(prefix.requests == 0);

  /* Blocks that outlive their request until they are freed. */
  EXPECT_OK(kvb_request_pop_blocks(c, &blocks, &n));
  EXPECT(n == 7);
  EXPECT(TableIs(c, ""));
  EXPECT(kvb_manager_reset_prefix_cache(manager) == KVB_IN_USE);
  EXPECT_OK(kvb_manager_free_blocks(manager, blocks, n));
  EXPECT_OK(kvb_manager_check_invariants(manager));
  EXPECT_OK(kvb_manager_reset_prefix_cache(manager));

  kvb_request_destroy(a);
  kvb_request_destroy(b);
  kvb_manager_destroy(manager); /* c keeps it alive */
  EXPECT_OK(kvb_request_preempt(c));
  EXPECT(Prefill(c, &hit) == KVB_OK && hit == 0);
  EXPECT_OK(kvb_request_free(c));
  kvb_request_destroy(c);
}

static void TestBlocksAndHashes(void) {
  kvb_manager* manager = NewManager();
  kvb_request *a = NewRequest(manager, 0, 10), *b = NULL;
  kvb_block_info block = KVB_INIT(kvb_block_info);
  kvb_hash hashes[2];
  const int32_t* list = NULL;
  const int32_t ids[2] = {1, 2};
  size_t n = 0;
  int64_t hit = -1;
  EXPECT(Prefill(a, &hit) == KVB_OK);
  EXPECT_OK(kvb_request_get_block_hash(a, 0, 0, &hashes[0]));
  EXPECT_OK(kvb_request_get_block_hash(a, 0, 1, &hashes[1]));
  EXPECT_FAILS(kvb_request_get_block_hash(a, 0, 2, &hashes[1]), KVB_NOT_FOUND, "block is 2");
  EXPECT_FAILS(kvb_request_get_block_hash(a, 0, -1, &hashes[1]), KVB_NOT_FOUND, "block is -1");
  EXPECT_OK(kvb_manager_get_block(manager, 1, &block));
  EXPECT(block.ref_count == 1 && block.cached_group == 0 &&
         memcmp(&block.hash, &hashes[0], sizeof(kvb_hash)) == 0);
  EXPECT_OK(kvb_manager_get_block(manager, 3, &block));
  EXPECT(block.cached_group == -1);
  EXPECT_OK(kvb_manager_get_free_list(manager, &list, &n));
  EXPECT(n == 7 && list[0] == 4);

  /* A request from those hashes hits the same blocks. */
  EXPECT_OK(kvb_request_create_from_hashes(manager, "h", 9, hashes, 2, &b));
  EXPECT_OK(kvb_request_lookup(b, &hit));
  EXPECT(hit == 8);
  EXPECT_FAILS(kvb_request_append_tokens(b, ids, 2), KVB_INVALID_ARGUMENT, "hashes");
  EXPECT_FAILS(kvb_request_append_hashed(b, 3, NULL, 0), KVB_INVALID_ARGUMENT, "hash");
  EXPECT_OK(kvb_request_append_hashed(b, 2, NULL, 0));
  EXPECT_OK(kvb_manager_pin_blocks(manager, ids, 2));
  EXPECT_OK(kvb_manager_evict_blocks(manager, ids, 2));
  EXPECT_OK(kvb_request_lookup(b, &hit));
  EXPECT(hit == 0);
  EXPECT_OK(kvb_request_free(a));
  EXPECT_OK(kvb_manager_get_block(manager, 1, &block));
  EXPECT(block.ref_count == 1);
  EXPECT_OK(kvb_manager_free_blocks(manager, ids, 2));
  EXPECT_FAILS(kvb_manager_free_blocks(manager, ids, 2), KVB_INVALID_ARGUMENT, "1");
  EXPECT_OK(kvb_manager_check_invariants(manager));
  kvb_request_destroy(a);
  kvb_request_destroy(b);
  kvb_manager_destroy(manager);
}

/* Blocks that workers must zero. */
static void TestNewBlocks(void) {
  static const char kReporting[] =
      "cache { num_blocks: 11 groups { num_layers: 2 spec { full_attention {\n"
      "  block_size: 4 num_kv_heads: 2 head_size: 8 dtype: \"bf16\" } } } }\n"
      "options { max_model_len: 64 report_new_blocks: true }";
  kvb_manager* manager = NULL;
  kvb_request* request;
  const int32_t* blocks = NULL;
  size_t n = 99;
  int64_t hit = -1;
  EXPECT_OK(kvb_manager_create(kReporting, strlen(kReporting), KVB_FORMAT_TEXT, &manager));
  if (manager == NULL) exit(1);
  request = NewRequest(manager, 0, 10);
  EXPECT(Prefill(request, &hit) == KVB_OK);
  EXPECT_OK(kvb_manager_take_new_blocks(manager, &blocks, &n));
  EXPECT(n == 3 && blocks[0] == 1 && blocks[2] == 3);
  EXPECT_OK(kvb_manager_take_new_blocks(manager, &blocks, &n));
  EXPECT(n == 0);
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
}

static void TestEvents(void) {
  kvb_manager* manager = NewManager();
  kvb_events* events = NULL;
  kvb_event event = KVB_INIT(kvb_event);
  kvb_extra_key key = KVB_INIT(kvb_extra_key);
  kvb_feature feature = KVB_INIT(kvb_feature);
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_request* request = NULL;
  kvb_hash hash;
  int64_t hit = 0;
  const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, one = 1;
  const int32_t* lookahead = NULL;
  size_t num_lookahead = 0;
  feature.identifier = "image";
  feature.offset = 2;
  feature.length = 3;
  options.token_ids = tokens;
  options.num_tokens = 9;
  options.lora_name = "adapter";
  options.lora_path = "/adapters/1";
  options.session_id = "session 7";
  options.has_lora_id = 1;
  options.lora_id = 5;
  options.cache_salt = "salt";
  options.features = &feature;
  options.num_features = 1;
  EXPECT_OK(kvb_request_create(manager, &options, &request));
  EXPECT(Prefill(request, &hit) == KVB_OK);
  EXPECT_OK(kvb_request_get_block_hash(request, 0, 1, &hash));
  EXPECT_OK(kvb_request_free(request));
  EXPECT_OK(kvb_manager_evict_blocks(manager, &one, 1));
  EXPECT_OK(kvb_manager_reset_prefix_cache(manager));
  EXPECT_OK(kvb_manager_take_events(manager, &events));
  EXPECT(kvb_events_count(events) == 3);
  kvb_request_destroy(request);
  kvb_manager_destroy(manager); /* a batch stands for itself */

  EXPECT_OK(kvb_events_get(events, 0, &event));
  EXPECT(event.kind == KVB_EVENT_STORED && event.num_block_hashes == 2 && event.group == 0 &&
         memcmp(&event.block_hashes[1], &hash, sizeof(hash)) == 0 && event.parent_hash == NULL &&
         event.num_tokens == 8 && event.token_ids[7] == 8 && event.block_size == 4 &&
         event.has_lora_id == 1 && event.lora_id == 5 && strcmp(event.lora_name, "adapter") == 0 &&
         strcmp(event.medium, "GPU") == 0 && strcmp(event.spec_kind, "full_attention") == 0 &&
         event.sliding_window == 0 && strcmp(event.session_id, "session 7") == 0);
  EXPECT_OK(kvb_events_get_extra_key(events, 0, 0, 0, &key));
  EXPECT(key.kind == KVB_EXTRA_KEY_LORA && strcmp(key.value, "adapter") == 0 &&
         key.value_size == 7);
  EXPECT_OK(kvb_events_get_extra_key(events, 0, 1, 1, &key));
  EXPECT(key.kind == KVB_EXTRA_KEY_MULTIMODAL && strcmp(key.value, "image") == 0 &&
         key.offset == -2);
  EXPECT_FAILS(kvb_events_get_extra_key(events, 0, 1, 2, &key), KVB_NOT_FOUND, "2 extra keys");
  EXPECT_FAILS(kvb_events_get_extra_key(events, 0, 9, 0, &key), KVB_NOT_FOUND, "block 9");
  EXPECT_FAILS(kvb_events_get_extra_key(events, 1, 0, 0, &key), KVB_NOT_FOUND, "0 extra keys");
  EXPECT_FAILS(kvb_events_get_lookahead_tokens(events, 0, 0, &lookahead, &num_lookahead),
               KVB_NOT_FOUND, "of 0 blocks, asked for block 0");
  EXPECT_OK(kvb_events_get(events, 1, &event));
  EXPECT(event.kind == KVB_EVENT_REMOVED && event.removal_reason == KVB_REMOVAL_EVICTED &&
         event.num_block_hashes == 1 && event.num_tokens == 0 && event.lora_name[0] == '\0' &&
         event.session_id == NULL);
  EXPECT_OK(kvb_events_get(events, 2, &event));
  EXPECT(event.kind == KVB_EVENT_CLEARED && event.num_block_hashes == 0);
  EXPECT_FAILS(kvb_events_get(events, 3, &event), KVB_NOT_FOUND, "3 events");
  kvb_events_destroy(events);
}

static void TestEventsTravelAndAreIndexed(void) {
  kvb_manager* manager = NewManager();
  kvb_request* request = NewRequest(manager, 0, 9);
  kvb_events* events = NULL;
  kvb_events* decoded = NULL;
  kvb_event event = KVB_INIT(kvb_event);
  kvb_wire_batch batch = KVB_INIT(kvb_wire_batch);
  kvb_wire_batch got = KVB_INIT(kvb_wire_batch);
  kvb_block_index* index = NULL;
  kvb_hash hashes[2];
  char* bytes = NULL;
  size_t size = 0, count = 0;
  int32_t holder = -1, found = -1;
  int64_t hit = 0, num_blocks = 0;
  EXPECT(Prefill(request, &hit) == KVB_OK);
  EXPECT_OK(kvb_request_get_block_hash(request, 0, 0, &hashes[0]));
  EXPECT_OK(kvb_request_get_block_hash(request, 0, 1, &hashes[1]));
  EXPECT_OK(kvb_manager_take_events(manager, &events));
  batch.timestamp = 1.5;
  batch.has_data_parallel_rank = 1;
  batch.data_parallel_rank = 3;
  EXPECT_OK(kvb_events_encode(events, &batch, &bytes, &size));
  EXPECT(size > 100 && (unsigned char)bytes[0] == 0x93);
  EXPECT_OK(kvb_events_decode(bytes, size, &got, &decoded));
  EXPECT(got.timestamp == 1.5 && got.has_data_parallel_rank == 1 && got.data_parallel_rank == 3 &&
         got.digest_size == 32 && got.hashes_as_integers == 0);
  EXPECT(kvb_events_count(decoded) == 1);
  EXPECT_OK(kvb_events_get(decoded, 0, &event));
  EXPECT(event.kind == KVB_EVENT_STORED && event.num_block_hashes == 2 && event.num_tokens == 8 &&
         memcmp(event.block_hashes, hashes, sizeof(hashes)) == 0 &&
         strcmp(event.medium, "GPU") == 0 && strcmp(event.spec_kind, "full_attention") == 0);
  kvb_events_destroy(decoded);
  EXPECT_FAILS(kvb_events_decode(bytes, size - 1, NULL, &decoded), KVB_INVALID_ARGUMENT,
               "KV event batch: ");
  EXPECT(decoded == NULL);
  EXPECT_OK(kvb_events_decode(bytes, size, NULL, &decoded));
  batch.digest_size = 33;
  kvb_string_free(bytes);
  EXPECT_FAILS(kvb_events_encode(events, &batch, &bytes, &size), KVB_INVALID_ARGUMENT,
               "digest_size is 33");

  EXPECT_OK(kvb_block_index_create(&index));
  EXPECT_FAILS(kvb_block_index_apply(index, 0, decoded), KVB_NOT_FOUND, "0 were added");
  EXPECT_OK(kvb_block_index_add_holder(index, &holder));
  EXPECT_OK(kvb_block_index_apply(index, holder, decoded));
  EXPECT_OK(kvb_block_index_find_prefix(index, hashes, 2, 0, &found, &num_blocks, 1, &count));
  EXPECT(count == 1 && found == holder && num_blocks == 2);
  EXPECT_OK(kvb_block_index_forget(index, holder));
  EXPECT_OK(kvb_block_index_find_prefix(index, hashes, 2, 0, NULL, NULL, 0, &count));
  EXPECT(count == 0);
  kvb_block_index_destroy(index);
  kvb_events_destroy(decoded);
  kvb_events_destroy(events);
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
}

static void TestReusedBlocksAreReported(void) {
  kvb_manager* manager = NewManager();
  kvb_request* first = NewRequest(manager, 0, 9);
  kvb_request* second = NULL;
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_events* events = NULL;
  kvb_event event = KVB_INIT(kvb_event);
  const int32_t tokens[10] = {0, 1, 2, 3, 4, 5, 6, 7, 99, 99};
  int64_t hit = 0;
  EXPECT(Prefill(first, &hit) == KVB_OK);
  EXPECT_OK(kvb_manager_take_events(manager, &events));
  kvb_events_destroy(events);

  options.token_ids = tokens;
  options.num_tokens = 10;
  options.report_reused_blocks = 1;
  EXPECT_OK(kvb_request_create(manager, &options, &second));
  EXPECT_OK(kvb_request_lookup(second, &hit));
  EXPECT(hit == 8);
  EXPECT_OK(kvb_manager_take_events(manager, &events));
  EXPECT(kvb_events_count(events) == 1);
  EXPECT_OK(kvb_events_get(events, 0, &event));
  EXPECT(event.kind == KVB_EVENT_STORED && event.num_block_hashes == 2 && event.num_tokens == 8);
  kvb_events_destroy(events);
  kvb_request_destroy(second);

  options.report_reused_blocks = 0;
  EXPECT_OK(kvb_request_create(manager, &options, &second));
  EXPECT_OK(kvb_request_lookup(second, &hit));
  EXPECT_OK(kvb_manager_take_events(manager, &events));
  EXPECT(kvb_events_count(events) == 0);
  kvb_events_destroy(events);
  kvb_request_destroy(second);
  kvb_request_destroy(first);
  kvb_manager_destroy(manager);
}

static void TestExplain(void) {
  kvb_manager* manager = NewManager();
  kvb_request* request = NewRequest(manager, 0, 10);
  char* json = NULL;
  EXPECT_OK(kvb_request_explain_json(request, &json));
  EXPECT(json != NULL && strstr(json, "\"num_tokens\":10,\"num_hit_tokens\":0") != NULL &&
         strstr(json, "first use") != NULL && strstr(json, "\"kind\":\"full_attention\"") != NULL);
  kvb_string_free(json);
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
}

/* A caller with an older or a newer header. */
static void TestGrowth(void) {
  kvb_manager* manager = NewManager();
  kvb_request* request = NewRequest(manager, 0, 10);
  struct {
    kvb_allocation known;
    int64_t unknown[2];
  } newer;
  struct {
    kvb_request_info known;
    int64_t unknown[2];
  } newer_info;
  kvb_allocation step = KVB_INIT(kvb_allocation);
  kvb_request_info info = KVB_INIT(kvb_request_info);

  /* Older: what it does not have is zero, and what it has no room for stays as it was. */
  step.struct_size = offsetof(kvb_allocation, num_lookahead_tokens);
  step.num_new_tokens = 10;
  step.num_lookahead_tokens = -1; /* not the library's */
  EXPECT_OK(kvb_request_allocate(request, &step));
  info.struct_size = offsetof(kvb_request_info, num_prompt_tokens);
  info.num_prompt_tokens = 12345;
  EXPECT_OK(kvb_request_get_info(request, &info));
  EXPECT(info.num_tokens == 10 && info.num_prompt_tokens == 12345);
  EXPECT(info.struct_size == offsetof(kvb_request_info, num_prompt_tokens));

  /* Newer: fields that the library does not know must be zero, and come back as zero. */
  memset(&newer, 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  newer.known.num_new_tokens = 11;
  EXPECT_OK(kvb_request_allocate(request, &newer.known));
  newer.unknown[1] = 7;
  EXPECT_FAILS(kvb_request_allocate(request, &newer.known), KVB_INVALID_ARGUMENT, "does not have");
  memset(&newer_info, 0x55, sizeof(newer_info));
  newer_info.known.struct_size = sizeof(newer_info);
  EXPECT_OK(kvb_request_get_info(request, &newer_info.known));
  EXPECT(newer_info.known.num_tokens == 10 && newer_info.unknown[0] == 0 &&
         newer_info.unknown[1] == 0);

  /* Garbage. */
  step.struct_size = 0;
  EXPECT_FAILS(kvb_request_allocate(request, &step), KVB_INVALID_ARGUMENT, "struct_size is 0");
  step.struct_size = 1 << 20;
  EXPECT_FAILS(kvb_request_allocate(request, &step), KVB_INVALID_ARGUMENT,
               "struct_size is 1048576");
  info.struct_size = 3;
  EXPECT_FAILS(kvb_request_get_info(request, &info), KVB_INVALID_ARGUMENT, "struct_size is 3");
  EXPECT_OK(kvb_manager_check_invariants(manager));
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
}

static void TestBadConfigs(void) {
  kvb_manager* manager = (kvb_manager*)&num_failures; /* set to NULL by a failure */
  const char* const bad[] = {"",
                             "{",
                             "garbage",
                             "cache { num_blocks: 0 }",
                             "cache { numblocks: 5 }",
                             "options { max_model_len: 64 }",
                             "\xff\xfe",
                             "cache { num_blocks: \"x\" }"};
  size_t i;
  for (i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
    EXPECT(kvb_manager_create(bad[i], strlen(bad[i]), KVB_FORMAT_TEXT, &manager) ==
           KVB_INVALID_ARGUMENT);
    EXPECT(manager == NULL && kvb_last_error()[0] != '\0');
    EXPECT(kvb_manager_create(bad[i], strlen(bad[i]), KVB_FORMAT_JSON, &manager) ==
           KVB_INVALID_ARGUMENT);
  }
  EXPECT_FAILS(kvb_manager_create("cache { numblocks: 5 }", 22, KVB_FORMAT_TEXT, &manager),
               KVB_INVALID_ARGUMENT, "config:1:");
  EXPECT_FAILS(kvb_manager_create(kText, strlen(kText), 7, &manager), KVB_INVALID_ARGUMENT,
               "format is 7");
  EXPECT_FAILS(kvb_manager_create(NULL, 0, KVB_FORMAT_TEXT, &manager), KVB_INVALID_ARGUMENT,
               "config is NULL");
  EXPECT_FAILS(kvb_manager_create(kText, strlen(kText), KVB_FORMAT_TEXT, NULL),
               KVB_INVALID_ARGUMENT, "manager is NULL");
  EXPECT_OK(kvb_manager_create(kJson, strlen(kJson), KVB_FORMAT_JSON, &manager));
  kvb_manager_destroy(manager);
}

static void TestHostileArguments(void) {
  kvb_manager* manager = NewManager();
  kvb_request* request = NewRequest(manager, 0, 10);
  kvb_request* other = (kvb_request*)&num_failures;
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_allocation step = KVB_INIT(kvb_allocation);
  kvb_feature features[2] = {KVB_INIT(kvb_feature), KVB_INIT(kvb_feature)};
  kvb_manager_info manager_info = KVB_INIT(kvb_manager_info);
  kvb_group_info group_info = KVB_INIT(kvb_group_info);
  kvb_block_info block_info = KVB_INIT(kvb_block_info);
  kvb_hash hash;
  const int32_t* blocks = NULL;
  const int32_t bad_ids[2] = {1, 4711};
  size_t n = 0;
  int64_t hit = 0, counts[3];
  const int64_t huge[] = {-1, INT64_MIN, INT64_MAX, 1000};
  size_t i;

  for (i = 0; i < sizeof(huge) / sizeof(huge[0]); ++i) {
    step = (kvb_allocation)KVB_INIT(kvb_allocation);
    step.num_new_tokens = huge[i];
    EXPECT(kvb_request_allocate(request, &step) != KVB_OK || huge[i] == 1000);
    EXPECT_OK(kvb_request_free(request));
    step.num_new_tokens = 1;
    step.num_external_tokens = huge[i];
    EXPECT(kvb_request_allocate(request, &step) != KVB_OK);
    step.num_external_tokens = 0;
    step.reserved_blocks = huge[i];
    EXPECT(kvb_request_allocate(request, &step) != KVB_OK);
    EXPECT(kvb_request_cache_blocks(request, huge[i]) != KVB_OK || huge[i] == 1000);
    EXPECT(kvb_request_remove_skipped_blocks(request, huge[i]) != KVB_OK || huge[i] == 1000);
    EXPECT(kvb_request_truncate_hits(request, huge[i]) == KVB_INVALID_ARGUMENT);
    EXPECT_OK(kvb_request_set_num_computed_tokens(request, huge[i]));
    step.reserved_blocks = 0;
    EXPECT(kvb_request_allocate(request, &step) == KVB_INVALID_ARGUMENT);
    EXPECT_OK(kvb_request_set_num_computed_tokens(request, 0));
    EXPECT(kvb_request_create_from_hashes(manager, NULL, huge[i], NULL, 0, &other) ==
           KVB_INVALID_ARGUMENT);
    EXPECT(other == NULL);
    EXPECT_FAILS(kvb_request_get_block_hash(request, 0, huge[i], &hash), KVB_NOT_FOUND, "hashed");
  }
  EXPECT_FAILS(kvb_request_set_shared_prefix_boundary(request, -1), KVB_INVALID_ARGUMENT, "-1");
  EXPECT_FAILS(kvb_request_set_status(request, 9), KVB_INVALID_ARGUMENT, "9");
  EXPECT_FAILS(kvb_request_get_blocks(request, 1, &blocks, &n), KVB_NOT_FOUND, "group is 1");
  EXPECT_FAILS(kvb_request_get_hits(request, -1, &blocks, &n), KVB_NOT_FOUND, "group is -1");
  EXPECT_FAILS(kvb_request_get_new_blocks(request, 7, &blocks, &n), KVB_NOT_FOUND, "group is 7");
  EXPECT_FAILS(kvb_manager_get_group(manager, 1, &group_info), KVB_NOT_FOUND, "group is 1");
  EXPECT_FAILS(kvb_manager_get_block(manager, 11, &block_info), KVB_NOT_FOUND, "block is 11");
  EXPECT_FAILS(kvb_manager_get_block(manager, -1, &block_info), KVB_NOT_FOUND, "block is -1");
  EXPECT(kvb_manager_evict_blocks(manager, bad_ids, 2) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_pin_blocks(manager, bad_ids, 2) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_free_blocks(manager, bad_ids, 2) == KVB_INVALID_ARGUMENT);
  EXPECT_FAILS(kvb_manager_evict_blocks(manager, NULL, 2), KVB_INVALID_ARGUMENT, "NULL");
  EXPECT_OK(kvb_manager_evict_blocks(manager, NULL, 0));
  EXPECT_FAILS(kvb_request_append_tokens(request, NULL, 1), KVB_INVALID_ARGUMENT, "NULL");
  EXPECT_FAILS(kvb_request_append_hashed(request, 4, &hash, 1), KVB_INVALID_ARGUMENT, "token");
  EXPECT_FAILS(kvb_request_get_num_common_prefix_blocks(request, counts, 3), KVB_INVALID_ARGUMENT,
               "num_groups is 3");

  options.num_tokens = 5;
  EXPECT_FAILS(kvb_request_create(manager, &options, &other), KVB_INVALID_ARGUMENT, "NULL");
  options.num_tokens = 0;
  EXPECT_OK(kvb_request_create(manager, &options, &other));
  EXPECT_FAILS(kvb_request_lookup(other, &hit), KVB_INVALID_ARGUMENT, "no tokens");
  kvb_request_destroy(other);
  options.num_features = 2;
  EXPECT_FAILS(kvb_request_create(manager, &options, &other), KVB_INVALID_ARGUMENT, "features");
  options.features = features;
  EXPECT(kvb_request_create(manager, &options, &other) == KVB_INVALID_ARGUMENT); /* of no length */
  features[1].struct_size = 8;
  features[0].identifier = "i";
  features[0].length = 1;
  EXPECT_FAILS(kvb_request_create(manager, &options, &other), KVB_INVALID_ARGUMENT, "features[1]");

  /* NULL for every handle. */
  EXPECT_FAILS(kvb_manager_get_info(NULL, &manager_info), KVB_INVALID_ARGUMENT, "manager is NULL");
  EXPECT_FAILS(kvb_manager_get_info(manager, NULL), KVB_INVALID_ARGUMENT, "info is NULL");
  EXPECT(kvb_manager_get_group(NULL, 0, &group_info) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_get_pool_stats(NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_take_prefix_stats(NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_start_step(NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_reset_prefix_cache(NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_evict_blocks(NULL, bad_ids, 1) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_pin_blocks(NULL, bad_ids, 1) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_free_blocks(NULL, bad_ids, 1) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_take_copies(NULL, NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_release_copies(NULL, NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_take_new_blocks(NULL, NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_check_invariants(NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_get_block(NULL, 0, &block_info) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_get_free_list(NULL, &blocks, &n) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_manager_take_events(NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_create(NULL, &options, &other) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_create_from_hashes(NULL, NULL, 0, NULL, 0, &other) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_info(NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_append_tokens(NULL, bad_ids, 1) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_append_hashed(NULL, 0, NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_set_num_computed_tokens(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_set_num_inflight_tokens(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_set_status(NULL, KVB_REQUEST_RUNNING) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_set_shared_prefix_boundary(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_lookup(NULL, &hit) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_truncate_hits(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_hits(NULL, 0, &blocks, &n) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_allocate(NULL, &step) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_allocate(request, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_blocks(NULL, 0, &blocks, &n) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_new_blocks(NULL, 0, &blocks, &n) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_free(NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_preempt(NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_pop_blocks(NULL, &blocks, &n) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_cache_blocks(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_remove_skipped_blocks(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_num_common_prefix_blocks(NULL, counts, 1) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_get_block_hash(NULL, 0, 0, &hash) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_explain_json(NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_request_record_admission(NULL, 0) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_events_get(NULL, 0, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_events_get_extra_key(NULL, 0, 0, 0, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_events_get_lookahead_tokens(NULL, 0, 0, NULL, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_events_count(NULL) == 0);
  EXPECT(kvb_plan_json(NULL, 0, NULL, 0, NULL) == KVB_INVALID_ARGUMENT);
  EXPECT(kvb_miss_reason_name(-1) == NULL && kvb_miss_reason_name(31) == NULL);
  kvb_request_destroy(NULL);
  kvb_events_destroy(NULL);
  kvb_manager_destroy(NULL);
  kvb_string_free(NULL);

  EXPECT_OK(kvb_manager_check_invariants(manager));
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
}

static int PlanFails(const char* options, const char* model, kvb_status status, const char* part) {
  char* json = (char*)options; /* set to NULL by a failure */
  return kvb_plan_json(options, strlen(options), model, model == NULL ? 0 : strlen(model), &json) ==
             status &&
         json == NULL && strstr(kvb_last_error(), part) != NULL;
}

/* From a model and a device to a manager. */
static void TestPlan(void) {
  const char kOptions[] =
      "{\"model\": \"gemma-3-27b\", \"device\": \"h200\", \"tensor_parallel\": 2,"
      " \"max_model_len\": 32768, \"lengths\": [4096, 32768]}";
  const char kOwn[] = "{\"available_bytes\": 1073741824, \"max_model_len\": 4096}";
  const char kModel[] =
      "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 4, \"hidden_size\": 4096,"
      " \"intermediate_size\": 12288, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
      " \"head_dim\": 128, \"vocab_size\": 151936, \"torch_dtype\": \"bfloat16\"}";
  char* json = NULL;
  const char* config;
  kvb_manager* manager = NULL;
  kvb_manager_info info = KVB_INIT(kvb_manager_info);
  EXPECT_OK(kvb_plan_json(kOptions, strlen(kOptions), NULL, 0, &json));
  if (json == NULL) return;
  EXPECT(strstr(json, "\"model\":\"gemma-3-27b\"") != NULL &&
         strstr(json, "\"length\":4096") != NULL && strstr(json, "\"concurrency\":") != NULL);
  config = strstr(json, "\"config\":");
  EXPECT(config != NULL);
  if (config != NULL) {
    config += strlen("\"config\":");
    EXPECT_OK(kvb_manager_create(config, strlen(config) - 1, KVB_FORMAT_JSON, &manager));
    EXPECT_OK(kvb_manager_get_info(manager, &info));
    EXPECT(info.max_model_len == 32768 && info.num_groups > 1);
    kvb_manager_destroy(manager);
  }
  kvb_string_free(json);

  EXPECT_OK(kvb_plan_json(kOwn, strlen(kOwn), kModel, strlen(kModel), &json));
  EXPECT(json != NULL && strstr(json, "\"layers\":4") != NULL);
  kvb_string_free(json);

  EXPECT(PlanFails(kOwn, NULL, KVB_INVALID_ARGUMENT, "model: got nothing"));
  EXPECT(PlanFails(kOptions, kModel, KVB_INVALID_ARGUMENT, "one of the two"));
  EXPECT(PlanFails("{\"model\": \"nobody\", \"available_bytes\": 5}", NULL, KVB_NOT_FOUND,
                   "the nearest are"));
  EXPECT(PlanFails("{\"modell\": \"x\"}", NULL, KVB_INVALID_ARGUMENT, "modell"));
  EXPECT(PlanFails("{\"model\": \"llama-3.1-8b\", \"available_bytes\": 5}", NULL,
                   KVB_INVALID_ARGUMENT, "E-1"));
  EXPECT(PlanFails("{\"model\": \"llama-3.1-405b\", \"device\": \"l40s\"}", NULL,
                   KVB_INVALID_ARGUMENT, "no room"));
  EXPECT(PlanFails("{\"model\": \"llama-3.1-8b\"}", NULL, KVB_INVALID_ARGUMENT, "available_bytes"));
  EXPECT(PlanFails("{\"model\": \"llama-3.1-8b\", \"device\": \"h200\", \"policy\": \"best\"}",
                   NULL, KVB_INVALID_ARGUMENT, "exact or upstream"));
  EXPECT(PlanFails("{\"model\": \"llama-3.1-8b\", \"device\": \"h200\", \"lengths\": [0]}", NULL,
                   KVB_INVALID_ARGUMENT, "lengths: got 0"));
  EXPECT(PlanFails(kOwn, "{]", KVB_INVALID_ARGUMENT, "hf_config"));
}

int main(void) {
  EXPECT(strlen(kvb_version()) >= 5 && strchr(kvb_version(), '.') != NULL);
  EXPECT(strcmp(kvb_last_error(), "") == 0);
  EXPECT(strcmp(kvb_status_name(KVB_NO_SPACE), "KVB_NO_SPACE") == 0);
  EXPECT(kvb_status_name(99) != NULL);
  TestLife();
  TestBlocksAndHashes();
  TestNewBlocks();
  TestEvents();
  TestEventsTravelAndAreIndexed();
  TestReusedBlocksAreReported();
  TestExplain();
  TestGrowth();
  TestBadConfigs();
  TestHostileArguments();
  TestPlan();
  printf(num_failures == 0 ? "all passed\n" : "%d failed\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}
