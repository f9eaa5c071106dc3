// kvblocks/kv_events.h: KV events outside of the process that they come from - the bytes in which
// vLLM sends them, and what a router makes of them.
//
// This header offers:
//   codec   EncodeEvents, DecodeEvents: KvEvents as MessagePack, byte for byte as vLLM 0.33 has them
//   index   BlockIndex: which cache holds which block, and how much of a prompt each could reuse
//   check   StreamCheck: whether a stream is one that a cache can have sent, and what it could hit
//   log     EventLogReader, AppendToLog: recorded streams
//
//   std::string payload;
//   EncodeEvents(manager->TakeEvents(), {.timestamp = now}, &payload);
//   ...
//   auto batch = DecodeEvents(payload);
//   if (batch.ok()) index.Apply(replica, batch->events);
//
// It needs no network library. kvblocks/kv_events_zmq.h has the sockets: a publisher that engines
// hand their events to, and a subscriber. docs/events.md has the whole of it.

#ifndef KVBLOCKS_KV_EVENTS_H_
#define KVBLOCKS_KV_EVENTS_H_

#include "kvblocks/block_pool/kv_event.h"
#include "kvblocks/events/block_index.h"
#include "kvblocks/events/event_batch.h"
#include "kvblocks/events/event_codec.h"
#include "kvblocks/events/event_log.h"
#include "kvblocks/events/stream_check.h"

#endif  // KVBLOCKS_KV_EVENTS_H_
