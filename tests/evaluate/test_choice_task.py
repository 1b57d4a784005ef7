"""Task `choice`: which answer counts as the most likely one, worked out by hand and with transformers alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eval_cases import CHOICES, Case
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.generation import AnsweringConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError
from posttrain.evaluate.tasks.base import Setting
from posttrain.evaluate.tasks.choice import ChoiceTask, ChoiceTaskConfig, Question, answer_rows, most_likely


def question(*choices: str, gold: int = 0) -> Question:
    return Question(1, Conversation((Message("user", "Which?"),)), choices, gold, None)


def test_acc_takes_the_sum_and_acc_norm_divides_it_by_the_bytes_of_the_answer():
    # "é" has two bytes: -4.0 / 1, -6.0 / 4 = -1.5, -5.0 / 3 = -1.67.
    asked, sums = question("a", "éé", "abc"), [-4.0, -6.0, -5.0]
    assert most_likely(asked, sums, "acc") == 0
    assert most_likely(asked, sums, "acc_norm") == 1


def test_the_first_of_equally_likely_answers_counts():
    assert most_likely(question("aa", "bb"), [-2.0, -2.0], "acc") == 0
    assert most_likely(question("aaaa", "bb"), [-4.0, -2.0], "acc_norm") == 0


@given(st.lists(st.tuples(st.text(min_size=1, max_size=9), st.floats(-90, -0.001)), min_size=2, max_size=5))
def test_of_answers_of_one_length_both_scores_name_the_same(answers: list[tuple[str, float]]):
    sums = [logprob for _, logprob in answers]
    asked = question(*(f"{number}{'x' * 7}" for number in range(len(answers))))
    assert most_likely(asked, sums, "acc") == most_likely(asked, sums, "acc_norm") == sums.index(max(sums))


def test_an_answer_is_the_prompt_s_own_ids_and_then_its_tokens_without_the_one_that_ends_the_turn(tiny_model: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    encoder = conversation_encoder(ChatConfig(train_on="last"), tokenizer)
    asked = question("ab", "<|im_end|>")
    [prompt] = encoder.prompts([asked.prompt])
    for row, choice in zip(answer_rows(asked, encoder), asked.choices, strict=True):
        assert row.ids[: len(prompt)] == prompt
        scored = [token for token, flag in zip(row.ids, row.trained, strict=True) if flag]
        # An answer is text, even if it looks like a control token.
        assert tokenizer.decode(scored) == choice
        assert not {*scored} & {*encoder.end_ids}
        assert row.ids[len(prompt) : len(prompt) + len(scored)] == scored
        assert row.ids[len(prompt) + len(scored)] in encoder.end_ids


def test_scores_are_those_of_a_forward_pass_of_transformers(case: Case, run: Callable, sharp_model: Path):
    case.change(tasks={"which": {"type": "choice", "path": "choices.jsonl"}})
    case.change(models={"base": {"config": "tuned.yaml", "weights": "base"}})
    run(case.config)
    [kept] = case.kept("logprobs").values()
    found = json.loads(kept)

    model = AutoModelForCausalLM.from_pretrained(sharp_model, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(sharp_model)
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    def logprob(prompt: str, answer: str) -> float:
        asked = [start, *ids(f"user\n{prompt}"), end, *ids("\n"), start, *ids("assistant\n")]
        options = ids(answer)
        with torch.no_grad():
            logits = model(torch.tensor([asked + options])).logits[0]
        likely = logits.log_softmax(-1)
        return sum(likely[len(asked) + place - 1, token].item() for place, token in enumerate(options))

    expected = {row["prompt"]: [logprob(row["prompt"], each) for each in row["choices"]] for row in CHOICES}
    task = ChoiceTaskConfig.model_validate(
        {"type": "choice", "path": "choices.jsonl"}, context={"base_dir": case.folder}
    ).load("which", setting(case.folder))
    assert isinstance(task, ChoiceTask)
    in_order = [value for each in task.questions for value in expected[str(each.prompt.messages[-1].content)]]
    assert found == pytest.approx(in_order, rel=1e-4)

    right = {"acc": 0, "acc_norm": 0}
    for row in CHOICES:
        sums = expected[row["prompt"]]
        by_byte = [value / len(answer.encode()) for value, answer in zip(sums, row["choices"], strict=True)]
        right["acc"] += sums.index(max(sums)) == row["gold"]
        right["acc_norm"] += by_byte.index(max(by_byte)) == row["gold"]
    measures = case.results()["tasks"]["which"]["measures"]
    shares = {name: measures[name]["estimates"]["base"]["value"] for name in measures}
    assert shares == {name: pytest.approx(count / 6) for name, count in right.items()}


def setting(folder: Path) -> Setting:
    return Setting(folder, AnsweringConfig(), {}, allow_code_execution=False, skip_unusable=False)


def load(folder: Path, *rows: object, **keys: object) -> ChoiceTask:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"type": "choice", "path": "rows.jsonl", **keys}
    task = ChoiceTaskConfig.model_validate(config, context={"base_dir": folder}).load("task", setting(folder))
    assert isinstance(task, ChoiceTask)
    return task


def test_the_right_answer_is_named_by_its_text_or_its_place(tmp_path: Path):
    rows = [{"prompt": f"{gold}?", "choices": ["1", "0", "2"], "gold": gold} for gold in ("0", 0, 2)]
    assert [load(tmp_path, row).questions[0].gold for row in rows] == [1, 0, 2]


def test_the_first_prompts_are_chosen_by_content_and_not_by_their_lines(tmp_path: Path):
    rows = [{"prompt": f"What is {n}?", "choices": ["a", "b"], "gold": 0} for n in range(20)]
    chosen = [
        {str(each.prompt) for each in load(tmp_path, *order, prompts=5).questions} for order in (rows, rows[::-1])
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5
    assert [each.line for each in load(tmp_path, *rows, prompts=5).questions] != [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"choices": ["a"]}, "two or more"),
        ({"choices": ["a", ""]}, "two or more"),
        ({"choices": "ab"}, "two or more"),
        ({"choices": ["a", "a"]}, "twice"),
        ({"choices": ["a", 1]}, "two or more"),
        ({"gold": "c"}, "from 0 to 1"),
        ({"gold": 2}, "from 0 to 1"),
        ({"gold": -1}, "from 0 to 1"),
        ({"gold": True}, "from 0 to 1"),
        ({"gold": 0.0}, "from 0 to 1"),
        ({"gold": None}, "from 0 to 1"),
        ({"prompt": ""}, ""),
        ({"prompt": 7}, ""),
    ],
)
def test_a_question_that_is_wrong_is_named_by_its_line(change: dict[str, object], reason: str, tmp_path: Path):
    good = {"prompt": "Which?", "choices": ["a", "b"], "gold": 0}
    with pytest.raises(DataError, match=r"rows\.jsonl:2: .*" + reason):
        load(tmp_path, good, good | change)


def test_a_question_that_is_too_long_is_named(case: Case, run: Callable):
    long = {"prompt": "word " * 200, "choices": ["a", "b"], "gold": 0}
    (case.folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*CHOICES, long]))
    told = run(case.config, "--tasks", "which", expect=2).stderr
    assert "line 7 of" in told and "positions of base" in told
