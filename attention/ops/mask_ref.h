// MaskRef: a materialised attention mask, kept alive by whoever holds it.
//
// Copies share the storage, which never changes once handed out: a builder that grows makes new
// storage and leaves earlier refs valid.

#ifndef KVBLOCKS_ATTENTION_OPS_MASK_REF_H_
#define KVBLOCKS_ATTENTION_OPS_MASK_REF_H_

#include <cstdint>
#include <memory>

#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

struct MaskRef {
  std::shared_ptr<const void> storage;
  ConstTensorView view;  // [S1, S2], its row stride may be larger than S2
  MaskEncoding encoding = MaskEncoding::kMarker;
  MaskForm form = MaskForm::kNone;

  bool null() const { return form == MaskForm::kNone; }

  // As an operation takes it; `this` must live as long as the result is used.
  ExplicitMask ToExplicit(int32_t sparse_mode, int64_t pre_tokens = kUnlimitedTokens,
                          int64_t next_tokens = kUnlimitedTokens) const {
    ExplicitMask mask;
    mask.tensor = view;
    mask.encoding = encoding;
    mask.form = form;
    mask.sparse_mode = sparse_mode;
    mask.pre_tokens = pre_tokens;
    mask.next_tokens = next_tokens;
    return mask;
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_MASK_REF_H_
