"""Serve a GGUF file with the server in the package xllamacpp: wheel_server.py FILE SOCKET CONTEXT THREADS.

A script for a process of its own; nothing imports it.
"""

import sys
import threading


def _main(model: str, socket: str, context: int, threads: int) -> None:
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = [socket]
    params.n_ctx = context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.use_jinja = True
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    threading.Event().wait()  # until a signal ends the process
    del server


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
