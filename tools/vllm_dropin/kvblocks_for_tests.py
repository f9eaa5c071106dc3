"""For pytest -p: puts our manager into vLLM's scheduler before its tests are loaded, if KVBLOCKS_VLLM is 1."""

from kvblocks.vllm import plugin

if plugin.is_wanted():
    plugin.install()
