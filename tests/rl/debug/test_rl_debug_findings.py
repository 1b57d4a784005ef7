"""Every finding of toolkit-rl-debug, provoked by a server with a different fault in each iteration."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataserver.serving import Server, serving
from posttrain.config.load import load_config
from posttrain.rl.config import RLConfig
from posttrain.rl.debug.look import DebugRequest, Look, look_at_rollouts
from posttrain.rl.debug.report import one_line
from rl.rl_runs import WriteRun, write_run

GRADERS = """
from posttrain.dataserver.graders.base import Abstain

def quiet(item):
    raise Abstain("cannot tell")

def broken(item):
    raise ValueError("no such thing")
"""

MARKS = "Reason between <think> and </think>, and write the answer after ####."

# The graders, gates and system message of each iteration's data set.
FAULTS: dict[str, dict[str, Any]] = {
    "none": {"graders": {"says_letter": 1}},
    "never": {"graders": {"says_letter": 3, "never": 1}},
    "nothing earned": {"graders": {"never": 1}},
    "all earned": {"graders": {"always": 1}},
    "gate": {"graders": {"says_letter": 1}, "gates": ["never"]},
    "half": {"graders": {"always": 1, "never": 1}},
    "quiet": {"graders": {"quiet": 1}},
    "broken": {"graders": {"broken": 1}},
    "marks": {"graders": {"says_letter": 1}, "system": MARKS},
}
ITERATIONS = {name: number for number, name in enumerate(FAULTS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    config = write_run(tmp_path_factory.mktemp("faults"), tiny_model)
    served: dict[str, Any] = {
        "prompts_per_iteration": 2,
        "datasets": {name: {"path": "a.jsonl", "gold": None, **fault} for name, fault in FAULTS.items()},
        "graders": {
            "says_letter": {"type": "regex", "pattern": "(?s).*[A-Za-z].*"},
            "never": {"type": "regex", "pattern": "never said"},
            "always": {"type": "regex", "pattern": "(?s).*"},
            "quiet": {"type": "python", "path": "own.py:quiet"},
            "broken": {"type": "python", "path": "own.py:broken"},
        },
        "stages": [{"name": name, "until_step": number + 1, "mix": {name: 1}} for number, name in enumerate(FAULTS)],
        "limits": {"workers": 1},
    }
    config.with_name("data.yaml").write_text(yaml.safe_dump(served))
    (config.parent / "own.py").write_text(GRADERS)
    with serving(config.with_name("data.yaml")) as server:
        yield server


@pytest.fixture
def look(a_run: WriteRun, server: Server) -> Callable[..., Look]:
    """`look(fault, *overrides)` looks at 2 prompts of the fault's iteration, with 16 completions each.

    Completions stop at the first space, "a" or "e", so hardly any is truncated.
    """

    def at(fault: str, *overrides: str) -> Look:
        config = a_run(
            dataserver={"config": None, "url": server.url},
            evaluation=None,
            rollout={"max_new_tokens": 100, "stop": [" ", "a", "e"]},
        )
        return look_at_rollouts(
            load_config(config, RLConfig, list(overrides)),
            config.stem,
            DebugRequest(prompts=2, samples=16, iteration=ITERATIONS[fault]),
        )

    return at


Looking = Callable[..., Look]

NOTHING_TO_LEARN = "the rewards of every prompt are all equal, so there is nothing to learn: "
TOO_HARD = f"{NOTHING_TO_LEARN}all are 0: the task is too hard or a format is never met, "
ALWAYS = "the grader always gives 1 to all 32 completions, so it teaches nothing: "
NEVER = "the grader never gives 0 to all 32 completions: if its format is never met, teach that by SFT first"


@pytest.mark.parametrize(
    ("fault", "beginnings"),
    [
        ("none", []),
        ("never", [NEVER]),
        ("nothing earned", [TOO_HARD, NEVER]),
        (
            "all earned",
            [f"{NOTHING_TO_LEARN}all are 1: the task is solved, so stop here, or use harder", ALWAYS],
        ),
        ("gate", [TOO_HARD, "the grader never gives 0 to all 32 completions, and as a gate makes every reward 0: "]),
        ("half", [f"{NOTHING_TO_LEARN}use prompts that are sometimes solved", ALWAYS, NEVER]),
        (
            "quiet",
            [
                "32 of 32 completions cannot be judged, so they have no reward and teach nothing: "
                "quiet: cannot tell (32 times); "
            ],
        ),
        (
            "broken",
            [
                "32 of 32 completions could not be graded, so they have no reward and teach nothing: "
                "broken: ValueError: no such thing (32 times); "
            ],
        ),
        ("marks", ["every prompt mentions ####, </think>, <think>, which no completion contains: "]),
    ],
)
def test_what_is_wrong_with_rewards_is_told_and_nothing_else(fault: str, beginnings: list[str], look: Looking):
    found = look(fault).findings
    assert [line[: len(beginning)] for line, beginning in zip(found, beginnings, strict=True)] == beginnings


def test_a_grader_that_is_never_satisfied_comes_with_a_completion_that_says_something(look: Looking):
    seen = look("never")
    texts = [completion.text for group in seen.groups for completion in group.completions]
    assert "" in texts
    spoken = next(text for text in texts if text.strip())
    assert seen.findings[0].endswith(f"; one completion: {one_line(spoken)}")


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["rollout.temperature=1e-6"], "raise rollout.temperature (it is 1e-06)"),
        (["rollout.top_k=1"], "raise rollout.temperature (it is 1), or leave out top_k"),
    ],
)
def test_completions_that_are_alike_are_told_and_not_their_rewards(overrides: list[str], advice: str, look: Looking):
    found = look("none", *overrides).findings
    alike = "all completions of 2 of 2 prompts are alike, so none of them is better than another: "
    assert found[0] == alike + advice
    assert not any(line.startswith(NOTHING_TO_LEARN) for line in found)


def test_completions_that_are_cut_are_told(look: Looking):
    seen = look("none", "rollout.max_new_tokens=1", "rollout.stop=[]")
    cut = [completion.was_cut for group in seen.groups for completion in group.completions]
    share = f"{sum(cut) / 32:.0%}"
    assert f"{share} of the completions were cut at rollout.max_new_tokens 1: raise it; " in " ".join(seen.findings)


def test_prompts_that_are_too_long_are_told_with_the_lengths_that_would_do(look: Looking):
    seen = look("none", "rollout.max_prompt_tokens=20")
    longer = [length for length in seen.lengths if length > 20]
    # The prompts of all 9 iterations are measured, 2 each, but only the first iteration's are sampled.
    assert len(seen.lengths) == 18 and 0 < len(longer) < 18
    assert seen.findings[0].startswith(f"{len(longer)} of 18 prompts ({len(longer) / 18:.0%}) are longer than ")
    assert seen.findings[0].endswith(f", {max(seen.lengths)} fits all")
    for group in seen.groups:
        assert len(group.completions) == (0 if len(group.prompt.ids) > 20 else 16)


def test_where_all_prompts_are_too_long_nothing_is_sampled_and_nothing_else_is_found(look: Looking):
    seen = look("nothing earned", "rollout.max_prompt_tokens=1")
    assert [len(group.completions) for group in seen.groups] == [0, 0]
    assert [line.split(" (")[0] for line in seen.findings] == ["18 of 18 prompts"]


@pytest.fixture(scope="module")
def knows_tags(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The tiny model with a tokenizer that has <think> as a special token and </think> as its end token."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "knows_tags"
    shutil.copytree(tiny_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"], "eos_token": "</think>"})
    tokenizer.save_pretrained(folder)
    return folder


def test_a_tag_that_the_tokenizer_takes_for_its_own_is_told(look: Looking, knows_tags: Path):
    found = look("marks", f"model.name={knows_tags}").findings
    assert "</think> ends a completion and is removed from its text, so no grader ever sees it: " in " ".join(found)
    # The tokenizer has no merges for its seven characters.
    assert "<think> is a special token of the tokenizer, but prompts spell it with 7 ordinary tokens" in " ".join(found)


def test_marks_that_the_chat_template_leaves_out_are_told(look: Looking, tiny_model: Path, tmp_path: Path):
    folder = tmp_path / "without_system"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages if message.role == 'user' %}<|im_start|>user\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n"
    )
    found = look("marks", "chat.template=tokenizer", f"model.name={folder}").findings
    left_out = [line.split(",")[0] for line in found]
    assert left_out == [f"the prompts contain {marker}" for marker in ("####", "</think>", "<think>")]
