#!/usr/bin/env python3
"""kvsim serve under streams, clients that leave, malformed requests and a subscriber of KV events that stopped reading: does
its memory stay flat?

  tools/serve_soak.py KVSIM [--seconds=600] [--every=10] [--clients=8] [--seed=1]

Prints the resident memory every --every seconds, then requests per kind and a verdict: the most of the last third is to be at
most a tenth and 4 MB above the most of the second third. tests/serve/soak.py has crashes and sanitizers. Python's own library is
all it needs. Exit status: 0 flat and every kind of client was there, 1 not.
"""

import argparse
import collections
import json
import random
import socket
import subprocess
import threading
import time

counts = collections.Counter()


def post(path, body):
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def read_to_end(connection, end):
    got = b""
    while end not in got[-100:]:
        piece = connection.recv(65536)
        if not piece:
            break
        got = got[-100:] + piece
    return got


def stop_subscribing(port):
    """A subscriber by ZMTP 3.0 that takes all topics, and then nothing."""
    connection = connect(port)
    connection.setblocking(True)  # so that all of the greeting is waited for
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    connection.recv(64, socket.MSG_WAITALL)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    connection.sendall(b"\x04" + bytes([len(ready)]) + ready + b"\x00\x01\x01")
    return connection


def prompt(draw):
    return f"document {draw.randrange(10**6)} " * draw.randrange(1, 40)


def stream(port, draw):
    with connect(port) as connection:
        connection.sendall(post("/v1/completions", {"prompt": prompt(draw), "max_tokens": draw.randrange(1, 200), "stream": True}))
        return "streamed" if b"[DONE]" in read_to_end(connection, b"0\r\n\r\n") else "stream without an end"


def ask(port, draw):
    with connect(port) as connection:
        connection.sendall(post("/v1/completions", {"prompt": prompt(draw), "max_tokens": 9, "n": draw.randrange(1, 9),
                                                    "stop": ["zz" * 1000, "queue. "]}))
        return "answered" if connection.recv(100).startswith(b"HTTP/1.1 200") else "not answered"


def leave(port, draw):
    with connect(port) as connection:
        connection.sendall(post("/v1/completions", {"prompt": prompt(draw), "max_tokens": 5000, "n": 8, "stream": True}) +
                           b"x" * draw.randrange(3))
        connection.recv(100)
    return "left"


def send_nonsense(port, draw):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    nonsense = draw.choice([b"\x16\x03\x01" * 100, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n", chunked + b"5;" + b"x" * 50000,
                            chunked + b"0\r\n" + b"x: y\r\n" * 9000, head + b"Transfer-Encoding: gzip\r\n\r\n",
                            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", chunked + b"f" * 17 + b"\r\n",
                            post("/v1/completions", {"prompt": "x", "max_tokens": 10**9}), post("/v1/completions", [[[]]])])
    with connect(port) as connection:
        try:
            connection.sendall(nonsense)
            status = connection.recv(12)[9:].decode()
        except ConnectionError:
            status = "reset"
    return f"nonsense, {status}"


def client(port, seed, end):
    draw = random.Random(seed)
    while time.time() < end:
        try:
            counts[draw.choice([stream, ask, ask, leave, send_nonsense])(port, draw)] += 1
        except OSError as error:
            counts[f"failed: {type(error).__name__}"] += 1
            time.sleep(0.1)


def resident_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvsim")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    server = subprocess.Popen([asked.kvsim, "serve", "--port=0", "--time=fixed", "--step-time=5ms", "--num-blocks=2000",
                               "--kv-events=tcp://*:0", "--kv-events-replay=tcp://127.0.0.1:0"],
                              stdout=subprocess.PIPE, text=True)
    line = ""
    while not line.startswith("http://"):
        line = server.stdout.readline()
        if not line:
            return 1
    words = line.split()
    port, events = (int(words[i].rsplit(":", 1)[1]) for i in (0, 2))
    subscriber = stop_subscribing(events)
    start = time.time()
    end = start + asked.seconds
    clients = [threading.Thread(target=client, args=(port, asked.seed * 1000 + i, end)) for i in range(asked.clients)]
    for thread in clients:
        thread.start()
    samples = []
    while time.time() < end and server.poll() is None:
        samples.append((time.time() - start, resident_mb(server.pid)))
        print(f"{samples[-1][0]:6.0f} s {samples[-1][1]:8.1f} MB {sum(counts.values()):8d} requests", flush=True)
        time.sleep(min(asked.every, max(0.1, end - time.time())))
    for thread in clients:
        thread.join()
    is_subscribed = b"BlockStored" in subscriber.recv(4096)
    subscriber.close()
    server.terminate()
    status = server.wait(timeout=60)
    for kind, count in sorted(counts.items()):
        print(f"{count:8d} {kind}")
    third = asked.seconds / 3
    second = max((mb for at, mb in samples if third <= at < 2 * third), default=0)
    last = max((mb for at, mb in samples if at >= 2 * third), default=0)
    is_flat = last <= 1.1 * second + 4 and status == 0
    is_real = is_subscribed and all(counts[kind] > 0 for kind in ("streamed", "answered", "left"))
    print(f"exit status {status}; at most {second:.1f} MB in the second third, {last:.1f} MB in the last: "
          f"{'flat' if is_flat else 'NOT FLAT'}{'' if is_real else ', NOT ALL KINDS OF CLIENTS'}")
    return 0 if is_flat and is_real else 1


raise SystemExit(main())
