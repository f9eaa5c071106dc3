/* Two requests that share a prompt, through the C interface. */
#include <stdio.h>
#include <string.h>

#include "kvblocks/c/kvblocks.h"

static const char kConfig[] =
    "cache {\n"
    "  num_blocks: 1000\n"
    "  groups {\n"
    "    num_layers: 32\n"
    "    spec { full_attention { block_size: 16 num_kv_heads: 8 head_size: 128 dtype: \"bf16\" } "
    "}\n"
    "  }\n"
    "}\n"
    "options { max_model_len: 8192 }\n";

static int Fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kvb_last_error());
  return 1;
}

/* Look-up, slots for the whole prompt, the block table. */
static int Prefill(kvb_manager* manager, const char* id, const int32_t* prompt, size_t n) {
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_allocation step = KVB_INIT(kvb_allocation);
  kvb_request* request;
  const int32_t* table;
  int64_t hit;
  size_t length, i;

  options.id = id;
  options.token_ids = prompt;
  options.num_tokens = n;
  if (kvb_request_create(manager, &options, &request) != KVB_OK) return Fail(id);

  /* What is cached already need not be computed. */
  if (kvb_request_lookup(request, &hit) != KVB_OK) return Fail(id);
  step.num_new_tokens = (int64_t)n - hit;
  step.use_hits = 1;
  switch (kvb_request_allocate(request, &step)) {
    case KVB_OK:
      break;
    case KVB_NO_SPACE: /* wait, or preempt another request */
      return 1;
    default:
      return Fail(id);
  }
  kvb_request_set_num_computed_tokens(request, (int64_t)n);

  kvb_request_get_blocks(request, /*group=*/0, &table, &length);
  printf("%s: %d tokens hit, block table", id, (int)hit);
  for (i = 0; i < length; ++i) printf(" %d", (int)table[i]);
  printf("\n");
  kvb_request_destroy(request); /* frees its blocks; the full ones stay cached */
  return 0;
}

int main(void) {
  kvb_manager* manager;
  int32_t prompt[100];
  int32_t i;
  int failed;
  for (i = 0; i < 100; ++i) prompt[i] = i;
  if (kvb_manager_create(kConfig, strlen(kConfig), KVB_FORMAT_TEXT, &manager) != KVB_OK) {
    return Fail("the configuration");
  }
  failed = Prefill(manager, "first", prompt, 100) || Prefill(manager, "second", prompt, 100);
  kvb_manager_destroy(manager);
  return failed;
}
