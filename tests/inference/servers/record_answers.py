"""Records what a real server answers, for contract_server.py; its test compares a running server with the record.

python tests/inference/servers/record_answers.py vllm-server http://127.0.0.1:8000 MODEL_FOLDER [ADAPTER_FOLDER]
The server's key is read from SERVER_KEY. A vLLM server needs the flags that the handshake asks for, and adapters.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

PROMPT = [5, 9, 20, 31, 77, 12, 44]
_SETTINGS = {
    "vllm-server": {
        "model_config": ("dtype", "max_model_len", "logprobs_mode", "generation_config"),
        "device_config": ("device",),
        "parallel_config": ("worker_extension_cls",),
        "lora_config": ("max_lora_rank", "max_loras"),
    },
    "sglang-server": ("dtype", "context_length", "preferred_sampling_params", "allow_auto_truncate", "version"),
}


def answers(kind: str, client: httpx.Client, model: Path, adapter: Path | None) -> dict[str, Any]:
    """The answers that the toolkit reads, by endpoint; without an adapter, vLLM's about adapters are missing."""
    found = (_vllm if kind == "vllm-server" else _sglang)(client, model, adapter)
    return json.loads(json.dumps(found).replace(str(model), "/models/tiny").replace(str(adapter), "/models/adapter"))


def _vllm(client: httpx.Client, model: Path, adapter: Path | None) -> dict[str, Any]:
    def post(path: str, body: Any = None) -> Any:
        return client.post(path, json=body).json()

    base = client.get("/v1/models").json()["data"][0]["id"]
    asked = {
        "model": base,
        "prompt": [PROMPT],
        "max_tokens": 4,
        "return_token_ids": True,
        "seed": 1,
        "ignore_eos": True,
    }
    info = client.get("/server_info?config_format=json").json()["vllm_config"]
    found = {
        "version": client.get("/version").json(),
        "models": client.get("/v1/models").json(),
        "openapi": sorted(client.get("/openapi.json").json()["paths"]),
        "server_info": {
            "vllm_config": {
                section: {name: info[section][name] for name in names} if info.get(section) else None
                for section, names in _SETTINGS["vllm-server"].items()  # type: ignore[union-attr]
            }
        },
        "completion": post("/v1/completions", {**asked, "logprobs": 0}),
        "score": post("/v1/completions", {**asked, "max_tokens": 1, "prompt_logprobs": 0}),
        "unknown_model": post("/v1/completions", {**asked, "model": "nobody"}),
    }
    if adapter is not None:
        body = {"lora_name": "v000001-00000000", "lora_path": str(adapter)}
        client.post("/v1/load_lora_adapter", json=body).raise_for_status()
        found["adapter_loaded_twice"] = post("/v1/load_lora_adapter", body)
        client.post("/v1/unload_lora_adapter", json=body).raise_for_status()
        return found
    return found | {
        "pause": post("/pause?mode=wait"),
        "collective_rpc": post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(model)}}),
        "reset_prefix_cache": post("/reset_prefix_cache"),
        "resume": post("/resume"),
    }


def _sglang(client: httpx.Client, model: Path, adapter: Path | None) -> dict[str, Any]:
    def post(path: str, body: Any) -> Any:
        return client.post(path, json=body).json()

    parameters = {"max_new_tokens": 4, "temperature": 0.7, "sampling_seed": 1, "ignore_eos": True}
    asked = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": parameters}
    info = client.get("/server_info").json()
    update = {"model_path": str(model), "weight_version": "default", "flush_cache": True, "abort_all_requests": False}
    return {
        "server_info": {name: info[name] for name in _SETTINGS["sglang-server"]},
        "model_info": {"weight_version": client.get("/model_info").json()["weight_version"]},
        "update_weights_from_disk": post("/update_weights_from_disk", update),
        "completion": post("/generate", asked),
        "score": post("/generate", {**asked, "logprob_start_len": 0}),
    }


def shape(value: Any) -> Any:
    """What is compared of an answer: its fields and the types of their values, with lists as their first item."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def main() -> None:
    """Print the record."""
    kind, url, model, *adapter = sys.argv[1:]
    headers = {"Authorization": f"Bearer {os.environ['SERVER_KEY']}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        found = answers(kind, client, Path(model), Path(adapter[0]) if adapter else None)
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
