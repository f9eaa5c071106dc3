/* A request in plain C99. Prints the version of the library that it runs with. */
#include <stdio.h>
#include <string.h>

#include "kvblocks/c/kvblocks.h"
#include "kvblocks/version.h"

static const char kConfig[] =
    "cache { num_blocks: 100 groups { num_layers: 1 spec { full_attention {"
    "  block_size: 16 num_kv_heads: 8 head_size: 128 dtype: \"bf16\" } } } }"
    "options { max_model_len: 8192 }";

int main(void) {
  kvb_manager* manager = NULL;
  kvb_request* request = NULL;
  kvb_request_options options = KVB_INIT(kvb_request_options);
  kvb_allocation step = KVB_INIT(kvb_allocation);
  const int32_t prompt[] = {3, 1, 4, 1, 5};
  const int32_t* table = NULL;
  size_t length = 0;
  int64_t hit = -1;

  options.id = "first";
  options.token_ids = prompt;
  options.num_tokens = 5;
  step.num_new_tokens = 5;
  if (kvb_manager_create(kConfig, strlen(kConfig), KVB_FORMAT_TEXT, &manager) != KVB_OK ||
      kvb_request_create(manager, &options, &request) != KVB_OK ||
      kvb_request_lookup(request, &hit) != KVB_OK ||
      kvb_request_allocate(request, &step) != KVB_OK ||
      kvb_request_get_blocks(request, 0, &table, &length) != KVB_OK) {
    fprintf(stderr, "c_interface: %s\n", kvb_last_error());
    return 1;
  }
  printf("c_interface: %s, %d block(s), %d hit\n", kvb_version(), (int)length, (int)hit);
  kvb_request_destroy(request);
  kvb_manager_destroy(manager);
  return length == 1 && hit == 0 && strcmp(kvb_version(), KVBLOCKS_VERSION) == 0 ? 0 : 1;
}
