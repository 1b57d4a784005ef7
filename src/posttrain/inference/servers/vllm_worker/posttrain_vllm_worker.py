"""Updates a tied head after vLLM has reloaded weights on a CPU; loaded by the server, so it imports nothing of ours.

vllm serve … --worker-extension-cls posttrain_vllm_worker.HeadPacker, with this folder on the PYTHONPATH
"""

from typing import Any


class HeadPacker:
    """Becomes a base class of vLLM's worker."""

    model_runner: Any

    def pack_heads(self) -> None:
        """Repeat what vLLM does after loading: without it, a packed copy of the head keeps its first weights."""
        from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
            ParallelLMHead,
        )

        for module in self.model_runner.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
