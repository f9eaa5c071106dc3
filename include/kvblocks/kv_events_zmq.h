// kvblocks/kv_events_zmq.h: KV events over ZeroMQ, as vLLM's servers and routers speak it.
//
//   EventPublisher   engines hand it their events after each step; it never makes them wait
//   EventSubscriber  routers receive from it, in order; it asks for what is missing, and keeps the
//                    index block key -> holders
//
//   auto publisher = events::EventPublisher::Create({.endpoint = "tcp://*:5557",
//                                                    .replay_endpoint = "tcp://*:5558"});
//   (*publisher)->Publish(manager->TakeEvents());
//
// The only part of the library that needs ZeroMQ; the header itself does not. docs/events.md has the
// rules of the wire.

#ifndef KVBLOCKS_KV_EVENTS_ZMQ_H_
#define KVBLOCKS_KV_EVENTS_ZMQ_H_

#include "kvblocks/events/zmq/event_publisher.h"
#include "kvblocks/events/zmq/event_subscriber.h"
#include "kvblocks/kv_events.h"

#endif  // KVBLOCKS_KV_EVENTS_ZMQ_H_
