"""The model card: a README made of what a run's folder, an evaluation and an export say, and of nothing else.

The same run gives the same bytes: there is no date in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from posttrain.hub.base_model import BaseModel
from posttrain.hub.facts import RunFacts
from posttrain.hub.repository import Target

Kind = Literal["adapter", "whole", "merged", "gguf"]
"""What is pushed: an adapter, a model whose weights were all trained, a merged model, or GGUF files."""

_WHAT = {
    "adapter": "LoRA adapter",
    "whole": "model, all of whose weights were trained",
    "merged": "model with the trained adapter merged in",
    "gguf": "model in GGUF files",
}
_RELATIONS = {"adapter": "adapter", "whole": "finetune", "merged": "finetune", "gguf": "quantized"}
_LIBRARIES = {"adapter": "peft", "whole": "transformers", "merged": "transformers", "gguf": "gguf"}


@dataclass(frozen=True)
class Score:
    """A mean that toolkit-eval measured, with its 95 % interval if there is one.

    Attributes:
        compared: the difference to a baseline, in words; empty if there is none.
    """

    task: str
    measure: str
    value: float
    low: float | None
    high: float | None
    prompts: int
    ungraded: int
    compared: str = ""


@dataclass(frozen=True)
class Contents:
    """What a card is about, besides the run.

    Attributes:
        exports: what toolkit-export wrote about each GGUF file.
    """

    kind: Kind
    target: Target
    base: BaseModel
    scores: Sequence[Score] = ()
    exports: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def model_card(facts: RunFacts, contents: Contents) -> str:
    """The text of README.md: the hub's metadata, then Markdown."""
    parts = [
        f"---\n{_metadata(facts, contents)}\n---",
        f"# {_plain(contents.target.repo.partition('/')[2])}",
        _summary(facts, contents),
        *_training(facts),
        *_data(facts),
        *_scores(contents),
        *_exports(contents),
        *_use(facts, contents),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(facts: RunFacts, contents: Contents) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=score.task,
            dataset_name=score.task,
            metric_type=score.measure,
            metric_value=round(score.value, 6),
        )
        for score in contents.scores
    ]
    data = ModelCardData(
        base_model=contents.base.repo,
        license=contents.base.licence,
        library_name=_LIBRARIES[contents.kind],
        pipeline_tag="text-generation",
        tags=["posttrain-toolkit", facts.tag],
        model_name=contents.target.repo.partition("/")[2],
        eval_results=results or None,
    )
    if contents.base.repo:
        data["base_model_relation"] = _RELATIONS[contents.kind]
    return data.to_yaml()


def _summary(facts: RunFacts, contents: Contents) -> str:
    base = contents.base
    name = _plain(base.name)
    if base.repo:
        copy = "" if base.name == base.repo else f" (in the run: {name})"
        name = f"[{base.repo}](https://huggingface.co/{base.repo}){copy}"
    return (
        f"A {_WHAT[contents.kind]}, made from {name} by {_plain(facts.method)} in {facts.step:,} optimizer steps "
        f"(run {_plain(facts.name)}). Written by posttrain-toolkit from what the run recorded."
    )


def _training(facts: RunFacts) -> Iterator[str]:
    yield "## Training"
    yield _table(("setting", "value"), facts.settings)
    if stages := list(facts.stages):
        yield _table(("stage", "until", "mix"), stages)
    if measures := [(name, str(step), f"{value:.4f}") for name, step, value in facts.measures]:
        yield _table(("measured in training", "step", "value"), measures)
    yield _table(("package", "version"), facts.packages)


def _data(facts: RunFacts) -> Iterator[str]:
    if facts.datasets:
        yield "## Data"
        yield _table(("data set", "BLAKE2b of its content"), facts.datasets.items())


def _scores(contents: Contents) -> Iterator[str]:
    if not contents.scores:
        return
    yield "## Evaluation"
    if contents.kind == "gguf":
        yield "Of the model before it was converted:"
    columns = ("task", "measure", "mean", "95 % interval", "prompts", "without a grade", "compared")
    yield _table(columns, map(_score_row, contents.scores))


def _score_row(score: Score) -> tuple[str, ...]:
    interval = "unknown" if score.low is None or score.high is None else f"{score.low:.4f} to {score.high:.4f}"
    counts = str(score.prompts), str(score.ungraded)
    return (score.task, score.measure, f"{score.value:.4f}", interval, *counts, score.compared)


def _exports(contents: Contents) -> Iterator[str]:
    if not contents.exports:
        return
    yield "## Files"
    yield (
        "llama.cpp answered prompts with each file, and the model scored the answers token by token. Agreement is the "
        "share of tokens that are the model's own first choice; KL is the mean of KL(model ‖ file) in nats per token."
    )
    rows = [
        (
            each["file"],
            each["type"],
            f"{each['bytes'] / 2**20:.0f} MiB",
            f"{each['checks']['answers']['agreement']:.1%}",
            f"{each['checks']['answers']['kl']:.2g}",
        )
        for each in contents.exports
    ]
    yield _table(("file", "type", "size", "agreement", "KL"), rows)


def _use(facts: RunFacts, contents: Contents) -> Iterator[str]:
    yield "## Use"
    chat = facts.config["chat"]
    if chat.get("default_system"):
        yield f"Trained with this system message where a conversation had none:\n\n> {_plain(chat['default_system'])}"
    if contents.kind == "gguf":
        file = contents.exports[0]["file"]
        yield f"```\nllama-server --hf-repo {contents.target.repo} --hf-file {file}\n```"
        return
    is_adapter = contents.kind == "adapter"
    loader, package = ("AutoPeftModelForCausalLM", "peft") if is_adapter else ("AutoModelForCausalLM", "transformers")
    place = f'"{contents.target.repo}", revision="{contents.target.revision}"'
    yield "The tokenizer has the chat template of training."
    yield (
        "```python\n"
        f"from {package} import {loader}\n"
        "from transformers import AutoTokenizer\n\n"
        f"model = {loader}.from_pretrained({place})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({place})\n"
        'messages = [{"role": "user", "content": "What is 2 + 3?"}]\n'
        "prompt = tokenizer.apply_chat_template(\n"
        '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True\n'
        ")\n"
        'answer = model.generate(**prompt, max_new_tokens=64)[0][prompt["input_ids"].shape[1] :]\n'
        "print(tokenizer.decode(answer, skip_special_tokens=True))\n"
        "```"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text on one line that Markdown and HTML show as it is."""
    shown = " ".join(text.split())
    for special in "\\|`*_[]":
        shown = shown.replace(special, f"\\{special}")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
