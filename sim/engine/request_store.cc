#include "sim/engine/request_store.h"

#include <utility>

#include "kvblocks/check.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

SimRequest* RequestStore::Add(TraceRequest spec) {
  int32_t slot;
  if (spare_slots_.empty()) {
    slot = static_cast<int32_t>(requests_.size());
    requests_.push_back(std::make_unique<SimRequest>());
  } else {
    slot = spare_slots_.back();
    spare_slots_.pop_back();
  }
  ++num_live_;
  SimRequest* request = requests_[static_cast<size_t>(slot)].get();
  request->slot = slot;
  request->num_prompt = request->num_known = spec.input_length;
  request->max_output = spec.output_length;
  request->spec = std::move(spec);
  spec_bytes_ += BytesOf(request->spec);
  return request;
}

void RequestStore::Restart(SimRequest* request) {
  SimRequest fresh;
  fresh.slot = request->slot;
  fresh.num_prompt = fresh.num_known = request->num_prompt;
  fresh.max_output = request->max_output;
  fresh.arrival = request->arrival;
  fresh.resent = request->resent;
  fresh.session_key = request->session_key;
  fresh.spec = std::move(request->spec);
  *request = std::move(fresh);
}

void RequestStore::Remove(SimRequest* request) {
  const int32_t slot = request->slot;
  KVBLOCKS_CHECK(slot >= 0 && requests_[static_cast<size_t>(slot)].get() == request,
                 "request " + request->spec.id + " is not in this store");
  spec_bytes_ -= BytesOf(request->spec);
  *request = SimRequest();
  spare_slots_.push_back(slot);
  --num_live_;
}

}  // namespace kvblocks::sim
