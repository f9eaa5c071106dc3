/* kvblocks/c/kvblocks.h: the KV-cache block manager for programs that are not C++.
 *
 * C99, and valid C++. Link with -lkvblocks_c. A manager is made from a configuration text, a
 * request from tokens or block hashes; a step is look-up, allocate, read the block table:
 *
 *   kvb_manager* manager;
 *   if (kvb_manager_create(text, strlen(text), KVB_FORMAT_TEXT, &manager) != KVB_OK)
 *     die(kvb_last_error());
 *   kvb_request_options options = KVB_INIT(kvb_request_options);
 *   options.token_ids = prompt;
 *   options.num_tokens = prompt_length;
 *   kvb_request* request;
 *   kvb_request_create(manager, &options, &request);
 *   int64_t hit;
 *   kvb_request_lookup(request, &hit);
 *   kvb_allocation step = KVB_INIT(kvb_allocation);
 *   step.num_new_tokens = prompt_length - hit;
 *   step.use_hits = 1;
 *   if (kvb_request_allocate(request, &step) == KVB_NO_SPACE) ...   preempt or wait
 *   kvb_request_get_blocks(request, 0, &table, &length);
 *
 * examples/embed.c is a whole program, docs/c_interface.md says more.
 *
 * Status: every call that can fail returns a kvb_status. KVB_NO_SPACE and KVB_IN_USE mean "not now"
 * and leave no text. Any other failure leaves a text for kvb_last_error(), and nothing has changed.
 *
 * Ownership: what a *_create or *_take call hands out belongs to the caller, who gives it back with
 * the *_destroy call of its type, or kvb_string_free. Destroying NULL does nothing. What goes in is
 * copied. Pointers that a *_get call hands out belong to the library; each call says for how long
 * they are valid. A manager lives until its last request is destroyed.
 *
 * Threads: one thread at a time for a manager and all its requests. Event batches and strings may
 * go to any thread. kvb_last_error() is per thread. Managers are independent of each other.
 *
 * Growth: every struct with a field struct_size may get further fields at its end. KVB_INIT sets
 * the field and zeroes the rest, and zero is the default everywhere. The library takes fields that
 * an older caller does not have as zero, and writes none that the caller has no room for. It
 * refuses a newer caller's input fields that it does not know unless they are zero, and zeroes such
 * output fields. New names of enumerations may be added at their ends.
 *
 * NULL for a handle or for an out parameter is KVB_INVALID_ARGUMENT. A handle that was destroyed
 * must not be used again.
 */

#ifndef KVBLOCKS_C_KVBLOCKS_H_
#define KVBLOCKS_C_KVBLOCKS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVB_API __attribute__((visibility("default")))
#else
#define KVB_API
#endif

/* kvb_allocation step = KVB_INIT(kvb_allocation); */
#ifdef __cplusplus
template <typename Struct>
inline Struct kvb_init_struct() {
  Struct value = Struct();
  value.struct_size = sizeof(Struct);
  return value;
}
#define KVB_INIT(type) kvb_init_struct<type>()
#else
#define KVB_INIT(type) \
  { .struct_size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvb_status {
  KVB_OK = 0,
  KVB_NO_SPACE = 1, /* does not fit now; try again when something was freed */
  KVB_IN_USE = 2,   /* blocks are referenced; try again when they are free */
  KVB_INVALID_ARGUMENT = 3,
  KVB_NOT_FOUND = 4,
  KVB_OUT_OF_MEMORY = 5, /* of the host */
  KVB_INTERNAL = 6       /* a defect of the library, or kvb_manager_check_invariants found one */
} kvb_status;

typedef enum kvb_format {
  KVB_FORMAT_TEXT = 0, /* protobuf text format */
  KVB_FORMAT_JSON = 1
} kvb_format;

typedef enum kvb_request_status {
  KVB_REQUEST_WAITING = 0,
  KVB_REQUEST_RUNNING = 1,
  KVB_REQUEST_PREEMPTED = 2,
  KVB_REQUEST_FINISHED = 3
} kvb_request_status;

typedef enum kvb_event_kind {
  KVB_EVENT_STORED = 0,  /* a run of blocks of one request entered the prefix cache */
  KVB_EVENT_REMOVED = 1, /* a block left it */
  KVB_EVENT_CLEARED = 2  /* the prefix cache was reset */
} kvb_event_kind;

typedef enum kvb_removal_reason {
  KVB_REMOVAL_REUSED = 0,  /* the block was handed out again */
  KVB_REMOVAL_EVICTED = 1, /* kvb_manager_evict_blocks named it */
  KVB_REMOVAL_REPLACED = 2 /* the block holds more of its content now */
} kvb_removal_reason;

typedef enum kvb_extra_key_kind {
  KVB_EXTRA_KEY_LORA = 1,
  KVB_EXTRA_KEY_MULTIMODAL = 2,
  KVB_EXTRA_KEY_SALT = 3,
  KVB_EXTRA_KEY_PROMPT_EMBEDDING = 4
} kvb_extra_key_kind;

typedef struct kvb_manager kvb_manager;
typedef struct kvb_request kvb_request;
typedef struct kvb_events kvb_events;
typedef struct kvb_block_index kvb_block_index;

/* Block ids are int32_t, from 0, the null block, up to num_blocks - 1. Groups count from 0. */

/* The name of a block's content and of all before it. Fixed size. */
typedef struct kvb_hash {
  uint8_t bytes[32];
} kvb_hash;

/* --- Library --- */

/* "MAJOR.MINOR.PATCH". Never freed. */
KVB_API const char* kvb_version(void);
/* What the latest failed call of this thread says: what was wrong, the value, the limit. Empty if
 * none failed. Valid until the thread's next failed call. */
KVB_API const char* kvb_last_error(void);
/* "KVB_NO_SPACE". Never NULL, never freed. */
KVB_API const char* kvb_status_name(int32_t status);
KVB_API void kvb_string_free(char* text);

/* --- Manager --- */

/* The configuration is a KvCacheManagerConfig of specs/config/kv_cache_config.proto, in a
 * kvb_format. It need not end with a zero byte. A refusal names line, column, field, value and
 * limit. */
KVB_API kvb_status kvb_manager_create(const char* config, size_t config_size, int32_t format,
                                      kvb_manager** manager);
KVB_API void kvb_manager_destroy(kvb_manager* manager);

typedef struct kvb_manager_info {
  size_t struct_size;
  int64_t num_blocks; /* null block included */
  int64_t num_groups;
  int64_t scheduler_block_size; /* tokens */
  int64_t hash_block_size;      /* tokens per block hash */
  int64_t hit_alignment;        /* hits end at multiples of it */
  int64_t max_model_len;
  int32_t enable_caching;
  int32_t needs_zeroed_blocks; /* zero a block's memory when a request gets it */
} kvb_manager_info;
KVB_API kvb_status kvb_manager_get_info(const kvb_manager* manager, kvb_manager_info* info);

typedef struct kvb_group_info {
  size_t struct_size;
  const char* kind;   /* "full_attention", ...; never freed */
  int64_t block_size; /* tokens */
  int64_t page_bytes; /* of one block in one layer */
  int64_t num_layers;
  int64_t sliding_window;       /* tokens; 0: none */
  int64_t attention_chunk_size; /* tokens; 0: none */
  int32_t is_draft;
  int32_t reserved; /* 0 */
} kvb_group_info;
KVB_API kvb_status kvb_manager_get_group(const kvb_manager* manager, int32_t group,
                                         kvb_group_info* info);

/* Counts of blocks. */
typedef struct kvb_pool_stats {
  size_t struct_size;
  int64_t num_free; /* unreferenced, cached ones included */
  int64_t num_live; /* referenced */
  int64_t num_cached;
  int64_t num_cached_unreferenced;
  int64_t num_keys;      /* distinct contents that are cached */
  int64_t num_evictions; /* cached blocks lost to reuse, since the manager was made */
  int64_t num_requests_holding_blocks;
  double usage; /* share of the pool that is referenced, 0 to 1 */
} kvb_pool_stats;
KVB_API kvb_status kvb_manager_get_pool_stats(const kvb_manager* manager, kvb_pool_stats* stats);

#define KVB_MAX_MISS_REASONS 32

/* Counts of tokens and requests at admission, since the latest kvb_manager_take_prefix_stats. */
typedef struct kvb_prefix_stats {
  size_t struct_size;
  int64_t requests, queries, hits; /* first admissions; queries and hits in tokens */
  int64_t preempted_requests, preempted_queries, preempted_hits; /* admissions after preemptions */
  int32_t was_reset; /* the prefix cache was reset in between */
  /* Tokens that were not hit, by reason, of the admissions that were recorded with `explain`. */
  int64_t missed[KVB_MAX_MISS_REASONS];
  int64_t preempted_missed[KVB_MAX_MISS_REASONS];
} kvb_prefix_stats;
/* Reads and zeroes the counters. */
KVB_API kvb_status kvb_manager_take_prefix_stats(kvb_manager* manager, kvb_prefix_stats* stats);
/* "evicted" for an index of `missed`; NULL for an index that has no reason. Never freed. */
KVB_API const char* kvb_miss_reason_name(int32_t reason);

/* Call it before the first allocation of every step. It matters to models with Mamba layers. */
KVB_API kvb_status kvb_manager_start_step(kvb_manager* manager);

/* Forgets all cached content. KVB_IN_USE, and nothing changed, while a block is referenced. */
KVB_API kvb_status kvb_manager_reset_prefix_cache(kvb_manager* manager);
/* Takes blocks out of the prefix cache; those in use stay in use. */
KVB_API kvb_status kvb_manager_evict_blocks(kvb_manager* manager, const int32_t* blocks,
                                            size_t num_blocks);
/* Keeps blocks from reuse while something outside reads them, until kvb_manager_free_blocks. */
KVB_API kvb_status kvb_manager_pin_blocks(kvb_manager* manager, const int32_t* blocks,
                                          size_t num_blocks);
/* Frees, in order, what kvb_manager_pin_blocks or kvb_request_pop_blocks kept. */
KVB_API kvb_status kvb_manager_free_blocks(kvb_manager* manager, const int32_t* blocks,
                                           size_t num_blocks);

/* The content of `source` is to be copied to `target` in all layers of the group. Fixed size. */
typedef struct kvb_block_copy {
  int32_t group, source, target;
} kvb_block_copy;
/* With the option partial_hits: the copies to be made, in order, before the next step computes
 * anything. The list is then empty; the array is valid until the next call of this function. Both
 * blocks of a copy stay referenced until kvb_manager_release_copies. */
KVB_API kvb_status kvb_manager_take_copies(kvb_manager* manager, const kvb_block_copy** copies,
                                           size_t* num_copies);
KVB_API kvb_status kvb_manager_release_copies(kvb_manager* manager, const kvb_block_copy* copies,
                                              size_t num_copies);

/* With the option report_new_blocks: the blocks that groups other than Mamba and rings took since
 * the last call, in the order of taking; a block that was freed and taken again stands there twice.
 * The list is then empty; the array is valid until the next call of this function. */
KVB_API kvb_status kvb_manager_take_new_blocks(kvb_manager* manager, const int32_t** blocks,
                                               size_t* num_blocks);

/* KVB_INTERNAL, with what is wrong, unless pool, tables and references agree. O(blocks). */
KVB_API kvb_status kvb_manager_check_invariants(const kvb_manager* manager);

typedef struct kvb_block_info {
  size_t struct_size;
  int32_t ref_count;
  int32_t cached_group; /* group under which the block is cached; -1: not cached */
  kvb_hash hash;        /* if cached */
} kvb_block_info;
KVB_API kvb_status kvb_manager_get_block(const kvb_manager* manager, int32_t block,
                                         kvb_block_info* info);
/* Free blocks in the order of their reuse. Valid until the next call of this function. O(blocks).
 * For debugging. */
KVB_API kvb_status kvb_manager_get_free_list(kvb_manager* manager, const int32_t** blocks,
                                             size_t* num_blocks);

/* --- Requests --- */

/* `length` placeholder tokens from `offset` on stand for an image, a sound, ... that `identifier`
 * names. Features are sorted and do not overlap. */
typedef struct kvb_feature {
  size_t struct_size; /* the same for all elements of an array: their distance */
  const char* identifier;
  int64_t offset;
  int64_t length;
} kvb_feature;

/* Strings end with a zero byte; NULL is the empty string. */
typedef struct kvb_request_options {
  size_t struct_size;
  const char* id; /* for messages; need not be unique */
  const int32_t* token_ids;
  size_t num_tokens;
  /* What else makes the content: requests share blocks only if all of this is equal. */
  const char* lora_name;
  const char* cache_salt;
  const kvb_feature* features;
  size_t num_features;
  int64_t lora_id; /* reported in events if has_lora_id is set */
  int32_t has_lora_id;
  int32_t skip_reading_prefix_cache; /* look-ups give nothing: the prompt must be computed */
  const char* lora_path;  /* of the adapter: under another path lora_name is another content */
  const char* session_id; /* reported in events; NULL: none */
  /* Each look-up with a hit reports the blocks of the hit as KVB_EVENT_STORED. For consumers that
   * want to know what this request could use; one that counts blocks would count them twice. Needs
   * enable_events. */
  int32_t report_reused_blocks;
  int32_t reserved; /* 0 */
} kvb_request_options;
KVB_API kvb_status kvb_request_create(kvb_manager* manager, const kvb_request_options* options,
                                      kvb_request** request);
/* From (num_tokens - L) / hash_block_size block hashes (rounded down) that the caller computed; L
 * is the option num_hash_lookahead_tokens, 0 by default. */
KVB_API kvb_status kvb_request_create_from_hashes(kvb_manager* manager, const char* id,
                                                  int64_t num_tokens, const kvb_hash* hashes,
                                                  size_t num_hashes, kvb_request** request);
/* Frees the request's blocks, too. */
KVB_API void kvb_request_destroy(kvb_request* request);

typedef struct kvb_request_info {
  size_t struct_size;
  int64_t num_tokens; /* prompt and accepted output */
  int64_t num_prompt_tokens;
  int64_t num_computed_tokens;
  int64_t num_inflight_tokens;
  int64_t num_preemptions;
  int64_t num_hit_tokens; /* of the latest look-up */
  /* Of the latest look-up: a longer prefix that other requests share; 0: none. */
  int64_t hit_shared_prefix_boundary;
  int64_t shared_prefix_boundary;
  kvb_request_status status;
  int32_t holds_blocks;
} kvb_request_info;
KVB_API kvb_status kvb_request_get_info(const kvb_request* request, kvb_request_info* info);

/* Accepted output. Of a request made from hashes: kvb_request_append_hashed. */
KVB_API kvb_status kvb_request_append_tokens(kvb_request* request, const int32_t* token_ids,
                                             size_t num_tokens);
/* Hashes of exactly the blocks that the tokens complete. */
KVB_API kvb_status kvb_request_append_hashed(kvb_request* request, int64_t num_tokens,
                                             const kvb_hash* hashes, size_t num_hashes);
/* The scheduler's counters: tokens computed or scheduled, and the part of them whose step has not
 * been processed yet. They are checked by the next kvb_request_allocate. */
KVB_API kvb_status kvb_request_set_num_computed_tokens(kvb_request* request, int64_t num_tokens);
KVB_API kvb_status kvb_request_set_num_inflight_tokens(kvb_request* request, int64_t num_tokens);
/* A kvb_request_status. */
KVB_API kvb_status kvb_request_set_status(kvb_request* request, int32_t status);
/* A prefix that other requests share; blocks around it are kept where caching is sparse. */
KVB_API kvb_status kvb_request_set_shared_prefix_boundary(kvb_request* request, int64_t num_tokens);

/* --- The step --- */

/* Finds the longest cached prefix. The hit is kept in the request for kvb_request_allocate, but
 * pins nothing. Never the whole request: its last token is always computed. */
KVB_API kvb_status kvb_request_lookup(kvb_request* request, int64_t* num_hit_tokens);
/* Shortens the hit to a multiple of every group's block size. */
KVB_API kvb_status kvb_request_truncate_hits(kvb_request* request, int64_t num_tokens);
/* The blocks of the hit in one group, null blocks as 0. Valid until the next look-up of the
 * request. */
KVB_API kvb_status kvb_request_get_hits(const kvb_request* request, int32_t group,
                                        const int32_t** blocks, size_t* num_blocks);

typedef struct kvb_allocation {
  size_t struct_size;
  int64_t num_new_tokens;       /* to compute now, unverified drafts included */
  int64_t num_lookahead_tokens; /* further slots for drafting */
  /* KV that an external store provides behind the hit; only for a request that holds no blocks. */
  int64_t num_external_tokens;
  int64_t reserved_blocks;        /* free blocks that must remain */
  int64_t num_encoder_tokens;     /* for cross attention, in the first call */
  int32_t use_hits;               /* adopt the latest look-up; only for a request without blocks */
  int32_t delay_cache_blocks;     /* register nothing now, but with kvb_request_cache_blocks */
  int32_t full_sequence_must_fit; /* only if all known tokens fit, not only these */
  int32_t has_scheduled_requests; /* the step has work already: the watermark applies */
} kvb_allocation;
/* Slots for the next tokens. KVB_NO_SPACE: it does not fit now. */
KVB_API kvb_status kvb_request_allocate(kvb_request* request, const kvb_allocation* allocation);

/* One group's block table, null blocks as 0: entry i has tokens [i * block_size, (i + 1) *
 * block_size). Empty for a request without blocks. Valid until the next call with this request. */
KVB_API kvb_status kvb_request_get_blocks(const kvb_request* request, int32_t group,
                                          const int32_t** blocks, size_t* num_blocks);
/* The end of the table that the latest kvb_request_allocate added. Valid as above. */
KVB_API kvb_status kvb_request_get_new_blocks(const kvb_request* request, int32_t group,
                                              const int32_t** blocks, size_t* num_blocks);

/* Gives the blocks back. What is cached of them can still be hit. */
KVB_API kvb_status kvb_request_free(kvb_request* request);
/* Free, computed tokens to 0, status preempted, one more preemption. */
KVB_API kvb_status kvb_request_preempt(kvb_request* request);
/* Takes the blocks from the request and keeps them: the tables of all groups in order. Free the
 * reversed list with kvb_manager_free_blocks when nothing reads them any more. Valid until the next
 * call with this request. */
KVB_API kvb_status kvb_request_pop_blocks(kvb_request* request, const int32_t** blocks,
                                          size_t* num_blocks);
/* Registers the blocks of the first num_tokens that delay_cache_blocks held back. */
KVB_API kvb_status kvb_request_cache_blocks(kvb_request* request, int64_t num_tokens);
/* Frees blocks that no token behind the first num_tokens needs, as allocation does by itself. */
KVB_API kvb_status kvb_request_remove_skipped_blocks(kvb_request* request, int64_t num_tokens);

/* --- Questions about a request --- */

/* Per group, the leading blocks that all requests with blocks share. `counts` has room for
 * num_groups values. */
KVB_API kvb_status kvb_request_get_num_common_prefix_blocks(const kvb_request* request,
                                                            int64_t* counts, size_t num_groups);
/* The hash of block `block` of a group's table: what events and connectors name it by. With group
 * -1 that of hash block `block` of the content: what ends of prompts inside a block are named by.
 * KVB_NOT_FOUND if its tokens are not all known, or nothing is hashed. */
KVB_API kvb_status kvb_request_get_block_hash(const kvb_request* request, int32_t group,
                                              int64_t block, kvb_hash* hash);
/* Where the tokens went that a look-up does not hit, as JSON. Call it before kvb_request_allocate.
 * Free the text with kvb_string_free. */
KVB_API kvb_status kvb_request_explain_json(const kvb_request* request, char** json);
/* Counts an admission with the hit of the latest look-up; with `explain` set, also why the other
 * tokens were missed. Call it with `explain` before kvb_request_allocate. */
KVB_API kvb_status kvb_request_record_admission(kvb_request* request, int32_t explain);

/* --- Events --- */

/* What changed in the prefix cache since the last call, in order. Empty unless the option
 * enable_events is set. */
KVB_API kvb_status kvb_manager_take_events(kvb_manager* manager, kvb_events** events);
KVB_API void kvb_events_destroy(kvb_events* events);
KVB_API size_t kvb_events_count(const kvb_events* events);

/* Pointers are valid until kvb_events_destroy. */
typedef struct kvb_event {
  size_t struct_size;
  kvb_event_kind kind;
  int32_t group;
  const char* medium;           /* "GPU" */
  const kvb_hash* block_hashes; /* removed: one; cleared: none */
  size_t num_block_hashes;
  kvb_removal_reason removal_reason; /* removed */
  /* Stored. */
  int32_t has_lora_id;
  const kvb_hash* parent_hash; /* of the content before the run; NULL at token 0 */
  const int32_t* token_ids;    /* num_block_hashes * block_size of them, or none */
  size_t num_tokens;
  int64_t block_size;
  int64_t lora_id;
  const char* lora_name;  /* empty: none */
  const char* spec_kind;  /* "full_attention", ... */
  int64_t sliding_window; /* tokens; 0: none */
  const char* session_id; /* of the request that caused the event; NULL: none */
} kvb_event;
/* KVB_NOT_FOUND for an index past the last event. */
KVB_API kvb_status kvb_events_get(const kvb_events* events, size_t index, kvb_event* event);

/* What besides the tokens makes the content of a block. */
typedef struct kvb_extra_key {
  size_t struct_size;
  kvb_extra_key_kind kind;
  const char* value; /* ends with a zero byte behind value_size bytes */
  size_t value_size;
  int64_t offset; /* multimodal: of the feature, from the block's first token */
} kvb_extra_key;
/* Key number `key` of block number `block` of a stored event; KVB_NOT_FOUND past the last. */
KVB_API kvb_status kvb_events_get_extra_key(const kvb_events* events, size_t index, size_t block,
                                            size_t key, kvb_extra_key* extra_key);

/* The tokens after block number `block` of a stored event that its hash covers
 * (num_hash_lookahead_tokens); KVB_NOT_FOUND past the last block, without lookahead hashes, and for
 * a request without token ids. */
KVB_API kvb_status kvb_events_get_lookahead_tokens(const kvb_events* events, size_t index,
                                                   size_t block, const int32_t** token_ids,
                                                   size_t* num_tokens);

/* --- Events on the wire --- */

/* How a batch travels: docs/events.md has the bytes and the frames around them. */
typedef struct kvb_wire_batch {
  size_t struct_size;
  double timestamp;           /* seconds; engines send Unix time */
  int64_t data_parallel_rank; /* if has_data_parallel_rank is set */
  int32_t has_data_parallel_rank;
  /* Bytes of a hash: 0 is 32; 16 for XXH3. */
  int32_t digest_size;
  int32_t hashes_as_integers; /* of their last 8 bytes, read big-endian */
  int32_t join_removals;      /* consecutive ones as one event; input only */
} kvb_wire_batch;

/* The batch as vLLM 0.33 sends it. Free the bytes with kvb_string_free. */
KVB_API kvb_status kvb_events_encode(const kvb_events* events, const kvb_wire_batch* batch,
                                     char** bytes, size_t* size);
/* The events of such bytes, from anywhere: KVB_INVALID_ARGUMENT says at which byte what is wrong.
 * `batch` is filled in with what came beside the events; it may be NULL. */
KVB_API kvb_status kvb_events_decode(const char* bytes, size_t size, kvb_wire_batch* batch,
                                     kvb_events** events);

/* Which cache holds which block, for routers. One thread at a time. */
KVB_API kvb_status kvb_block_index_create(kvb_block_index** index);
KVB_API void kvb_block_index_destroy(kvb_block_index* index);
/* A cache of its own; numbers count from 0. */
KVB_API kvb_status kvb_block_index_add_holder(kvb_block_index* index, int32_t* holder);
/* KVB_NOT_FOUND for a holder that was not added, as below. */
KVB_API kvb_status kvb_block_index_apply(kvb_block_index* index, int32_t holder,
                                         const kvb_events* events);
/* Nothing is known of the cache any more: its engine was restarted, or messages were lost. */
KVB_API kvb_status kvb_block_index_forget(kvb_block_index* index, int32_t holder);
/* How many leading blocks of a prompt each cache holds, for those that hold the first: the longest
 * first. Writes up to `capacity` holders and their numbers of blocks, and says in `count` how many
 * there are. */
KVB_API kvb_status kvb_block_index_find_prefix(const kvb_block_index* index,
                                               const kvb_hash* hashes, size_t num_hashes,
                                               int32_t group, int32_t* holders,
                                               int64_t* num_blocks, size_t capacity,
                                               size_t* count);

/* --- Planning --- */

/* How much cache a model has on a device, and the configuration for kvb_manager_create, as JSON.
 * `options` is a PlanRequest of c/plan_request.proto as JSON. `hf_config` is the text of a Hugging
 * Face config.json, or NULL if the options name a model of the catalogue. That the model does not
 * fit is KVB_INVALID_ARGUMENT, and the text says what is missing. Free the JSON with
 * kvb_string_free. */
KVB_API kvb_status kvb_plan_json(const char* options, size_t options_size, const char* hf_config,
                                 size_t hf_config_size, char** json);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVBLOCKS_C_KVBLOCKS_H_ */
