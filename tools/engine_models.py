#!/usr/bin/env python3
"""Makes the tiny models of examples/engine/testdata and what a reference answers with them.

  pip install torch transformers safetensors     # the CPU is enough
  tools/engine_models.py                         # makes all models anew
  tools/engine_models.py llama gemma3            # makes these
  tools/engine_models.py --check                 # makes all elsewhere, compares, changes nothing

A model is a folder as Hugging Face has them, so that whatever loads a published checkpoint loads it: config.json,
model.safetensors (random bfloat16 weights under the names that save_pretrained gives), and golden.safetensors:

  prompts       int32 [64, longest] (16 of FEW), filled up with -1; many begin like others, some are another's start
  prompt_lens   int32 [64]
  tokens        int32 [64, 8], chosen greedily
  first_logits  float32 [64, vocabulary], those that the first token was chosen by
  last_logits   float32 [64, vocabulary], those that the last one was

Models of MASKED also answer their first 16 prompts through a mask (sees()), with masked_tokens and so on:

  documents     int32 [8, 3], lengths of documents that the first 8 prompts begin with
  custom        int32 [8, 2], numbers a and b of a rule for the others

The reference is `transformers`, in float32 from the stored values: for each token a whole pass over all tokens before
it, without a KV cache. No answer hangs on rounding: a prompt is drawn again if the two best logits of a step are closer
than MARGIN, or if noise of rounding's size moves logits visibly, as where a router or an indexer has a tie.

--check also answers all prompts by generate(), with transformers' KV cache and its default kernels. The same seed makes
the same bytes with the versions that the metadata of golden.safetensors names; others may draw other weights. Exit
status of --check: 0 all agrees, 1 something differs.
"""

import argparse
import copy
import itertools
import json
import pathlib
import random
import sys
import tempfile
import zlib
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

FOLDER = pathlib.Path(__file__).parent.parent / "examples/engine/testdata"
PROMPTS, TOKENS, LONGEST = 64, 8, 150
MARGIN = 1e-3          # between the two best logits of a step
NOISE, MOVED = 3e-7, 5e-4  # on embeddings and on scores that are ranked, and how far it may move a logit
CLOSE = 1e-4           # two ways to compute a logit
FEW = {"mistral": 16, "qwen2": 16, "qwen3_moe": 16, "deepseek_v4": 16}  # prompts of models that are much like another
MASKED, HALF = ["llama", "gemma3", "gpt_oss", "deepseek_v2_lite"], 8
COMMON = dict(vocab_size=128, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=None)

# What makes each model special is small enough to matter within 150 tokens: windows, rotary scaling, caps, top-k.
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
LATENT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
              kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, num_experts_per_tok=2,
              moe_intermediate_size=16, first_k_dense_replace=1, routed_scaling_factor=1.5)
MODELS = {
    "llama": dict(
        HEADS, model_type="llama", hidden_size=64, intermediate_size=64, num_hidden_layers=2, tie_word_embeddings=True,
        rms_norm_eps=1e-5, rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                                high_freq_factor=4.0, original_max_position_embeddings=64)),
    "qwen3": dict(
        HEADS, model_type="qwen3", hidden_size=32, intermediate_size=64, num_hidden_layers=3, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "mistral": dict(
        HEADS, model_type="mistral", hidden_size=32, intermediate_size=48, num_hidden_layers=2, sliding_window=24,
        tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "qwen2": dict(
        HEADS, model_type="qwen2", hidden_size=32, intermediate_size=48, num_hidden_layers=2, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "qwen3_moe": dict(
        HEADS, model_type="qwen3_moe", hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "gemma3": dict(
        HEADS, model_type="gemma3_text", hidden_size=32, intermediate_size=48, num_hidden_layers=6,
        query_pre_attn_scalar=24, sliding_window=16, layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2,
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
    "gemma2": dict(
        HEADS, model_type="gemma2", hidden_size=32, intermediate_size=64, num_hidden_layers=4, query_pre_attn_scalar=24,
        sliding_window=32, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gpt_oss": dict(
        HEADS, model_type="gpt_oss", hidden_size=32, intermediate_size=24, num_hidden_layers=3, sliding_window=16,
        num_local_experts=4, num_experts_per_tok=2, swiglu_limit=2.0,
        rope_parameters=dict(YARN, rope_theta=150000.0, truncate=False)),
    "deepseek_v2_lite": dict(
        LATENT, model_type="deepseek_v2", q_lora_rank=None, n_routed_experts=6, n_shared_experts=2,
        norm_topk_prob=False, topk_method="greedy",
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek_v3": dict(
        LATENT, model_type="deepseek_v3", q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True,
        n_group=4, topk_group=2, num_mtp_layers=0,
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0)),
    "deepseek_v4": dict(
        model_type="deepseek_v4", hidden_size=32, moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, qk_rope_head_dim=8, q_lora_rank=24, compress_ratios=[0, 4, 128],
        sliding_window=24, index_n_heads=16, index_head_dim=8, index_topk=8, o_groups=2, o_lora_rank=12, hc_mult=2,
        hc_sinkhorn_iters=3, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, num_hash_layers=1,
        swiglu_limit=2.0, routed_scaling_factor=1.5, num_nextn_predict_layers=0, tie_word_embeddings=False,
        rope_theta=10000.0, compress_rope_theta=40000.0),
    "deepseek_v32": dict(
        LATENT, model_type="deepseek_v32", q_lora_rank=24, n_routed_experts=6, n_shared_experts=1, norm_topk_prob=True,
        n_group=1, topk_group=1, index_n_heads=8, index_head_dim=16, index_topk=24,
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=1.0)),
}

# Fields of config.json that say how a model is trained or was loaded.
UNUSED_FIELDS = ["_name_or_path", "attention_dropout", "initializer_range", "output_router_logits", "pretraining_tp",
                 "router_aux_loss_coef", "router_jitter_noise", "transformers_version", "use_cache"]


def load(folder, **options):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


def draw_weights(model, seed):
    """Random values for all weights; those of one do not depend on which others there are."""
    weights = dict(model.named_parameters())
    weights |= {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    for name, weight in weights.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        noise = torch.randn(weight.shape, generator=generator)
        if not weight.is_floating_point():  # the experts of each token
            weight.copy_((torch.arange(len(weight))[:, None] * 3 + torch.arange(weight.shape[1])) % 4)
        elif "embed_tokens" in name or "lm_head" in name:
            weight.copy_(noise * 1.2 / weight.shape[-1] ** 0.5)  # logits of a few units
        elif weight.dim() > 1:
            weight.copy_(noise * 1.25 / weight.shape[-1] ** 0.5)  # attention with a clear preference
        else:
            # Norms around 1 (Gemma: 0, to which it adds 1), biases around 0. Wide are sinks, to take their share, and
            # the last norm, or tied embeddings would repeat the last token.
            weight.copy_(weight.round() + noise * (2.0 if "sinks" in name or name == "model.norm.weight" else 0.2))


def save_model(name, seed, folder):
    settings = copy.deepcopy(MODELS[name])  # transformers adds to what it is given
    config = AutoConfig.for_model(**COMMON | settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw_weights(model, f"{seed} {name}")
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    fields = json.loads((folder / "config.json").read_text())
    # What was read in one form and is written in another stays in both, as in published files.
    fields = settings | {key: value for key, value in fields.items() if key not in UNUSED_FIELDS}
    (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    stored = load(folder).state_dict()
    for key, weight in model.state_dict().items():
        if not torch.equal(stored[key], weight.to(stored[key].dtype)):
            raise RuntimeError(f"{name}: {key} is another after saving and loading")


def draw_prompt(rng, earlier):
    """Fresh tokens, or the first 20 to 90 of an earlier prompt and, but for a few, tokens of its own."""
    parents = [prompt for prompt in earlier if len(prompt) > 20]
    kind = rng.random()
    if not parents or kind < 0.25:
        return [rng.randrange(COMMON["vocab_size"]) for _ in range(rng.randint(5, LONGEST))]
    parent = rng.choice(parents)
    shared = rng.randint(20, min(90, len(parent)))
    own = 0 if kind < 0.35 else rng.randint(1, min(60, LONGEST - shared))
    return parent[:shared] + [rng.randrange(COMMON["vocab_size"]) for _ in range(own)]


def sees(num_prompt, documents, custom):
    """[LONGEST + TOKENS, the same]: whether a token sees another one. Output tokens see what the prompt's last does."""
    position = torch.arange(LONGEST + TOKENS)
    i, j = position.clamp(max=num_prompt - 1)[:, None], position[None, :]
    if documents:
        owner = torch.full_like(position, -1)
        for begin, end in itertools.pairwise(itertools.accumulate(documents, initial=0)):
            owner[begin:end] = begin
        shown = (owner[i] == -1) | (owner[i] == owner[j])
    else:
        shown = ((custom[0] * i + custom[1] * j) % 7 > 2) | (i == j)
    return (shown | (j >= num_prompt)) & (j <= position[:, None])


def mask_of(model, num_tokens, shown):
    """`shown` as what the model takes for attention_mask: one mask, or one per kind of layer."""
    if shown is None:
        return None
    shown = shown[:num_tokens, :num_tokens]

    def additive(visible):
        return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]

    window = getattr(model.config, "sliding_window", None)
    if not window:
        return additive(shown)
    near = ~shown.new_ones(shown.shape).tril(-window)
    return {"full_attention": additive(shown), "sliding_attention": additive(shown & near)}


def answer(model, prompt, shown=None):
    """The greedy tokens and the logits of each step, [8, vocabulary]."""
    ids, logits = list(prompt), []
    for _ in range(TOKENS):
        mask = mask_of(model, len(ids), shown)
        logits.append(model(torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0, -1])
        ids.append(int(logits[-1].argmax()))
    return ids[len(prompt):], torch.stack(logits)


def hangs_on_rounding(model, prompt, tokens, logits, shown=None):
    best = logits.topk(2).values
    if float((best[:, 0] - best[:, 1]).min()) < MARGIN:
        return True
    generator = torch.Generator().manual_seed(0)
    topk = torch.Tensor.topk

    def disturb(values):
        return values + NOISE * torch.randn(values.shape, generator=generator)

    def disturbed_topk(values, *args, **options):
        return topk(disturb(values), *args, **options)

    hook = model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: disturb(output))
    with mock.patch.object(torch.Tensor, "topk", disturbed_topk), mock.patch.object(torch, "topk", disturbed_topk):
        ids = torch.tensor([prompt + tokens[:-1]])
        mask = mask_of(model, ids.shape[1], shown)
        again = [model(ids, attention_mask=mask, use_cache=False).logits[0, -TOKENS:] for _ in range(8)]
    hook.remove()
    return max(float((other - logits).abs().max()) for other in again) > MOVED


def answer_masked(model, rng, prompts):
    """What the first prompts answer through masks that are drawn for them."""
    golden = {key: [] for key in ["documents", "custom", "masked_tokens", "masked_first_logits", "masked_last_logits"]}
    for r, prompt in enumerate(prompts[:2 * HALF]):
        while True:
            # Of the even ones the documents are all, of the odd ones a part.
            end = len(prompt) - r % 2 * rng.randint(1, len(prompt) // 4)
            cuts = [0, *sorted(rng.sample(range(1, end), 2)), end]
            documents = [b - a for a, b in itertools.pairwise(cuts)] if r < HALF else []
            custom = [rng.randint(1, 6), rng.randint(1, 6)]
            shown = sees(len(prompt), documents, custom)
            tokens, logits = answer(model, prompt, shown)
            if not hangs_on_rounding(model, prompt, tokens, logits, shown):
                break
        golden["documents" if documents else "custom"].append(torch.tensor(documents or custom, dtype=torch.int32))
        golden["masked_tokens"].append(torch.tensor(tokens, dtype=torch.int32))
        golden["masked_first_logits"].append(logits[0])
        golden["masked_last_logits"].append(logits[-1])
    return {key: torch.stack(values) for key, values in golden.items()}


def make(name, seed, folder):
    """Writes the model's folder; returns how many prompts were drawn again."""
    save_model(name, seed, folder)
    model = load(folder, attn_implementation="eager", experts_implementation="eager")
    rng = random.Random(f"{seed} {name}")
    prompts, tokens, first, last, redrawn = [], [], [], [], 0
    while len(prompts) < FEW.get(name, PROMPTS):
        prompt = draw_prompt(rng, prompts)
        chosen, logits = answer(model, prompt)
        if hangs_on_rounding(model, prompt, chosen, logits):
            redrawn += 1
            continue
        prompts.append(prompt)
        tokens.append(chosen)
        first.append(logits[0])
        last.append(logits[-1])
    lens = [len(prompt) for prompt in prompts]
    filled = [prompt + [-1] * (max(lens) - len(prompt)) for prompt in prompts]
    golden = {"prompts": torch.tensor(filled, dtype=torch.int32), "prompt_lens": torch.tensor(lens, dtype=torch.int32),
              "tokens": torch.tensor(tokens, dtype=torch.int32),
              "first_logits": torch.stack(first), "last_logits": torch.stack(last)}
    if name in MASKED:
        golden |= answer_masked(model, random.Random(f"{seed} {name} masks"), prompts)
    # One entry: safetensors writes several in any order.
    made_with = f"seed {seed}, torch {torch.__version__}, transformers {transformers.__version__}"
    save_file(golden, folder / "golden.safetensors", {"made_with": made_with})
    return redrawn


def differences(name, seed):
    """What differs between the tree's files and the same made anew, and generate()'s answers."""
    there = FOLDER / name
    golden = load_file(there / "golden.safetensors")
    with tempfile.TemporaryDirectory() as anew:
        anew = pathlib.Path(anew)
        make(name, seed, anew)
        for file in ["config.json", "model.safetensors"]:
            if (anew / file).read_bytes() != (there / file).read_bytes():
                yield f"{file} is another when made anew"
        for key, values in load_file(anew / "golden.safetensors").items():
            if values.shape != golden[key].shape:
                yield f"{key} has another shape when made anew"
            elif float((values.double() - golden[key].double()).abs().max()) > (CLOSE if "logits" in key else 0):
                yield f"{key} is another when made anew"
    model = load(there)
    rules = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True)
    for i, length in enumerate(golden["prompt_lens"].tolist()):
        ids = golden["prompts"][i:i + 1, :length].long()
        result = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=rules)
        if result.sequences[0, length:].tolist() != golden["tokens"][i].tolist():
            yield f"prompt {i}: generate() chooses {result.sequences[0, length:].tolist()}"
        for key, logits in [("first_logits", result.logits[0]), ("last_logits", result.logits[-1])]:
            error = float((logits[0] - golden[key][i]).abs().max())
            if error > CLOSE:
                yield f"prompt {i}: generate() has {key} that differ by {error:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of " + ", ".join(MODELS) + "; without any, all")
    parser.add_argument("--check", action="store_true", help="compare with the files of the tree and write nothing")
    parser.add_argument("--seed", type=int, default=1, help="of weights and prompts (default 1)")
    options = parser.parse_args()
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # sums in one order
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    for name in options.models or MODELS:
        if options.check:
            found = list(differences(name, options.seed))
            print(f"{name}: " + ("\n  ".join(["differs", *found]) if found else "agrees"))
            failed |= bool(found)
            continue
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        redrawn = make(name, options.seed, folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: {size:,} bytes, {redrawn} prompts drawn again")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
