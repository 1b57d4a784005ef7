"""A server that lacks what a run needs is refused by name, with the command that would be right."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.servers.contract_server import ContractServer
from inference.servers.server_engines import HOT, expected, opened, requests
from inference.servers.table_model import TableModel, write_table
from posttrain.config.sections.servers import ServersConfig
from posttrain.errors import ConfigError
from posttrain.inference.servers import vllm_server
from posttrain.inference.servers.open import weights_sent
from posttrain.inference.servers.sglang_server import SglangServer
from posttrain.inference.servers.vllm_server import VllmServer
from posttrain.inference.servers.wire import Needs

Serve = Callable[..., ContractServer]


def refused(server: ContractServer, model: Path, tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as error, opened([server], model, tmp_path, None, **changes):
        pass
    return str(error.value)


@pytest.mark.parametrize(
    ("section", "name", "value", "told"),
    [
        ("model_config", "logprobs_mode", "raw_logprobs", "--logprobs-mode processed_logprobs"),
        ("model_config", "generation_config", "auto", "--generation-config vllm"),
        ("model_config", "dtype", "torch.bfloat16", "--dtype float32"),
        ("parallel_config", "worker_extension_cls", "", "--worker-extension-cls posttrain_vllm_worker.HeadPacker"),
    ],
)
def test_a_vllm_server_with_another_setting_is_refused_with_the_right_command(
    section: str, name: str, value: str, told: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    server = serve("vllm-server")
    server.answers["server_info"]["vllm_config"][section][name] = value
    message = refused(server, model, tmp_path)
    assert told in message
    assert f"VLLM_SERVER_DEV_MODE=1 vllm serve {model} --dtype float32 --max-model-len 512" in message


def test_the_worker_extension_is_needed_on_a_cpu_alone(serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve("vllm-server")
    config = server.answers["server_info"]["vllm_config"]
    config["parallel_config"]["worker_extension_cls"] = ""
    config["device_config"]["device"] = "cuda"
    with opened([server], model, tmp_path) as engine:
        engine.load(model, 1)
    methods = [body["method"] for path, body in server.asked if path == "/collective_rpc"]
    assert methods == ["reload_weights"]


def test_a_vllm_server_without_the_endpoints_for_weights_is_refused(serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve("vllm-server")
    server.answers["openapi"] = ["/v1/completions", "/v1/models", "/version"]
    assert "VLLM_SERVER_DEV_MODE=1" in refused(server, model, tmp_path)


def test_a_server_with_too_little_room_is_refused(serve: Serve, model: Path, tmp_path: Path) -> None:
    assert "--max-model-len 600" in refused(serve("vllm-server"), model, tmp_path, max_length=600)
    assert "--context-length 600" in refused(serve("sglang-server"), model, tmp_path, max_length=600)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("dtype", "bfloat16", "--dtype float32"),
        ("preferred_sampling_params", '{"top_k": 2}', "preferred-sampling-params"),
        ("allow_auto_truncate", True, "allow-auto-truncate"),
    ],
)
def test_an_sglang_server_with_another_setting_is_refused(
    name: str, value: object, told: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    server = serve("sglang-server")
    server.answers["server_info"][name] = value
    assert told in refused(server, model, tmp_path)


def adapter(folder: Path, seed: int) -> Path:
    """Weights in the form of an adapter, which the contract server takes for a whole table."""
    write_table(folder, seed)
    (folder / "adapter_config.json").write_text('{"r": 4}', encoding="utf-8")
    return folder


def test_adapters_get_a_new_name_each_and_old_ones_are_unloaded(serve: Serve, model: Path, tmp_path: Path) -> None:
    server, asked = serve("vllm-server"), requests(2, 2)
    section = {"weights": "adapter"}
    with opened([server], model, tmp_path, section, weights="adapter", adapter_rank=4) as engine:
        names = set()
        for version in (1, 2, 2):
            folder = adapter(tmp_path / f"adapter{len(names)}", seed=10 + len(names))
            engine.load(folder, version)
            (name,) = server.adapters
            names.add(name)
            found = engine.complete(asked, HOT)
            wanted = expected(folder, asked, HOT)
            assert {key: made.token_ids for key, made in found.items()} == {
                key: made.token_ids for key, made in wanted.items()
            }
            assert engine.score([5, 9, 10]) == pytest.approx(TableModel(folder).score([5, 9, 10]))
    assert sorted(name.split("-")[0] for name in names) == ["v000001", "v000002", "v000002"]


def test_a_server_that_takes_too_small_adapters_is_refused(serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve("vllm-server")
    with (
        pytest.raises(ConfigError, match=r"takes rank 8 at most.*--max-lora-rank 16"),
        opened([server], model, tmp_path, {"weights": "adapter"}, adapter_rank=9),
    ):
        pass


def test_adapters_are_sent_if_there_is_one_and_the_server_takes_it() -> None:
    plain = ServersConfig.model_validate({"urls": ["http://127.0.0.1:8000"]})
    assert weights_sent("vllm-server", plain, 4) == "adapter"
    assert weights_sent("vllm-server", plain, 0) == "folder"
    assert weights_sent("sglang-server", plain, 4) == "folder"
    for kind, rank in (("sglang-server", 4), ("vllm-server", 0)):
        with pytest.raises(ConfigError, match="not possible"):
            weights_sent(kind, plain.model_copy(update={"weights": "adapter"}), rank)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "wire"), [("vllm-server", VllmServer), ("sglang-server", SglangServer)])
def test_a_server_on_the_network_that_takes_weights_without_its_key_is_refused(
    kind: str, wire: Any, serve: Serve, model: Path
) -> None:
    needs = Needs(str(model), dtype="float32", max_length=512, end_ids=frozenset([2]))
    server = serve(kind, key="correct-horse-battery" if kind == "vllm-server" else None)

    async def ask() -> None:
        link = wire(server.url, server.key, needs)
        try:
            await link.require_closed()
        finally:
            await link.close()

    with pytest.raises(ConfigError, match="without"):
        asyncio.run(ask())
    if kind == "sglang-server":
        server.key = "correct-horse-battery"
        asyncio.run(ask())  # its key protects everything


def test_an_adapter_beyond_the_highest_rank_is_refused() -> None:
    assert vllm_server.room_for(9) == 16
    with pytest.raises(ConfigError, match="up to rank 512"):
        vllm_server.room_for(513)
