"""Dataserver configs once parsed: defaults, rules and strided stages."""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dataserver.dataserver_cases import make_config
from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig, RLStageConfig, strided_stages
from posttrain.dataserver.config.datasets import FileDataset, ReasoningGymDataset
from posttrain.dataserver.config.names import GraderCheck, find_grader
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.contains import Contains
from posttrain.dataserver.graders.string_exact import StringExact
from posttrain.dataserver.graders.text.completions import GradeInput

ROOT = Path("/data")


class RunsCode(Grader):
    """A stand-in for a grader that runs model-written code."""

    type: Literal["runs_code"] = "runs_code"
    needs_code_execution: ClassVar[bool] = True

    def score(self, item: GradeInput) -> float:
        return 1.0


def stages(*ends: int) -> tuple[RLStageConfig, ...]:
    return tuple(RLStageConfig(name=f"to {end}", until_step=end, mix={"data": 1}) for end in ends)


def test_a_data_set_without_a_type_is_a_file() -> None:
    config = make_config(ROOT, {"sums": {}, "legs": {"type": "reasoning_gym", "task": "leg_counting"}})
    assert isinstance(config.datasets["sums"], FileDataset)
    assert config.datasets["sums"].type == "file"
    assert isinstance(config.datasets["legs"], ReasoningGymDataset)
    assert not config.datasets["legs"].gold_is_missing


def test_an_own_grader_comes_before_the_built_in_one_of_its_name() -> None:
    strict = StringExact(ignore_case=False)
    assert find_grader("string_exact", {"string_exact": strict}) is strict
    assert find_grader("string_exact", {}) == StringExact()


def test_a_built_in_name_may_be_given_to_that_grader_with_other_parameters() -> None:
    config = make_config(ROOT, {"sums": {}}, graders={"string_exact": {"type": "string_exact", "ignore_case": False}})
    assert config.graders["string_exact"] == StringExact(ignore_case=False)
    with pytest.raises(ValidationError, match="contains is the name of a built-in grader"):
        make_config(ROOT, {"sums": {}}, graders={"contains": {"type": "string_exact"}})


@pytest.mark.parametrize("place", [{"graders": {"run": 1.0}}, {"graders": {"say": 1.0}, "gates": ["run"]}])
def test_code_that_a_model_wrote_runs_only_where_the_config_allows_it(place: dict[str, Any]) -> None:
    graders = {"run": RunsCode(), "say": Contains()}
    datasets = {"sums": FileDataset(path="sums.jsonl", **place)}
    (fault,) = GraderCheck(graders, code_may_run=False).dataset_faults(datasets)
    key = ("gates", 0) if "gates" in place else ("graders", "run")
    assert fault.path == ("sums", *key)
    assert fault.reason == "the grader run runs code that a model wrote; set allow_code_execution: true first"
    assert not list(GraderCheck(graders, code_may_run=True).dataset_faults(datasets))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_only_this_machine_needs_no_token(host: str) -> None:
    assert make_config(ROOT, {"sums": {}}, listen={"host": host}).listen.is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "localhost.example.org"])
def test_an_address_that_others_reach_wants_a_token(host: str) -> None:
    with pytest.raises(ValidationError, match="token_env"):
        make_config(ROOT, {"sums": {}}, listen={"host": host})
    assert not make_config(ROOT, {"sums": {}}, listen={"host": host, "token_env": "TOKEN"}).listen.is_loopback


@pytest.mark.parametrize(
    ("ends", "stride", "strided"),
    [
        ((5, 8), 1, [5, 8]),
        # Draws 0 2 4 | 6: iteration 5, where the second stage begins, is not drawn.
        ((5, 8), 2, [3, 4]),
        ((6, 8), 2, [3, 4]),
        # Draws 0 3 | 6 9: the second stage begins at 4, but its first drawn iteration is 6.
        ((4, 10), 3, [2, 4]),
        ((1, 2, 3), 1, [1, 2, 3]),
    ],
)
def test_a_stage_begins_with_its_first_iteration_that_the_stride_divides(
    ends: tuple[int, ...], stride: int, strided: list[int]
) -> None:
    assert [stage.until_step for stage in strided_stages(stages(*ends), stride)] == strided


def test_a_stage_without_an_iteration_that_the_stride_divides_is_refused() -> None:
    # Draws 0 and 4; the second stage has only 2 and 3.
    with pytest.raises(ValueError, match=r"^stage 'to 4' has no iteration divisible by 4.* end it at 8 or later$"):
        strided_stages(stages(2, 4), 4)
    assert [stage.until_step for stage in strided_stages(stages(2, 5), 4)] == [1, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 6))
def test_the_end_that_the_refusal_of_a_stride_names_is_right(lengths: list[int], stride: int) -> None:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    try:
        strided_stages(stages(*ends), stride)
    except ValueError as error:
        words = str(error).split()
        index = ends.index(int(words[words.index("has") - 1].strip("'")))
        wanted = int(words[-3])
        moved = [*ends[:index], wanted]
        assert len(strided_stages(stages(*moved), stride)) == index + 1
        if wanted - 1 > (ends[index - 1] if index else 0):
            with pytest.raises(ValueError, match="has no iteration"):
                strided_stages(stages(*ends[:index], wanted - stride), stride)


def test_what_is_dumped_loads_to_the_same_config(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        {"sums": {"gold": {"extract": {"after": "####"}}, "reasoning": {}, "gates": ["short"]}, "words": {}},
        graders={
            "short": {"type": "completion_length_cap", "max_tokens": 5},
            "tidy": {"type": "regex", "pattern": r"(?P<answer>\d+)"},
        },
        seed=7,
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "config.yaml", DataserverConfig) == config


def test_paths_start_from_the_folder_of_the_config(tmp_path: Path) -> None:
    minimal = {
        "datasets": {"sums": {"path": "sums.jsonl", "graders": {"string_exact": 1}}},
        "stages": [{"name": "all", "until_step": 1, "mix": {"sums": 1}}],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(minimal))
    config = load_config(tmp_path / "config.yaml", DataserverConfig)
    assert config.data_root == tmp_path
    assert config.journal.path == tmp_path / "journal.sqlite"


def test_without_a_number_there_is_a_worker_for_each_processor() -> None:
    assert make_config(ROOT, {"sums": {}}).limits.worker_count == len(os.sched_getaffinity(0))
    assert make_config(ROOT, {"sums": {}}, limits={"workers": 3}).limits.worker_count == 3
