#!/usr/bin/env python3
"""kvsim serve for a while under clients of all manners, while its faults are on and its replicas crash.

  tests/serve/soak.py KVSIM [SECONDS [SEED]]

Clients ask, leave inside answers, reset connections, close halves of them, read slowly or not at all, send slowly, send what
is wrong, empty the caches, and use adapters, salts, priorities and tiers, on three ports. A subscriber of KV events stopped reading.
Every step's state is checked by the server (--check-invariants). What must hold:
 - who waits for an answer gets all of it, or a refusal with a reason; a connection that ends without either was cut by a fault
   that the server counted, or by a crash
 - nobody waits for longer than a minute
 - in the end nothing runs or waits, no block is used, the caches can be emptied, and the process ends well (with a
   sanitizer's build: without a leak)
 - the memory that the process holds does not grow from the second third of the time to the last

SEED draws what clients do; when answers come is the machine's. Exit status: 0 all well, 1 not.
"""

import asyncio
import collections
import json
import logging
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

KVSIM = os.path.abspath(sys.argv[1])
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 600
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
REPLICAS, CLIENTS = 3, 60
WRITE_TIMEOUT = 2
CRASH_SECONDS = 0.5
# Steps long enough for a build with sanitizers, checks included: an engine that is late never
# catches up.
OPTIONS = [f"--replicas={REPLICAS}", "--num-blocks=400", "--max-model-len=4096", "--time=fixed", "--step-time=20ms",
           "--check-invariants", "--policy=priority", "--output-tokens=5-30", "--fault-errors=0.01", "--fault-cuts=0.01",
           f"--fault-seed={SEED}", "--lora=sql=/adapters/sql", "--lora=chat=/adapters/chat", "--tier=host:4GiB:read=20GB/s",
           "--kv-events=tcp://*:0", "--kv-events-replay=tcp://127.0.0.1:0", f"--write-timeout={WRITE_TIMEOUT}s",
           "--head-timeout=1s", "--body-timeout=1s", "--idle-timeout=10s", "--max-connections=200", "--drain=10s"]

outcomes = collections.Counter()
problems = []
crashes = [[] for _ in range(REPLICAS)]  # per replica: [asked for, back again]


class Cut(Exception):
    pass


def problem(text):
    problems.append(text)
    print("PROBLEM:", text, flush=True)


async def read_reply(reader, stop_after=None):
    """Status, body and whether it is whole; the events of a stream only until there are so many."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        if "content-length" in headers:
            return status, await reader.readexactly(int(headers["content-length"]))
        body = b""
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            body += (await reader.readexactly(size + 2))[:-2]
            if size == 0 or (stop_after is not None and body.count(b"data: ") >= stop_after):
                return status, body
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut() from error


def post(path, body, more=b""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n" % (path.encode(), len(data), more) + data


def reset(writer):
    """Ends the connection with a reset instead of an end."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Client:
    def __init__(self, ports, seed, end):
        self.ports, self.end = ports, end
        self.random = random.Random(seed)
        self.open = {}  # kept connections, by replica

    async def connect(self, replica):
        reader, writer, since = self.open.pop(replica, (None, None, 0))
        # The server closes what is idle, and all that it has when it crashes.
        if reader is not None and not reader.at_eof() and not writer.is_closing() and time.time() < since + 5:
            return reader, writer
        if writer is not None:
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.ports[replica])

    def prompt(self):
        # Conversations that others have, too, so that there are hits; and some that nobody has.
        r = self.random
        start = f"conversation {r.randrange(40)} " * r.randrange(1, 60) if r.random() < 0.8 else f"alone {r.random()} "
        return start + "and then " * r.randrange(30)

    def request(self, **more):
        r = self.random
        body = {"max_tokens": r.randrange(1, 40), **more}
        if r.random() < 0.3:
            body["model"] = r.choice(["sql", "chat", "llama-3.1-8b"])
        if r.random() < 0.2:
            body["cache_salt"] = f"salt {r.randrange(5)}"
        if r.random() < 0.2:
            body["priority"] = r.randrange(-3, 4)
        if r.random() < 0.2:
            body["n"] = r.randrange(1, 4)
        if r.random() < 0.2:
            body["ignore_eos"] = True
        if r.random() < 0.3:
            body["messages"] = [{"role": "user", "content": self.prompt()}]
            return "/v1/chat/completions", body
        body["prompt"] = r.choice([self.prompt(), [self.prompt(), self.prompt()],
                                   [r.randrange(100000) for _ in range(r.randrange(1, 300))]])
        return "/v1/completions", body

    # --- Those who wait for an answer ---

    def judge(self, path, body, status, text):
        if status != 200:
            try:
                reason = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                reason = ""
            if not reason:
                problem(f"{path}: {status} without a reason: {text[:200]}")
            return f"refused with {status}"
        if body.get("stream"):
            if text.endswith(b"data: [DONE]\n\n"):
                return "answered by a stream"
            # An answer that fails later says so in the stream.
            problem(f"{path}: a stream ends with {text[-200:]}")
        else:
            usage = json.loads(text)["usage"]
            most = body["max_tokens"] * body.get("n", 1) * (len(body["prompt"]) if self.is_list(body) else 1)
            if 0 < usage["completion_tokens"] <= most:
                return "answered"
            problem(f"{path}: {usage} of {str(body)[:200]}")
        return "wrong"

    @staticmethod
    def is_list(body):
        return isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], str)

    async def ask(self, replica, path, body):
        start = time.time()
        try:
            reader, writer = await self.connect(replica)
        except OSError:
            await asyncio.sleep(0.05)
            return "no connection: crashed" if self.crashed(replica, start) else "no connection"
        try:
            writer.write(post(path, body))
            status, text = await asyncio.wait_for(read_reply(reader), 60)
        except asyncio.TimeoutError:
            problem(f"no answer after a minute: {path} {str(body)[:300]}")
            writer.transport.abort()
            return "none"
        except (Cut, ConnectionError):
            writer.transport.abort()
            return "cut by a crash" if self.crashed(replica, start) else "cut by a fault"
        if status in (200, 400) and self.random.random() < 0.8:
            self.open[replica] = (reader, writer, time.time())
        else:
            writer.close()
        return self.judge(path, body, status, text)

    @staticmethod
    def crashed(replica, start):
        return any(asked <= time.time() and back >= start for asked, back in crashes[replica])

    async def wait(self, replica):
        path, body = self.request(stream=self.random.random() < 0.4)
        return await self.ask(replica, path, body)

    def nonsense(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        return self.random.choice([b"\x16\x03\x01" * 100, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
                                   chunked + b"5;" + b"x" * 50000, chunked + b"0\r\n" + b"x: y\r\n" * 9000,
                                   head + b"Transfer-Encoding: gzip\r\n\r\n", chunked + b"f" * 17 + b"\r\n",
                                   head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"])

    async def send_wrong(self, replica):
        path, body = self.request()
        wrong = self.random.choice([b"{", b"[1, 2", b"\xff" * 50, {**body, "model": "gpt-4"}, {**body, "max_tokens": -1},
                                    {**body, "logprobs": True, "top_logprobs": 1}, {**body, "n": 1000},
                                    {"prompt": "x" * 5000, "max_tokens": 5}, {"messages": "x"}, {"prompt": []},
                                    {"prompt": "x", "max_tokens": 10**9}, [[[]]], None])
        if wrong is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[replica])
            writer.write(self.nonsense())
            await asyncio.wait_for(reader.read(100), 60)
            writer.close()
            return "sent nonsense"
        if not isinstance(wrong, dict):
            start = time.time()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[replica])
                writer.write(post(path, wrong))
                status, text = await asyncio.wait_for(read_reply(reader), 60)
                writer.close()
                return self.judge(path, {}, status, text) if status != 200 else "wrong"
            except (Cut, OSError):
                return "cut by a crash" if self.crashed(replica, start) else "cut by a fault"
        return await self.ask(replica, path, wrong)

    # --- Those who do not ---

    async def go_away(self, replica):
        """Goes before the answer, or inside it."""
        path, body = self.request(stream=True, ignore_eos=True)
        body["max_tokens"] = self.random.randrange(50, 1000)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[replica])
        writer.write(post(path, body))
        how = self.random.choice(["end", "reset", "half"])
        if self.random.random() < 0.6:
            await asyncio.wait_for(read_reply(reader, self.random.randrange(1, 40)), 60)
        else:
            await asyncio.sleep(self.random.random() * 0.05)
        if how == "half":
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 60)
        if how == "reset":
            reset(writer)
        else:
            writer.close()
        return "left: " + how

    async def read_slowly(self, replica):
        """Some take all of it slowly; some nothing, until the server gives up."""
        path, body = self.request(stream=True, ignore_eos=True)
        body.update(max_tokens=2000, n=1)
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.setblocking(False)
            await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self.ports[replica]))
            await asyncio.get_running_loop().sock_sendall(plain, post(path, body))
            if self.random.random() < 0.3:
                await asyncio.sleep(WRITE_TIMEOUT + 1)
                return "read nothing"
            end = time.time() + 5
            while time.time() < end:
                if not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(plain, 2000), 60):
                    break
                await asyncio.sleep(self.random.random() * 0.05)
            return "read slowly"

    async def send_slowly(self, replica):
        """A head or a body that comes in pieces, or never to its end."""
        data = post(*self.request())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[replica])
        stop = self.random.randrange(len(data)) if self.random.random() < 0.5 else len(data)
        for at in range(0, stop, max(1, stop // 10)):
            writer.write(data[at:min(stop, at + max(1, stop // 10))])
            await asyncio.sleep(self.random.random() * 0.15)
        await asyncio.wait_for(reader.read(100), 60)
        writer.close()
        return "sent slowly"

    async def look(self, replica):
        path = self.random.choice(["/metrics", "/health", "/v1/models", "/reset_prefix_cache", "/tokenize", "/none"])
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[replica])
        if path == "/reset_prefix_cache":
            writer.write(post(path, b""))
        elif path == "/tokenize":
            writer.write(post(path, {"prompt": self.prompt()}))
        else:
            writer.write(b"%s %s HTTP/1.1\r\n\r\n" % (self.random.choice([b"GET", b"HEAD"]), path.encode()))
            writer.write_eof() if self.random.random() < 0.1 else None
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        writer.close()
        return "looked at " + path

    async def run(self):
        while time.time() < self.end:
            replica = self.random.randrange(REPLICAS)
            what = self.random.choices([self.wait, self.send_wrong, self.go_away, self.read_slowly, self.send_slowly, self.look],
                                       [70, 5, 15, 2, 2, 6])[0]
            try:
                outcomes[await what(replica)] += 1
            except asyncio.TimeoutError:
                problem(f"{what.__name__} waits for more than a minute")
            except (Cut, OSError, asyncio.IncompleteReadError):
                outcomes[f"{what.__name__}: connection ended"] += 1
        for _, writer, _ in self.open.values():
            writer.close()


async def fetch(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(read_reply(reader), 60)
    finally:
        writer.close()


async def metrics(port):
    _, text = await fetch(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    values = collections.Counter()
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            labels = name.partition("{")[2]
            key = name.partition("{")[0]
            if key in ("kvsim_blocks", "kvsim_http_answers_total"):
                labels = [part for part in labels.rstrip("}").split(",") if part.startswith(("state=", "status="))]
                key += labels[0] if labels else ""
            values[key] += float(value)
    return values


totals = collections.Counter()  # of engines that are gone, and in the end of all


async def crash_now_and_then(ports, end, chance):
    while time.time() < end - 15:
        await asyncio.sleep(chance.uniform(3, 10))
        replica = chance.randrange(1, REPLICAS)  # the first keeps its subscriber
        try:
            before = await metrics(ports[replica])
            interval = [time.time(), float("inf")]
            crashes[replica].append(interval)
            await fetch(ports[replica], post("/kvsim/faults", {"crash_seconds": CRASH_SECONDS,
                                                               "delay_seconds": chance.choice([0, 0, 0.02])}))
            await asyncio.sleep(0.1)
            while True:
                await asyncio.sleep(0.05)
                try:
                    await fetch(ports[replica], b"GET /health HTTP/1.1\r\n\r\n")
                    break
                except (OSError, Cut):
                    continue
            interval[1] = time.time()
        except (OSError, Cut, asyncio.TimeoutError) as error:
            problem(f"a crash: {error!r}")
            continue
        for name in ("kvsim_invariant_checks_total", "kvsim_steps_total", "vllm:num_preemptions_total",
                     "vllm:external_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"):
            totals[name] += before[name]


def stop_subscribing(port):
    """A subscriber by ZMTP 3.0 that takes all topics, and then nothing."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    connection.recv(64, socket.MSG_WAITALL)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    connection.sendall(b"\x04" + bytes([len(ready)]) + ready + b"\x00\x01\x01")
    return connection


def resident_kb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def sample_memory(pid, end, samples):
    while time.time() < end:
        samples.append((time.time(), resident_kb(pid)))
        if len(samples) % 6 == 1:
            print(f"{end - time.time():.0f} s to go, {sum(outcomes.values())} clients so far, {samples[-1][1] // 1024} MiB",
                  flush=True)
        await asyncio.sleep(max(0.2, min(10.0, SECONDS / 30)))


async def look_at_the_end(ports):
    """What is left of each replica when all clients are gone."""
    cuts = 0
    for replica, port in enumerate(ports):
        await fetch(port, post("/kvsim/faults", {"error_rate": 0, "cut_rate": 0, "delay_seconds": 0}))
        deadline = time.time() + 20
        while True:
            m = await metrics(port)
            alive = m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + m['kvsim_blocksstate="used"']
            if alive == 0 or time.time() > deadline:
                break
            await asyncio.sleep(0.1)
        if alive:
            problem(f"replica {replica}: {m['vllm:num_requests_running']:.0f} run, {m['vllm:num_requests_waiting']:.0f} wait, "
                    f"{m['kvsim_blocksstate=' + chr(34) + 'used' + chr(34)]:.0f} blocks are used")
        _, text = await fetch(port, post("/reset_prefix_cache", b""))
        if json.loads(text) != {"success": True}:
            problem(f"replica {replica}: the cache cannot be emptied")
        m = await metrics(port)
        if m['kvsim_blocksstate="used"'] or m['kvsim_blocksstate="cached"']:
            problem(f"replica {replica}: blocks are left")
        if m["kvsim_crashes_total"] != len(crashes[replica]):
            problem(f"replica {replica}: {m['kvsim_crashes_total']:.0f} crashes of {len(crashes[replica])}")
        for name in m:
            if name.startswith("kvsim_http_answers"):
                totals[name] += m[name]
        print(f"replica {replica}: steps were late by {m['kvsim_clock_lag_max_seconds']:.3f} s at most since its last crash")
        for name in ("kvsim_invariant_checks_total", "kvsim_steps_total", "vllm:num_preemptions_total",
                     "vllm:external_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"):
            totals[name] += m[name]
        cuts += m['kvsim_http_answers_totalstatus="0"']
    if outcomes["cut by a fault"] > cuts:
        problem(f"{outcomes['cut by a fault']} connections were cut, but the faults cut {cuts:.0f}")
    if totals["kvsim_invariant_checks_total"] < totals["kvsim_steps_total"] or totals["kvsim_steps_total"] == 0:
        problem("not every step was checked")


async def soak(server, ports):
    chance = random.Random(SEED)
    end = time.time() + SECONDS
    samples = []
    clients = [Client(ports, chance.randrange(1 << 40), end) for _ in range(CLIENTS)]
    await asyncio.gather(*[client.run() for client in clients], crash_now_and_then(ports, end, chance),
                         sample_memory(server.pid, end, samples))
    await look_at_the_end(ports)
    third = SECONDS / 3
    start = end - SECONDS
    second = [kb for at, kb in samples if third <= at - start < 2 * third]
    last = [kb for at, kb in samples if at - start >= 2 * third]
    print(f"resident: at most {max(second) // 1024} MiB in the second third, {max(last) // 1024} MiB in the last")
    if SECONDS < 300:
        print("too short to judge memory by: what servers keep is still filling up")
    elif max(last) > 1.05 * max(second) + 4096:
        problem("memory grows")


def main():
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # of sockets that the server closed
    errors = tempfile.TemporaryFile(mode="w+")
    # A smaller quarantine, whose filling would look like a leak.
    env = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=8:" + os.environ.get("ASAN_OPTIONS", "")}
    server = subprocess.Popen([KVSIM, "serve", "--port=0", *OPTIONS], stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
    ports, events = [], None
    while len(ports) < REPLICAS:
        line = server.stdout.readline()
        if not line:
            errors.seek(0)
            raise SystemExit("kvsim serve did not start: " + errors.read())
        if line.startswith("http://"):
            ports.append(int(line.split()[0].rsplit(":", 1)[1]))
            events = events or int(line.split()[2].rsplit(":", 1)[1])
    subscriber = stop_subscribing(events)
    try:
        asyncio.run(soak(server, ports))
        if b"BlockStored" not in subscriber.recv(4096):
            problem("the subscriber got no events")
    except (OSError, Cut) as error:
        problem(f"the server is gone: {error!r}")
    server.send_signal(signal.SIGTERM)
    try:
        status = server.wait(timeout=60)
    except subprocess.TimeoutExpired:
        server.kill()
        status = "none: it hangs"
    if status != 0:
        problem(f"exit status {status}")
    errors.seek(0)
    text = errors.read()
    if status != 0 or "ERROR" in text or "runtime error" in text:
        print(text[-20000:])
    for what, count in sorted(outcomes.items()):
        print(f"{count:8d} {what}")
    print(f"{SECONDS:.0f} s with seed {SEED}: {sum(outcomes.values())} clients, {sum(map(len, crashes))} crashes")
    for name in sorted(totals):
        print(f"{totals[name]:8.0f} {name}")
    print("all well" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


sys.exit(main())
