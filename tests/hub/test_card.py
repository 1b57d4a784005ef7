"""The card shows names as they are, whatever is in them, and is the same for the same run."""

from dataclasses import replace

import yaml
from hypothesis import given
from hypothesis import strategies as st

from posttrain.hub.base_model import BaseModel
from posttrain.hub.card import Contents, Score, model_card
from posttrain.hub.facts import RunFacts
from posttrain.hub.repository import Target

FACTS = RunFacts(
    name="run",
    step=4,
    config={
        "model": {"adapter": None},
        "lora": None,
        "chat": {"max_length": 64, "default_system": None},
        "training": {
            "rows_per_step": 4,
            "learning_rate": 1e-4,
            "schedule": "cosine",
            "optimizer": "adamw",
            "seed": 0,
        },
    },
    manifest={"command": "toolkit-sft", "identity": {"datasets": {"a": "0" * 32}}},
    rows=(
        {"step": 3, "loss": 2.5, "tokens": 30, "trained_tokens": 10},
        {"step": 4, "eval_loss": 2.25},
        {"step": 4, "loss": 2.0, "tokens": 40, "trained_tokens": 20},
    ),
)
CONTENTS = Contents("whole", Target("owner/name", "main"), BaseModel("base", None, None, "mit"))


def test_totals_are_sums_of_the_steps_and_measures_are_the_last() -> None:
    text = model_card(FACTS, CONTENTS)
    for row in ("| tokens | 70 |", "| trained tokens | 30 |", "| training loss | 4 | 2.0000 |"):
        assert row in text
    assert "| held-out loss | 4 | 2.2500 |" in text and "| trained weights | all |" in text


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@given(NAMES, NAMES, NAMES)
def test_no_name_can_end_a_table_begin_html_or_change_the_metadata(dataset: str, task: str, system: str) -> None:
    facts = replace(
        FACTS,
        manifest={"command": "toolkit-sft", "identity": {"datasets": {dataset: "0" * 32}}},
        config={**FACTS.config, "chat": {"max_length": 64, "default_system": system}},
    )
    score = Score(task, "right", 0.5, None, None, 3, 0)
    text = model_card(facts, replace(CONTENTS, scores=(score,)))
    _, metadata, rest = text.split("---\n", 2)
    [index] = yaml.safe_load(metadata)["model-index"]
    assert [result["dataset"]["name"] for result in index["results"]] == [task]
    assert "<" not in rest
    rows = [line for line in rest.splitlines() if line.endswith(f"| {'0' * 32} |")]
    assert len(rows) == 1 and rows[0].replace("\\|", "").count("|") == 3
    assert model_card(facts, replace(CONTENTS, scores=(score,))) == text
