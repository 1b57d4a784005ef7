"""docs/servers.md: its sections are accepted, and its commands and versions are those that are checked."""

import re
from pathlib import Path

import yaml

from posttrain.inference.servers import sglang_server, vllm_server
from posttrain.inference.servers.wire import Needs
from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.engines.config import OwnEngine, check_own_engine

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "servers.md").read_text(encoding="utf-8")


def test_every_section_of_the_page_is_accepted() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) == 4
    for block in blocks:
        rollout = RolloutConfig.model_validate(block["rollout"], context={"base_dir": ROOT})
        assert rollout.traits.is_server == (rollout.servers is not None)


def test_the_engine_of_the_page_is_there() -> None:
    (engine,) = (
        rollout.engine
        for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        if isinstance((rollout := RolloutConfig.model_validate(yaml.safe_load(block)["rollout"])).engine, OwnEngine)
    )
    check_own_engine(engine.model_copy(update={"path": str(ROOT / engine.path)}))


def test_the_commands_have_the_options_and_variables_that_servers_are_asked_for() -> None:
    for weights in ("folder", "adapter"):
        needs = Needs("MODEL", "bfloat16", 2048, frozenset(), adapter_rank=16, weights=weights)
        for name, value in vllm_server.environment(needs).items():
            assert f"{name}={value}" in PAGE
        for option, value in vllm_server.settings(needs).items():
            assert (f"--{option}" if value is True else f"--{option} {value}") in PAGE
    for option, value in sglang_server.settings(Needs("MODEL", "bfloat16", 2048, frozenset())).items():
        assert f"--{option} {value}" in PAGE
    assert vllm_server.WORKER in PAGE
    assert (vllm_server.WORKER_FOLDER / "posttrain_vllm_worker.py").is_file()


def test_the_versions_are_those_whose_answers_are_recorded() -> None:
    files = (ROOT / "tests" / "inference" / "servers" / "recorded").glob("*.json")
    names = {"vllm": "vLLM", "sglang": "SGLang"}
    for file in files:
        kind, version = file.stem.split("-")
        assert f"| {names[kind]} {version} |" in PAGE
