#!/usr/bin/env python3
"""Starts kvsim serve on free ports and talks to it with Python's own library: the end points, streams, caches, limits, faults,
and the gentle end.

  sim/serve_test.py PATH-OF-KVSIM
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KVSIM = os.path.abspath(sys.argv[1])
FAST = ["--port=0", "--time=fixed", "--step-time=1ms"]
failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print("FAIL:", what, file=sys.stderr)


class Server:
    def __init__(self, *options, env=None, blocks=2000):
        self.process = subprocess.Popen([KVSIM, "serve", *FAST, f"--num-blocks={blocks}", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={**os.environ, **(env or {})})
        self.ports, self.lines = [], []
        wanted = next((int(o.split("=")[1]) for o in options if o.startswith("--replicas=")), 1)
        while len(self.ports) < wanted:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("kvsim serve did not start: " + self.process.stderr.read())
            self.lines.append(line.rstrip())
            if line.startswith("http://"):
                self.ports.append(int(line.split()[0].rsplit(":", 1)[1]))

    def ask(self, path, body=None, headers=None, replica=0, method=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=30)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method or ("GET" if data is None else "POST"), path, data,
                           {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    def json(self, path, body=None, **more):
        status, text = self.ask(path, body, **more)
        check(status == 200, f"{path}: {status} {text[:200]}")
        return json.loads(text)

    def events(self, path, body):
        status, text = self.ask(path, {**body, "stream": True})
        check(status == 200, f"{path}: {status} {text[:200]}")
        lines = [part[len("data: "):] for part in text.split("\n\n") if part]
        check(lines[-1] == "[DONE]", f"{path}: a stream ends with {lines[-1]}")
        return [json.loads(line) for line in lines[:-1]]

    def metric(self, name):
        for line in self.ask("/metrics")[1].splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        check(False, f"no metric {name}")
        return -1

    def blocks(self, state):
        lines = [line for line in self.ask("/metrics")[1].splitlines() if line.startswith("kvsim_blocks{")]
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if f'state="{state}"' in line)

    def end(self, expected=0):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "none: it hangs"
        check(status == expected, f"exit status {status}: {self.process.stderr.read()[-500:]}")


def wait_for(condition, what):
    deadline = time.time() + 10
    while not condition():
        if time.time() > deadline:
            check(False, what)
            return
        time.sleep(0.01)


def test_api(server):
    prompt = "Once upon a time there was a block of sixteen tokens. " * 4
    asked = {"model": "llama-3.1-8b", "prompt": prompt, "max_tokens": 40}
    first = server.json("/v1/completions", asked)
    check(first["usage"]["prompt_tokens"] == len(prompt), "a byte is a token")
    check(first["usage"]["completion_tokens"] == 40, "as many tokens as asked for")
    check(len(first["choices"][0]["text"]) == 40, "a byte of text per token")
    check(first["choices"][0]["finish_reason"] == "length", "finish_reason of a limit")
    check(first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "nothing is cached at first")
    again = server.json("/v1/completions", asked)
    check(again["choices"][0]["text"] == first["choices"][0]["text"], "the same prompt has the same answer")
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(cached == (len(prompt) - 1) // 16 * 16, f"all full blocks are cached, got {cached}")
    longer = server.json("/v1/completions", {**asked, "prompt": prompt + first["choices"][0]["text"] + "?"})
    cached = longer["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(cached >= len(prompt) // 16 * 16 + 16, f"an answer is cached as its text, got {cached}")
    salted = server.json("/v1/completions", {**asked, "cache_salt": "s"})
    check(salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "a salt separates")
    adapted = server.json("/v1/completions", {**asked, "model": "sql"})
    check(adapted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "an adapter separates")
    check(adapted["model"] == "sql", "the adapter's name comes back")

    events = server.events("/v1/completions", {**asked, "stream_options": {"include_usage": True}})
    text = "".join(event["choices"][0]["text"] for event in events[:-1])
    check(text == first["choices"][0]["text"], "a stream has the same text")
    check(len(events) == 41, f"an event per token and the usage, got {len(events)}")
    check(events[-1]["usage"]["completion_tokens"] == 40, "the usage of a stream")

    both = server.json("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "echo": True})
    check([c["index"] for c in both["choices"]] == [0, 1, 2, 3], "n answers per prompt")
    check(both["choices"][2]["text"].startswith("two"), "echo repeats the prompt")
    check(both["usage"]["completion_tokens"] == 12, "the usage of all answers")
    check(both["usage"]["prompt_tokens"] == 6, "prompts count once")

    stopped = server.json("/v1/completions", {"prompt": "x", "max_tokens": 500, "stop": ". "})
    check(stopped["choices"][0]["finish_reason"] == "stop", "a stop text ends an answer")
    check(". " not in stopped["choices"][0]["text"], "a stop text is not shown")

    named = server.json("/v1/completions", {"prompt": "x", "max_tokens": 1, "request_id": "mine"})
    check(named["id"] == "cmpl-mine", f"a request's own id, got {named['id']}")
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    answer = server.json("/v1/chat/completions", chat)
    check(answer["choices"][0]["finish_reason"] == "stop", "a chat without a limit ends by itself")
    check(answer["usage"]["completion_tokens"] == 128, "after 128 tokens")
    events = server.events("/v1/chat/completions", {**chat, "max_tokens": 5})
    check(events[0]["choices"][0]["delta"]["role"] == "assistant", "the first delta has the role")
    check(len("".join(e["choices"][0]["delta"]["content"] for e in events)) == 5, "the deltas of a chat")

    tokens = server.json("/tokenize", {"prompt": "h\u00e9"})
    check(tokens["tokens"] == [104, 195, 169] and tokens["count"] == 3, "tokenize")
    tokens = server.json("/tokenize", chat)
    check(bytes(tokens["tokens"]) == b"<|user|>\nhello\n<|assistant|>\n", f"messages are one text, got {tokens}")
    check(server.json("/detokenize", {"tokens": [104, 195, 169]})["prompt"] == "h\u00e9", "detokenize")
    by_ids = server.json("/v1/completions", {"prompt": list(range(1000, 1040)), "max_tokens": 1})
    check(by_ids["usage"]["prompt_tokens"] == 40, "token ids are taken as they are")

    models = server.json("/v1/models")["data"]
    check([m["id"] for m in models] == ["llama-3.1-8b", "sql"], "the models")
    check(server.json("/v1/models/sql")["id"] == "sql", "one model")
    check(server.ask("/health")[0] == 200, "health")
    check(server.json("/version")["version"].startswith("0.33.0+kvsim."), "version")
    check(server.metric("vllm:request_success_total") >= 1, "finished requests are counted")
    check(server.metric("vllm:num_requests_running") == 0, "nothing runs")
    check(server.metric("vllm:lora_requests_info") > 1e9, "adapters have a line")
    status, text = server.ask("/metrics", headers={"Accept": "application/openmetrics-text"})
    check(text.endswith("# EOF\n"), "OpenMetrics where it is asked for")
    check(server.blocks("cached") > 0, "the cache holds something")
    check(server.json("/reset_prefix_cache", b"")["success"], "the cache is emptied")
    check(server.blocks("cached") == 0, "the metrics know it at once")
    emptied = server.json("/v1/completions", asked)
    check(emptied["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "and holds nothing then")


def test_refusals(server):
    for path, body, status, text in [
            ("/v1/completions", {"prompt": "a", "model": "gpt-4"}, 404, "`gpt-4` does not exist"),
            ("/v1/completions", b"{", 400, "no JSON"),
            ("/v1/completions", {"prompt": "a", "max_tokens": "x"}, 400, "max_tokens"),
            ("/v1/completions", {"prompt": "a", "priority": 1}, 400, "--policy=priority"),
            ("/v1/completions", {"prompt": "a" * 4000, "max_tokens": 40000}, 400, "maximum context length"),
            ("/v1/completions", {"prompt": ""}, 400, "empty"),
            ("/v1/chat/completions", {"prompt": "a"}, 400, "messages"),
            ("/v1/chat/completions", {"messages": [{"role": "user"}], "chat_template": "{{ x }}"}, 400, "chat_template"),
            ("/tokenize", {"messages": [{"role": "user"}], "continue_final_message": True}, 400, "continue_final_message"),
            ("/v1/embeddings", {"input": "a"}, 404, "/v1/embeddings"),
            ("/kvsim/faults", {"x": 1}, 400, "no fault"),
            ("/v1/completions", b" " * 70000, 413, "65536 bytes")]:
        got, reply = server.ask(path, body)
        check(got == status and text in reply, f"{path} {str(body)[:60]}: {got} {reply[:200]}")
        check("error" in json.loads(reply), f"{path}: an error's body")
    check(server.ask("/v1/completions", method="GET")[0] == 405, "a wrong method")
    check(server.ask("/v1/completions", method="HEAD") == (405, ""), "HEAD where POST is expected")
    for path in ("/metrics", "/health"):
        check(server.ask(path, method="HEAD") == (200, ""), f"HEAD {path}")


def raw(server, data, wait=True):
    """What the server answers to these bytes until it closes."""
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=20) as connection:
        connection.sendall(data)
        got = b""
        while wait:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            got += piece
        return got


def test_bad_clients(server):
    check(b"400" in raw(server, b"NONSENSE\r\n\r\n")[:20], "no HTTP is refused")
    flood = b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(500))
    check(b"431" in raw(server, flood + b"\r\n")[:20], "a flood of headers is refused")
    start = time.time()
    check(raw(server, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{") == b"", "a slow body is closed")
    check(raw(server, b"GET /hea") == b"", "a slow head is closed")
    check(time.time() - start < 10, "in time")
    big = raw(server, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
    check(b"413" in big[:20], "a huge body is refused before it is sent")
    chunked = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b" " * 65536 + b"\r\n"
    check(b"413" in raw(server, chunked + b"10000\r\n" + b" " * 65536 + b"\r\n0\r\n\r\n")[:20], "a huge chunked body is refused")
    # What follows an answer without a body is the next answer.
    got = raw(server, b"HEAD /v1/models HTTP/1.1\r\n\r\nHEAD /none HTTP/1.1\r\n\r\n")
    check([part.split(b" ", 1)[0] for part in got.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404"] and
          got.endswith(b"\r\n\r\n"), f"HEAD gets no body, got {got!r}")
    old = raw(server, b'POST /v1/completions HTTP/1.0\r\nContent-Length: 42\r\n\r\n{"prompt":"a","max_tokens":2,"stream":true}')
    check(b"chunked" not in old and old.count(b"data: ") == 0 or b"[DONE]" in old, "HTTP/1.0 gets a stream without chunks")
    two = b'POST /tokenize HTTP/1.1\r\nContent-Length: 14\r\n\r\n{"prompt":"a"}' * 2
    got = raw(server, two + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    check(got.count(b"HTTP/1.1 200") == 3, f"requests may follow each other at once, got {got!r}")
    opened = [socket.create_connection(("127.0.0.1", server.ports[0])) for _ in range(8)]
    time.sleep(0.1)
    check(b"503" in raw(server, b"GET /health HTTP/1.1\r\n\r\n")[:20], "too many connections are refused")
    for connection in opened:
        connection.close()
    wait_for(lambda: b"200" in raw(server, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[:20],
             "connections are taken again")


def request(body, more=b"", path=b"/v1/completions"):
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n%s\r\n" % (path, len(data), more) + data


def test_framing(server):
    """What two servers could read in two ways ends the connection, and lines have limits."""
    head = b"POST /tokenize HTTP/1.1\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    inner = b"GET /health HTTP/1.1\r\n\r\n"
    long = b"x" * 300000
    for what, data, status in [
            ("an unknown coding", head + b"Transfer-Encoding: gzip\r\n\r\n" + inner, b"501"),
            ("a coding before chunks", head + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + inner, b"501"),
            ("chunks that are not last", head + b"Transfer-Encoding: chunked, identity\r\n\r\n" + inner, b"501"),
            ("two codings", head + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner, b"400"),
            ("chunks in HTTP/1.0", b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
            ("a length and chunks", head + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner, b"400"),
            ("two lengths", head + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + inner, b"400"),
            ("a negative length", head + b"Content-Length: -3\r\n\r\nabc" + inner, b"400"),
            ("a length that overflows", head + b"Content-Length: 18446744073709551619\r\n\r\nabc" + inner, b"4"),
            ("a chunk that overflows", chunked + b"10000000000000003\r\nabc\r\n0\r\n\r\n" + inner, b"4"),
            ("two hosts", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + inner, b"400"),
            ("bare line feeds", b"GET /health HTTP/1.1\nHost: a\n\n" + inner, b"400"),
            ("a long chunk size", chunked + b"0" * 300000, b"431"),
            ("a long chunk extension", chunked + b"1;" + long, b"431"),
            ("long trailers", chunked + b"0\r\n" + b"a: b\r\n" * 50000, b"431"),
            ("many fields", b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n" + inner, b"431")]:
        got = raw(server, data)
        answers = re.findall(rb"HTTP/1\.[01] (\d+)", got)
        check(len(answers) == 1 and answers[0].startswith(status), f"{what}: {answers} of {got[:200]!r}")
    got = raw(server, chunked + b'd;a=b\r\n{"prompt":"a"\r\n1\r\n}\r\n0\r\na: b\r\n\r\n' + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    check(got.count(b"HTTP/1.1 200") == 2, f"chunks, extensions and trailers are taken, got {got!r}")
    # Fields that come one by one count together: of each packet the last byte begins the next field.
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"GET /health HTTP/1.1\r\nx")
        for _ in range(10):
            connection.sendall(b": " + b"y" * 4000 + b"\r\nx")
            time.sleep(0.02)
        connection.sendall(b": y\r\n\r\n")
        got = connection.recv(1000)
        check(got.startswith(b"HTTP/1.1 431"), f"a long head in pieces: {got[:200]!r}")
    # Bodies count as they come.
    waiting = []
    for _ in range(5):
        waiting.append(socket.create_connection(("127.0.0.1", server.ports[0])))
        waiting[-1].sendall(head + b"Content-Length: 60000\r\n\r\n{")
    check(server.ask("/tokenize", {"prompt": "a"})[0] == 200, "what is announced and does not come keeps nobody out")
    for connection in waiting:
        connection.close()
    # An error ends a connection, whatever comes after it.
    with socket.create_connection(("127.0.0.1", server.ports[0]), timeout=20) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        try:
            for _ in range(100):
                connection.sendall(b"x")
                time.sleep(0.1)
            check(False, "bytes after an error keep a connection open")
        except OSError:
            pass


def test_pages(server):
    """Pages in browsers cannot change a server."""
    faults = {"error_rate": 0}
    for headers, status in [({}, 200), ({"Content-Type": "text/plain"}, 415), ({"Origin": "http://evil.example"}, 403),
                            ({"Origin": "null"}, 403), ({"Host": "evil.example"}, 403),
                            ({"Host": "evil.example:1", "Origin": "http://evil.example:1"}, 403),
                            ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200), ({"Host": "[::1]:8000"}, 200),
                            ({"Host": "[::1].evil.example"}, 403), ({"Host": "127.0.0.1.evil.example"}, 403),
                            ({"Content-Type": "application/json; charset=utf-8"}, 200)]:
        got, text = server.ask("/kvsim/faults", faults, headers=headers)
        check(got == status, f"faults with {headers}: {got} {text}")
    check(server.ask("/reset_prefix_cache", b"", headers={"Origin": "http://evil.example"})[0] == 403, "nor empty its cache")


LONG_STOPS = {"prompt": "x", "max_tokens": 20000, "n": 128, "stop": ["z" * 4096] + [f"e{i}" for i in range(63)]}


def test_stops(server):
    """Long stop texts in many answers: others are answered meanwhile, and who asked may leave."""
    with socket.create_connection(("127.0.0.1", server.ports[0])) as connection:
        connection.sendall(request(LONG_STOPS))
        start = time.time()
        check(server.ask("/health")[0] == 200 and time.time() - start < 5, "health while stop texts are sought")
        wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") > 0, "it runs")
    wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0, "and ends")


def test_memory(server):
    """Many answers to a short request take little until they are produced."""
    def resident_mb():
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000

    def num_waiting():
        return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")
    before = resident_mb()
    asked = []
    for _ in range(40):
        asked.append(socket.create_connection(("127.0.0.1", server.ports[0])))
        asked[-1].sendall(request({"prompt": "x", "max_tokens": 29000, "n": 128, "stream": True}))
    wait_for(lambda: num_waiting() == 40 * 128, "all wait or run")
    grown = resident_mb() - before
    check(grown < 40, f"40 requests for 128 streams each take {grown:.1f} MB")
    for connection in asked:
        connection.close()
    wait_for(lambda: num_waiting() == 0, "and end with their clients")
    before = resident_mb()
    idle = [http.client.HTTPConnection("127.0.0.1", server.ports[0], timeout=30) for _ in range(200)]
    for connection in idle:
        connection.request("POST", "/tokenize", json.dumps({"prompt": "x" * 60000}))
        connection.getresponse().read()
    grown = resident_mb() - before
    check(grown < 20, f"200 connections whose answers were read keep {grown:.1f} MB")
    for connection in idle:
        connection.close()


def test_disconnect(server):
    body = json.dumps({"prompt": "a" * 50, "max_tokens": 10000, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    for more in (b"", b"x", b"x" * 100000):
        connection = socket.create_connection(("127.0.0.1", server.ports[0]))
        connection.sendall(head + body + more)
        connection.recv(1000)
        check(server.metric("vllm:num_requests_running") == 1, "the request runs")
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: server.metric("vllm:num_requests_running") == 0,
                 f"a request whose client left is aborted, with {len(more)} bytes behind it")
        connection.close()
    check(server.metric("vllm:kv_cache_usage_perc") == 0, "and its blocks are free")


def test_faults(server):
    check(server.json("/kvsim/faults", {"error_rate": 1})["error_rate"] == 1, "faults are told")
    status, text = server.ask("/v1/completions", {"prompt": "a"})
    check(status == 500 and "asked for" in text, "an error that was asked for")
    server.json("/kvsim/faults", {"error_rate": 0, "delay_seconds": 0.2})
    start = time.time()
    server.json("/v1/completions", {"prompt": "a", "max_tokens": 1})
    check(time.time() - start >= 0.2, "a delay that was asked for")
    server.json("/kvsim/faults", {"delay_seconds": 0, "cut_rate": 1})
    try:
        server.ask("/v1/completions", {"prompt": "a", "max_tokens": 100, "stream": True})
        check(False, "a cut that was asked for")
    except (http.client.HTTPException, ConnectionError):
        pass
    server.json("/kvsim/faults", {"cut_rate": 0})
    prompt = "b" * 64
    server.json("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    server.json("/kvsim/faults", {"crash_seconds": 0.3})

    def is_down():
        try:
            server.ask("/health")
            return False
        except (http.client.HTTPException, ConnectionError):
            return True
    wait_for(is_down, "a crashed replica is gone")
    wait_for(lambda: not is_down(), "a crashed replica comes back")
    after = server.json("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    check(after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "with an empty cache")


TOKENIZER = """
import json, os, sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "end":
        sys.exit()
    ids = [int(file) for file in os.listdir("/proc/self/fd")] if text == "files" else [1] * len(text)
    print(json.dumps({"ids": sorted(ids), "pieces": list(text)}), flush=True)
"""


def test_tokenizer():
    """A tokenizer's process that ends is started again, and has no connection of the server's."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "python")
        with open(python, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{TOKENIZER}")
        os.chmod(python, 0o755)
        server = Server("--tokenizer=any", f"--python={python}")
        check(server.ask("/tokenize", {"prompt": "end"})[0] == 500, "a process that ends with each request")
        files = server.json("/tokenize", {"prompt": "files"})["tokens"]
        check(files == [0, 1, 2, 3], f"the next one has its pipes, and the folder that it lists: {files}")
        server.end()


def main():
    server = Server("--lora=sql=/adapters/sql", "--max-body-bytes=65536", "--max-model-len=30000")
    test_api(server)
    test_refusals(server)
    test_disconnect(server)
    test_stops(server)
    test_memory(server)
    test_pages(server)
    test_faults(server)
    server.end()

    limited = Server("--max-connections=8", "--head-timeout=300ms", "--body-timeout=300ms", "--max-body-bytes=100000")
    test_bad_clients(limited)
    limited.end()

    framed = Server("--max-body-bytes=65536", "--max-held-bytes=200000")
    test_framing(framed)
    framed.end()

    test_tokenizer()

    stopped = Server("--max-model-len=30000", "--drain=1s")
    with socket.create_connection(("127.0.0.1", stopped.ports[0])) as connection:
        connection.sendall(request(LONG_STOPS))
        time.sleep(0.1)
        stopped.end()

    keyed = Server("--replicas=2", "--policy=priority", "--speed=100", env={"KVSIM_API_KEY": "secret"})
    check(keyed.ports[0] != keyed.ports[1], "two replicas have two ports")
    check(keyed.ask("/v1/models")[0] == 401, "a key is needed")
    check(keyed.ask("/v1/models", headers={"Authorization": "Bearer secreT"})[0] == 401, "another key is none")
    check(keyed.ask("/health")[0] == 200, "but not for health")
    key = {"Authorization": "Bearer secret"}
    prompt = {"prompt": "c" * 64, "max_tokens": 1, "priority": -5}
    for replica in (0, 1, 0):
        answer = keyed.json("/v1/completions", prompt, headers=key, replica=replica)
    check(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 48, "each replica has its own cache")
    partly = Server("--replicas=3", "--fault-errors=1", "--fault-replica=0", "--fault-replica=2")
    statuses = [partly.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, replica=r)[0] for r in range(3)]
    check(statuses == [500, 200, 500], f"faults of two replicas, got {statuses}")
    partly.end()

    ending = Server("--output-tokens=5-9")
    lengths = {ending.json("/v1/completions", {"prompt": f"{i}", "max_tokens": 50})["usage"]["completion_tokens"] for i in range(60)}
    check(lengths == {5, 6, 7, 8, 9}, f"answers end by themselves, got {sorted(lengths)}")
    ending.end()

    tiered = Server("--max-model-len=300", "--tier=host:1GiB:read=10GB/s", blocks=20)
    for letter in "efe":
        answer = tiered.json("/v1/completions", {"prompt": letter * 250, "max_tokens": 1})
    check(answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 240, f"a tier gives back what was evicted: {answer}")
    loaded, kept = (tiered.metric(f"vllm:{which}prefix_cache_hits_total") for which in ("external_", ""))
    check(loaded >= 160 and loaded + kept == 240, f"and the metrics say so, got {loaded} and {kept}")
    tiered.end()

    # What is under way at the end is answered.
    done = []
    thread = threading.Thread(target=lambda: done.append(
        keyed.ask("/v1/completions", {"prompt": "d", "max_tokens": 25000}, headers=key)))
    thread.start()
    wait_for(lambda: keyed.metric("vllm:num_requests_running") == 1, "a long request runs")
    keyed.end()
    thread.join()
    check(done and done[0][0] == 200, f"a request under way is answered at the end, got {str(done)[:200]}")

    for options, message in [(["--host=nowhere"], "--host: got \"nowhere\""), (["--speed=0"], "--speed"),
                             (["--output-tokens=5-2"], "expected a number of tokens"), (["--lora=x"], "--lora"),
                             (["--kv-events-replay=tcp://*:1"], "--kv-events"), (["--tokenizer=/none"], "--tokenizer"),
                             (["--fault-errors=2"], "--fault-errors"), (["--fault-replica=1"], "from 0 to 0"), (["--hash=md5"], "--hash")]:
        refused = subprocess.run([KVSIM, "serve", *FAST, *options], capture_output=True, text=True, timeout=60)
        check(refused.returncode == 2 and message in refused.stderr, f"{options}: {refused.returncode} {refused.stderr}")

    print(f"{len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
