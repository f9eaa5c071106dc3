"""For pytest -p: what vLLM's own tests need on a machine without a GPU and without a network.

Puts our manager where vLLM's scheduler and its tests look for their own, before the tests are loaded, if
KVBLOCKS_VLLM is 1. In either case: a device is named, since vLLM finds none; models with images get the
number of tokens of their largest image without a processor, which would need files of the model; and where
the files of a tokenizer are missing, there is an object in its place, which no scheduler asks for anything.
"""

from __future__ import annotations

import types
from typing import Any

import vllm.multimodal.encoder_budget as encoder_budget
import vllm.platforms
import vllm.v1.structured_output as structured_output
from vllm.multimodal.registry import MultiModalRegistry

from kvblocks.vllm import plugin

# By the model's type: of the largest image. Of no other modality is there a test.
IMAGE_TOKENS = {"llava": 576, "qwen2_5_vl": 16384}


def _processor(self: Any, model_config: Any, *_args: Any, **_kwargs: Any) -> Any:
    limits = {"image": 999}
    return types.SimpleNamespace(
        info=types.SimpleNamespace(
            ctx=types.SimpleNamespace(model_config=model_config),
            supported_mm_limits=limits,
            allowed_mm_limits=limits,
            get_mm_max_tokens_per_item=lambda **_: {"image": IMAGE_TOKENS[model_config.hf_config.model_type]},
        )
    )


def _processing_info(self: Any, model_config: Any, *_args: Any, **_kwargs: Any) -> Any:
    return _processor(self, model_config).info


_real_tokenizer = structured_output.cached_tokenizer_from_config


def _tokenizer(model_config: Any, **kwargs: Any) -> Any:
    try:
        return _real_tokenizer(model_config, **kwargs)
    except (OSError, ValueError):
        return types.SimpleNamespace()


if not vllm.platforms.current_platform.device_type:
    type(vllm.platforms.current_platform).device_type = "cpu"
MultiModalRegistry.create_processor = _processor
MultiModalRegistry.get_processing_info = _processing_info
structured_output.cached_tokenizer_from_config = _tokenizer
encoder_budget.processor_only_cache_from_config = lambda *_args, **_kwargs: None

if plugin.is_wanted():
    import vllm.v1.core.kv_cache_manager

    from kvblocks.vllm.manager import KVCacheManager

    plugin.install()
    vllm.v1.core.kv_cache_manager.KVCacheManager = KVCacheManager
