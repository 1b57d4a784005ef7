"""A user's own engine is created from its file, and a class that is none is refused with what it lacks."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from posttrain.errors import ConfigError, RunError
from posttrain.inference.engine import FinishedCompletions, GenerationRequest, Sampling, StopReason
from posttrain.inference.own_engine import OwnEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_engine" / "engine.py"


def test_the_example_samples_by_seed_and_tells_its_log_probabilities(sharp_model: Path) -> None:
    engine = OwnEngine(f"{EXAMPLE}:PlainEngine", str(sharp_model), frozenset([2]), {"dtype": "float32"})
    prompt, sampling = (5, 9, 20, 31), Sampling(6, temperature=1.0, logprobs=True)
    found = engine.complete([GenerationRequest(prompt, (1, 2)), GenerationRequest(prompt, (2, 3))], sampling)
    assert found.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert found[0, 1] == found[1, 0]  # the same prompt and seed
    assert found[0, 0] != found[0, 1]
    for made in found.values():
        assert len(made.token_ids) == 6 or made.stop_reason is StopReason.END
        scores = engine.score([*prompt, *made.token_ids])
        assert made.logprobs == pytest.approx(scores[len(prompt) - 1 :], abs=1e-4)
    engine.close()


def test_the_example_generates_with_the_weights_that_it_was_given(sharp_model: Path, tmp_path: Path) -> None:
    engine = OwnEngine(f"{EXAMPLE}:PlainEngine", str(sharp_model), frozenset([2]))
    before = engine.score([5, 9, 20])
    model = AutoModelForCausalLM.from_pretrained(sharp_model)
    model.get_input_embeddings().weight.data *= 0.5
    model.save_pretrained(tmp_path)
    engine.load(tmp_path, 1)
    assert engine.score([5, 9, 20]) != before


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1", "has no class Engine"),
        ("Engine = print", "has no class Engine"),
        ("class Engine:\n    def load(self): ...", "lacks complete, score, close"),
        ("import nonsense_module", "cannot be imported"),
        (
            "class Engine:\n    load = complete = score = close = print\n"
            "    def __init__(self, model, end_ids): raise RuntimeError('no GPU')",
            "no GPU",
        ),
    ],
)
def test_a_file_without_an_engine_is_refused(code: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(ConfigError, match=told):
        OwnEngine(f"{file}:Engine", "model", frozenset())


_ENGINE = """
from posttrain.inference.engine import Completion, StopReason
END = StopReason.END

class Engine:
    load = score = close = lambda self, *_: ANSWER
    def __init__(self, model, end_ids): ...
    def complete(self, requests, sampling):
        return ANSWER
"""


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("None", "must return a dict"),
        ("{(0, 0): Completion((5,), END, (-0.5,))}", "must return a dict"),
        ("{(0, 0): Completion((), END, ()), (0, 1): Completion((5,), END, (-0.5,))}", r"\(0, 0\) is no Completion"),
        ("{(0, 0): Completion((5, 6, 7), END, None), (0, 1): 3}", r"\(0, 0\) is no Completion of 1 to 2 tokens"),
        ("{(0, 0): Completion((5,), END), (0, 1): Completion((5,), END)}", "log-probability"),
        ("{key: Completion((5,), END, (float('nan'),)) for key in ((0, 0), (0, 1))}", "log-probability"),
        ("1 / 0", "complete failed: ZeroDivisionError"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_ends_the_run_by_name(answer: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(_ENGINE.replace("ANSWER", answer))
    engine = OwnEngine(f"{file}:Engine", "model", frozenset())
    with pytest.raises(RunError, match=rf"mine\.py:Engine: .*{told}"):
        engine.complete([GenerationRequest((5,), (1, 2))], Sampling(2, temperature=1.0, logprobs=True))


def test_it_is_not_asked_for_what_has_ended_earlier(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(_ENGINE.replace("return ANSWER", "self.complete = None; return {(0, 0): Completion((5,), END)}"))
    engine, finished = OwnEngine(f"{file}:Engine", "model", frozenset()), FinishedCompletions()
    asked = [GenerationRequest((5,), (1,))]
    made = engine.complete(asked, Sampling(2), finished)
    assert engine.complete(asked, Sampling(2), finished) == made
    with pytest.raises(RunError, match="complete failed"):
        engine.complete(asked, Sampling(2))


def test_a_score_must_have_a_number_for_each_token_but_the_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(_ENGINE.replace("ANSWER", "[-0.5]"))
    engine = OwnEngine(f"{file}:Engine", "model", frozenset())
    assert engine.score([5, 6]) == [-0.5]
    with pytest.raises(RunError, match="all 3 tokens"):
        engine.score([5, 6, 7])
