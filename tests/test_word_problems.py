"""The example's data match its generator, and its held-out problems are not trained on."""

import json
import re
import sys
from pathlib import Path

from posttrain.config.load import load_config
from posttrain.pipeline.config import PipelineConfig
from posttrain.pipeline.steps.base import ConfiguredStep

FOLDER = Path(__file__).parents[1] / "examples" / "word_problems"
FORMAT = re.compile(r"(\d+ [+×-] \d+ = \d+\n)+Answer: (\d+)")
sys.path.insert(0, str(FOLDER))

import demo  # noqa: E402
import generate  # noqa: E402
import shuffled_rewards  # noqa: E402


def test_the_committed_files_are_what_the_generator_makes():
    for name, rows in generate.generate().items():
        committed = [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
        assert committed == rows


def test_no_held_out_problem_is_trained_on():
    files = generate.generate()
    trained = {row["prompt"] for name in ("one_step.jsonl", "two_steps.jsonl") for row in files[name]}
    assert not trained & {row["prompt"] for row in files["held_out.jsonl"]}


def test_every_answer_is_in_the_format_and_every_calculation_is_right():
    for rows in generate.generate().values():
        for row in rows:
            assert FORMAT.fullmatch(row["completion"])
            *steps, result = row["completion"].splitlines()
            for step in steps:
                calculation, value = step.split(" = ")
                assert eval(calculation.replace("×", "*")) == int(value)
            assert result == f"Answer: {value}"


def test_the_demo_uses_vllm_where_the_processor_and_the_installation_allow_it(tmp_path: Path):
    (tmp_path / "with").write_text("flags : fpu avx2 avx512f avx512bw\n")
    (tmp_path / "without").write_text("flags : fpu avx2\n")
    assert demo.missing_for_vllm(tmp_path / "with") == ""  # vllm is installed for the tests
    assert "AVX-512" in demo.missing_for_vllm(tmp_path / "without")


def test_the_keys_that_the_demo_replaces_are_those_of_the_pipeline():
    overrides = [f"{key}=vllm" for key in demo.ENGINES]
    steps = load_config(demo.PIPELINE, PipelineConfig, overrides).steps
    replaced = {name: step.set for name, step in steps.items() if isinstance(step, ConfiguredStep)}
    assert {name: key for name, keys in replaced.items() for key in keys if key.endswith("engine")} == {
        "pairs": "sample.engine",
        "grpo": "rollout.engine",
        "scores": "sampling.engine",
    }


def test_the_control_deals_rewards_out_anew_and_leaves_those_of_held_out_completions():
    results = [{"item_id": str(number), "reward": number / 8} for number in range(8)]
    training = {"request_id": "run-0-train-3-3-abc", "results": results}

    dealt = shuffled_rewards.shuffled(training)["results"]

    assert dealt != results
    assert [each["item_id"] for each in dealt] == [each["item_id"] for each in results]
    assert sorted(each["reward"] for each in dealt) == [each["reward"] for each in results]
    assert shuffled_rewards.shuffled(training)["results"] == dealt
    held_out = {"request_id": "run-0-eval-3-abc", "results": results}
    assert shuffled_rewards.shuffled(held_out) == held_out
