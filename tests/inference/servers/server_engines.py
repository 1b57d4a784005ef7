"""Engines over contract servers, and what their model would answer."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from inference.servers.contract_server import ContractServer
from inference.servers.table_model import END, TableModel
from posttrain.config.sections.servers import ServersConfig
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason, derive_seed
from posttrain.inference.servers.open import open_server_engine
from posttrain.inference.servers.pool import ServerPool
from posttrain.inference.servers.wire import Needs

KINDS = ("vllm-server", "sglang-server")
HOT = Sampling(12, temperature=0.7, logprobs=True)
QUICK: Mapping[str, Any] = {"retry_seconds": 2.0, "request_seconds": 10.0}


def needs(model: Path, **changes: Any) -> Needs:
    """What a run with the table model needs; the recorded servers hold 512 tokens in float32."""
    plain: dict[str, Any] = {"dtype": "float32", "max_length": 512, "end_ids": frozenset([END])}
    return Needs(str(model), **(plain | changes))


def requests(groups: int, size: int) -> list[GenerationRequest]:
    """`groups` prompts, each with `size` seeds."""
    return [
        GenerationRequest((5, 9, 10 + group), tuple(derive_seed(7, group, sample) for sample in range(size)))
        for group in range(groups)
    ]


def expected(model: Path, asked: list[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
    """The completions of the table model itself."""
    table, found = TableModel(model), {}
    for position, request in enumerate(asked):
        for sample, seed in enumerate(request.seeds):
            ids, logprobs = table.sample(request.prompt_ids, seed, sampling.temperature, sampling.max_new_tokens, [END])
            ended = StopReason.END if ids[-1] == END else StopReason.LENGTH
            found[position, sample] = Completion(tuple(ids), ended, tuple(logprobs))
    return found


@contextmanager
def opened(
    servers: list[ContractServer], model: Path, folder: Path, section: Mapping[str, Any] | None = None, **changes: Any
) -> Iterator[ServerPool]:
    """An engine over running contract servers of one kind; `changes` are to the needs."""
    config = ServersConfig.model_validate(
        {"urls": [server.url for server in servers], "weights": "folder", **QUICK, **(section or {})}
    )
    engine = open_server_engine(servers[0].kind, config, needs(model, **changes), folder)  # type: ignore[arg-type]
    with ExitStack() as stack:
        stack.callback(engine.close)
        yield engine
