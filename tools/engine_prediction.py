#!/usr/bin/env python3
"""Compares what kvsim predicts with what the example engine does on this machine (docs/time.md).

    bazel build -c opt //examples/engine:engine_program //sim:kvsim
    tools/engine_prediction.py [--folder FOLDER] [--requests N]

Makes a model with random weights (Llama's form, 27 million parameters) and a trace of prompts that
share beginnings, both from a seed. The engine serves the trace, which takes two minutes. Then:
- kvsim replay with the recorded times must have the same steps, to the byte;
- kvsim calibrate fits the clock's constants to half of the requests, and judges the other half.

With --gpu=DEVICE, one of the catalogue, it is Llama-3.1-8B's shape and engine_gpu, which may run on
another machine: --step=make writes the trace and prints the command, --step=compare takes the files
that the command wrote.
Exit status: 0 done, 1 the steps differ, 2 a program failed.
"""

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile

HIDDEN, LAYERS, INNER, VOCABULARY, HEADS, KV_HEADS, HEAD_SIZE = 512, 8, 1536, 2048, 8, 4, 64
DEVICE = 'device {\n  name: "this-machine"\n  bf16_tflops: 0.2\n  memory_gb_per_s: 20\n  memory_gb: 16\n}\n'


def random_bf16(count):
    """Signs and fractions are random; values are between 1/32 and 1/16, about the root of 1/HIDDEN."""
    bits = int.from_bytes(random.randbytes(2 * count), "little")
    ones = int.from_bytes(b"\x01\x00" * count, "little")
    return ((bits & (0x807F * ones)) | ((122 << 7) * ones)).to_bytes(2 * count, "little")


def make_model(folder):
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        inside = {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
                  "self_attn.q_proj": (HEADS * HEAD_SIZE, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
                  "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
                  "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()})
    header, parts, at = {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        parts.append(random_bf16(count) if len(shape) > 1 else b"\x80\x3f" * count)  # norms: 1
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "num_hidden_layers": LAYERS, "intermediate_size": INNER, "vocab_size": VOCABULARY,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    with open(f"{folder}/config.json", "w", encoding="ascii") as file:
        json.dump(config, file)


def make_trace(path, requests, vocabulary, scale, rate):
    def tokens(count):
        return [random.randrange(vocabulary) for _ in range(count)]

    beginnings, now = [tokens(200 * scale) for _ in range(12)], 0.0
    with open(path, "w", encoding="ascii") as file:
        for _ in range(requests):
            now += random.expovariate(rate)
            prompt = (random.choice(beginnings)[:random.choice([0, 64, 128, 200]) * scale] +
                      tokens(random.randint(16, 200) * scale))
            json.dump({"timestamp": int(1000 * now), "input_length": len(prompt), "output_length": random.randint(10, 60) * scale,
                       "block_size": 1, "hash_ids": prompt}, file)
            file.write("\n")


def run(command):
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", help="where files are made and kept; default: a temporary one")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--gpu", metavar="DEVICE", help="serve Llama-3.1-8B's shape on this device of the catalogue")
    parser.add_argument("--step", choices=["make", "compare", "all"], default="all")
    options = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    bin_folder = subprocess.run(["bazel", "info", "-c", "opt", "bazel-bin"], cwd=root, check=True, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    kvsim = f"{bin_folder}/sim/kvsim"
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(options.folder or temporary)
        os.makedirs(folder, exist_ok=True)
        trace, answers, steps, again, log = (
            f"{folder}/{name}" for name in ("trace.jsonl", "answers.jsonl", "steps.csv", "again.csv", "log.jsonl"))
        random.seed(1)
        if options.gpu:
            program = "engine_gpu"
            server = ["--model=llama-3.1-8b", f"--device={options.gpu}", "--num-blocks=20000", "--no-async", "--max-num-seqs=128",
                      "--max-num-batched-tokens=2048", "--max-model-len=4096"]
            clocks = [["--time=roofline"], []]
        else:
            program = f"{bin_folder}/examples/engine/engine_program"
            server = [f"--model={folder}/config.json", "--num-blocks=2000", "--no-async", "--max-num-seqs=64",
                      "--max-num-batched-tokens=512"]
            clocks = [["--time=roofline", f"--catalogue={folder}/devices.textproto", "--device=this-machine"]]
        if options.step != "compare":
            if options.gpu:
                make_trace(trace, options.requests, vocabulary=128256, scale=6, rate=10.0)
            else:
                make_model(folder)
                make_trace(trace, options.requests, VOCABULARY, scale=1, rate=3.0)
                with open(f"{folder}/devices.textproto", "w", encoding="ascii") as file:
                    file.write(DEVICE)
        serve = [program, "serve", trace, *server, f"--answers={answers}", f"--steps={steps}", f"--request-log={log}",
                 "--quiet"]
        if options.step == "make":
            print(" ".join(serve))
            return
        if options.step == "all":
            run(serve)
        run([kvsim, "replay", answers, *server, "--time=recorded", f"--step-times={steps}", f"--steps={again}", "--quiet"])
        for clock in clocks:
            run([kvsim, "calibrate", answers, f"--measured={log}", *server, *clock])
        same = filecmp.cmp(steps, again, shallow=False)
        print(f"steps with recorded times: {'the same, to the byte' if same else 'different'}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
