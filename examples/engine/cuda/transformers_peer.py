#!/usr/bin/env python3
"""A decode step of transformers with random weights in bf16 at Llama-3.1-8B's shape, beside engine_gpu speed.

For each number of requests: the median time of a step at 1,024 tokens of context, with the dynamic cache as it is, and with
the static cache and torch.compile in CUDA graphs (mode reduce-overhead) where time is left: plain loops over the model.
First, what transformers' continuous batching (generate_batch) takes per token. Needs torch, transformers and a GPU.
"""
import argparse
import time

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--seconds", type=float, default=100, help="after which nothing more is begun")
parser.add_argument("--context", type=int, default=1024, help="tokens before the timed steps")
options = parser.parse_args()
end = time.monotonic() + options.seconds

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__, flush=True)
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                     num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0)
config._attn_implementation = "sdpa"
with torch.device("cuda"):
    model = LlamaForCausalLM(config).eval()
torch.cuda.synchronize()


def prefill(requests, cache):
    """Fills the cache in pieces, so that activations fit."""
    tokens = torch.randint(0, 128256, (requests, options.context), device="cuda")
    position = torch.arange(options.context, device="cuda")
    return model(tokens, past_key_values=cache, cache_position=position, logits_to_keep=1).logits[:, -1].argmax(-1)[:, None]


def median(step, rounds=12):
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] * 1e3


def dynamic(requests):
    cache = transformers.DynamicCache(config=config)
    state = {"token": prefill(requests, cache), "at": options.context}

    def step():
        position = torch.tensor([state["at"]], device="cuda")
        out = model(state["token"], past_key_values=cache, cache_position=position)
        state["token"] = out.logits[:, -1].argmax(-1)[:, None]
        state["at"] += 1
    step()
    return median(step)


def static(requests):
    cache = transformers.StaticCache(config=config, max_batch_size=requests, max_cache_len=options.context + 64,
                                     device="cuda", dtype=torch.bfloat16)
    state = {"token": prefill(requests, cache)}
    position = torch.tensor([options.context], device="cuda")
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=False)

    def step():
        out = compiled(state["token"], past_key_values=cache, cache_position=position)
        state["token"] = out.logits[:, -1].argmax(-1)[:, None].clone()
        position.add_(1)
    for _ in range(3):
        step()
    return median(step)


def continuous(requests, outputs=48):
    """The median time between tokens of a request, when all requests decode."""
    prompts = torch.randint(0, 128256, (requests, options.context)).tolist()
    config = transformers.GenerationConfig(max_new_tokens=outputs, do_sample=False, eos_token_id=-1, pad_token_id=0)
    done = model.generate_batch(prompts, generation_config=config, record_timestamps=True)
    stamps = [sorted(output.timestamps) for output in done.values()]
    begin, end = max(times[0] for times in stamps), min(times[-1] for times in stamps)
    gaps = sorted(b - a for times in stamps for a, b in zip(times, times[1:]) if a >= begin and b <= end)
    print(f"  {len(stamps)} answers of {min(map(len, stamps))} tokens, {len(gaps)} gaps while all decode", flush=True)
    return gaps[len(gaps) // 2] * 1e3


def measure(name, function, requests):
    if time.monotonic() > end:
        print(f"transformers {name}, {requests} requests: no time left", flush=True)
        return
    try:
        ms = function(requests)
        print(f"transformers {name}, {requests} requests of {options.context}: step {ms:.3f} ms, "
              f"{requests / ms * 1e3:.1f} tokens/s", flush=True)
    except Exception as error:  # whatever this version says: the others go on
        print(f"transformers {name}, {requests} requests: FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
    torch.cuda.empty_cache()


def prefill_8k():
    tokens = torch.randint(0, 128256, (1, 8192), device="cuda")
    return median(lambda: model(tokens, use_cache=False, logits_to_keep=1), 4)


for count in (64, 16, 1):
    measure("continuous batching", continuous, count)
for count in (1, 16, 64):
    measure("dynamic cache", dynamic, count)
try:
    print(f"transformers prefill of 8192 tokens: {prefill_8k():.2f} ms", flush=True)
except Exception as error:
    print(f"transformers prefill: FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
for count in (64, 1, 16):
    measure("static cache, compiled", static, count)
