"""KV events between kvsim and vLLM's own classes; tools/kv_events_test.sh runs it.

  with_vllm.py KVSIM

Ours to theirs: vLLM's KVEventBatch decodes what kvsim publishes, live and replayed, and writes the same bytes again.
Theirs to ours: kvsim events receives what vLLM's ZmqEventPublisher sends, with subscribers that come late, are killed
and come back, and a publisher that is started anew.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import msgspec
import zmq
from vllm.distributed.kv_events import (AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch,
                                        ZmqEventPublisher)

KVSIM = sys.argv[1]
RUN = ["--num-blocks=2000", "--quiet"]
decoder = msgspec.msgpack.Decoder(KVEventBatch)
encoder = msgspec.msgpack.Encoder()
passed = failed = 0
work = tempfile.mkdtemp()


def check(what, condition, detail=""):
  global passed, failed
  if condition:
    passed += 1
    print("ok", what)
  else:
    failed += 1
    print("FAILED", what, detail)


def start_replay(*options):
  process = subprocess.Popen([KVSIM, "replay", *RUN, "--events=tcp://127.0.0.1:*",
                              "--events-replay=tcp://127.0.0.1:*", *options], stderr=subprocess.PIPE, text=True)
  line = process.stderr.readline()
  endpoint, replay = re.match(r"KV events: (\S+), replay (\S+)", line).groups()
  return process, endpoint, replay


def ask(context, replay, start):
  """What a replay socket answers, as vLLM's clients ask: (number, payload) until the end mark."""
  socket = context.socket(zmq.DEALER)
  socket.connect(replay)
  socket.send_multipart([b"", start.to_bytes(8, "big")])
  got = []
  while True:
    if not socket.poll(20000):
      raise TimeoutError("no answer")
    empty, topic, number, payload = socket.recv_multipart()
    assert empty == b"", empty
    number = int.from_bytes(number, "big", signed=True)
    if number == -1:
      socket.close()
      return got
    got.append((number, payload))


def ours_to_theirs():
  context = zmq.Context()
  process, endpoint, replay = start_replay("--events-topic=kv@kvsim", "--events-subscribers=1", "--events-linger=20s")
  socket = context.socket(zmq.SUB)
  socket.setsockopt(zmq.RCVHWM, 0)
  socket.setsockopt_string(zmq.SUBSCRIBE, "kv@")
  socket.connect(endpoint)
  live = []
  while socket.poll(3000):
    topic, number, payload = socket.recv_multipart()
    live.append((int.from_bytes(number, "big"), payload))
  check("numbers from 0 without a gap", [n for n, _ in live] == list(range(len(live))) and len(live) > 1000, len(live))
  check("the topic", topic == b"kv@kvsim", topic)
  batches = [decoder.decode(payload) for _, payload in live]
  events = [event for batch in batches for event in batch.events]
  check(f"vLLM decodes {len(batches)} batches with {len(events)} events", len(events) >= len(batches))
  check("vLLM's encoder writes the same bytes", all(encoder.encode(b) == p for b, (_, p) in zip(batches, live)))
  counts = {}
  for event in events:
    for digest in getattr(event, "block_hashes", []):
      key = (digest, event.group_idx)
      counts[key] = counts.get(key, 0) + (1 if isinstance(event, BlockStored) else -1)
      assert len(digest) == 32
  held = [count for count in counts.values() if count > 0]
  check("what they leave in the cache fits the pool", min(counts.values()) == 0 and 0 < sum(held) < 2000, sum(held))
  buffered = ask(context, replay, 0)
  check("a replay gives the last 10,000 batches or all", buffered == live[-10000:], len(buffered))
  middle = live[len(live) // 2][0]
  check("a replay from the middle", ask(context, replay, middle) == live[middle:])
  check("a replay from beyond the end is empty", ask(context, replay, len(live)) == [])
  late = context.socket(zmq.REQ)
  late.connect(replay)
  late.send((5).to_bytes(8, "big"))
  check("a REQ client sees the first reply", late.poll(20000) and late.recv_multipart()[1] == (5).to_bytes(8, "big"))
  socket.close(0)
  late.close(0)
  process.terminate()
  process.wait()
  return len(live)


class Listener(subprocess.Popen):
  """kvsim events; its output goes to a file, since nothing reads it during the run."""

  def __init__(self, endpoint, replay, *options):
    self.path = os.path.join(work, f"{time.monotonic_ns()}.out")
    with open(self.path, "w", encoding="utf-8") as out:
      super().__init__([KVSIM, "events", endpoint, f"--replay={replay}", *options], stdout=out)

  def text(self):
    self.wait()
    with open(self.path, encoding="utf-8") as out:
      return out.read()


def their_batch(i):
  """Events as vLLM's managers make them: growing chains, removals of what was stored."""
  digest = lambda n: n.to_bytes(32, "little")
  events = [BlockStored(block_hashes=[digest(2 * i), digest(2 * i + 1)], parent_block_hash=None,
                        token_ids=list(range(i, i + 32)), block_size=16, lora_id=None, medium="GPU", lora_name=None,
                        extra_keys=[("salt",), None], group_idx=0, kv_cache_spec_kind="full_attention",
                        session_id="s" if i % 3 == 0 else None)]
  if i >= 100 and not 700 <= i <= 800:
    events.append(BlockRemoved(block_hashes=[digest(2 * (i - 100)), digest(2 * (i - 100) + 1)], medium="GPU", group_idx=0))
  if i == 700:
    events = [AllBlocksCleared()]
  return KVEventBatch(ts=time.time(), events=events)


def as_json(batch):
  """Events as `kvsim events --json` prints them: the fields of the wire, one hash per removal."""
  plain = json.loads(json.dumps(msgspec.msgpack.decode(encoder.encode(batch)), default=bytes.hex))
  return [event | {"block_hashes": [digest]} if digest else event for event in plain[1]
          for digest in (event["block_hashes"] if event["type"] == "BlockRemoved" else [None])]


def free_port():
  socket = zmq.Context.instance().socket(zmq.REP)
  port = socket.bind_to_random_port("tcp://127.0.0.1")
  socket.close(0)
  time.sleep(0.1)
  return port


def theirs_to_ours():
  ports = free_port(), free_port()
  endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
  make = lambda: ZmqEventPublisher(0, endpoint=f"tcp://*:{ports[0]}", replay_endpoint=f"tcp://*:{ports[1]}", topic="kv")
  record = os.path.join(work, "vllm.kvlog")
  publisher = make()
  early = Listener(endpoint, replay, f"--record={record}", "--for=60s", "--batches=900")
  killed = Listener(endpoint, replay, "--for=60s")
  time.sleep(1.5)
  for i in range(600):
    publisher.publish(their_batch(i))
    if i == 300:
      killed.send_signal(signal.SIGKILL)
    if i % 50 == 0:
      time.sleep(0.02)
  back = Listener(endpoint, replay, "--for=60s", "--batches=900")
  time.sleep(1.5)
  for i in range(600, 900):
    publisher.publish(their_batch(i))
    if i % 50 == 0:
      time.sleep(0.02)
  late = Listener(endpoint, replay, "--for=60s", "--batches=900")
  for name, process in [("from the start", early), ("after it was killed", back), ("late", late)]:
    out = process.text()
    check(f"a subscriber {name} has all of vLLM's 900 batches, and they fit",
          process.returncode == 0 and "900 batches with" in out and " 0 lost at 0 places" in out and "consistent" in out,
          out)
  check("the late one had them replayed", re.search(r"\n +(9\d\d|[1-8]\d\d) replayed", out), out)
  again = subprocess.run([KVSIM, "events", record], capture_output=True, text=True, check=False)
  check("the record says the same", "900 batches with" in again.stdout and "consistent" in again.stdout, again.stdout)
  text = subprocess.run([KVSIM, "events", record, "--json"], capture_output=True, text=True, check=False).stdout
  batches = [line for line in map(json.loads, text.splitlines()) if line["type"] == "batch"]
  check("as JSON it says what was published",
        [line["sequence"] for line in batches] == list(range(900)) and
        [line["events"] for line in batches] == [as_json(their_batch(i)) for i in range(900)], text[:1500])
  # An engine that is started anew counts from 0.
  listener = Listener(endpoint, replay, "--for=15s", "--show")
  time.sleep(1.5)
  publisher.shutdown()
  time.sleep(0.5)
  publisher = make()
  time.sleep(1.5)
  for i in range(20):  # slowly: who is not connected again yet hears of the rest and asks for the beginning
    publisher.publish(their_batch(i))
    time.sleep(0.25)
  out = listener.text()
  publisher.shutdown()
  check("a restart is seen, and the cache is learnt anew",
        "the engine was started anew" in out and "1 restart" in out and "40 blocks with 40 keys" in out, out[-1500:])


ours_to_theirs()
theirs_to_ours()
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
