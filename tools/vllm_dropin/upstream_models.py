"""The models that vLLM's own scheduler tests name, as configurations without weights.

    python upstream_models.py FOLDER

Writes FOLDER/<owner>/<name>/config.json, which vLLM takes for the model when FOLDER is the current
one. The tests need of a model only its kind and its longest sequence; sizes are small where no test
looks at them. Nothing is downloaded.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any


def opt(hidden_size: int) -> dict[str, Any]:
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": hidden_size,
        "num_hidden_layers": 12,
        "num_attention_heads": hidden_size // 64,
        "ffn_dim": 4 * hidden_size,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": hidden_size,
        "torch_dtype": "float16",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }


TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "float16",
}

MODELS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": opt(768),
    "facebook/opt-350m": opt(1024),
    "llava-hf/llava-1.5-7b-hf": {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": 32000,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "text_config": {
            **TEXT,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
        },
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 336,
            "patch_size": 14,
        },
        "torch_dtype": "float16",
    },
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        **TEXT,
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": 151936,
        "max_position_embeddings": 128000,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_config": {"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 256},
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        **TEXT,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "head_dim": 64,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for name, config in MODELS.items():
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
