"""Prompts of reinforcement learning for a preview: as the model gets them, their gold answers, and what these earn."""

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from posttrain.base.text import counted
from posttrain.config.load import load_config
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.graders.text.completions import ReasoningTags, column_value
from posttrain.dataserver.offline.completions import Completion
from posttrain.dataserver.offline.display import outcome, scores_text
from posttrain.dataserver.offline.grading import Judged, grade_all
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import Sample
from posttrain.errors import ConfigError, DataError
from posttrain.preview.rows import Shown
from posttrain.preview.tokens import Side, Token, pieces
from posttrain.rl.config import RLConfig


def dataserver_config(config: RLConfig) -> DataserverConfig:
    """The config of the dataserver that a run starts; ConfigError if the run uses one that is already running."""
    if config.dataserver.config is None:
        raise ConfigError(
            "dataserver.url: a preview reads the data itself; give it the config of that dataserver instead of this one"
        )
    return load_config(config.dataserver.config, DataserverConfig)


class PromptPreview:
    """Shows prompts of a dataserver's config, with a model's tokenizer or as text."""

    def __init__(self, loaded: Loaded, tokenizer: Any = None, encoder: ConversationEncoder | None = None) -> None:
        self._loaded = loaded
        self._tokenizer, self._encoder = tokenizer, encoder

    def choose(self, worst: int, stage: str | None) -> list[tuple[Slot, str, int]]:
        """The longest prompts and the first of each data set in each stage: slot, reason and iteration.

        Raises:
            ConfigError: there is no such stage.
        """
        stages = [each for each in self._loaded.meta.stages if stage in (None, each.name)]
        if not stages:
            known = ", ".join(each.name for each in self._loaded.meta.stages)
            raise ConfigError(f"--stage {stage}: there is no such stage; there are: {known}")
        names = list(dict.fromkeys(name for each in stages for name, share in each.mix.items() if share))
        chosen = [(Slot(0, name, row), why, 0) for name, row, why in self._longest(names, worst)]
        seen = set[str]()
        for each in stages:
            count = self._loaded.config.prompts_per_iteration
            for slot in self._loaded.sampler.slots(each.from_iteration, 0, count, "train"):
                if slot.dataset not in seen:
                    seen.add(slot.dataset)
                    why = f"first of {slot.dataset}, in iteration {each.from_iteration}"
                    chosen.append((slot, why, each.from_iteration))
        return chosen

    def find(self, file: str, line: str) -> Slot:
        """The row on a line of a data set; DataError if there is none."""
        for name, rows in self._loaded.datasets.items():
            path = str(getattr(self._loaded.config.datasets[name], "path", name))
            if file == name or path == file or path.endswith(f"/{file.removeprefix('./')}"):
                index = rows.find(line)
                if index is None:
                    raise DataError(f"--row: the data set {name} has no usable row {line}")
                return Slot(0, name, index)
        known = ", ".join(self._loaded.datasets)
        raise DataError(f"--row: no data set has the name or the file {file}; the data sets are: {known}")

    def show(self, chosen: Sequence[tuple[Slot, str, int]]) -> list[Shown]:
        """The prompts with their golds, and what the graders say of the reference answer."""
        samples = [self._loaded.samples.sample(slot) for slot, _, _ in chosen]
        graded = self._graded([(sample, iteration) for sample, (_, _, iteration) in zip(samples, chosen, strict=True)])
        return [
            self._shown(sample, slot, why, graded.get(number))
            for number, (sample, (slot, why, _)) in enumerate(zip(samples, chosen, strict=True))
        ]

    def _longest(self, names: Sequence[str], worst: int) -> Iterator[tuple[str, int, str]]:
        found = []
        for name in names:
            for index in range(len(self._loaded.datasets[name])) if name in self._files() else ():
                messages = self._loaded.samples.sample(Slot(0, name, index)).messages
                found.append((-sum(len(message.content) for message in messages), name, index))
        for length, name, index in sorted(found)[:worst]:
            yield name, index, f"longest: {counted(-length, 'character')}"

    def _files(self) -> set[str]:
        """The data sets that are files; rows that a program makes are too many to make them all."""
        return {name for name, config in self._loaded.config.datasets.items() if hasattr(config, "path")}

    def _shown(self, sample: Sample, slot: Slot, why: str, judged: Judged | None) -> Shown:
        rows = self._loaded.datasets[slot.dataset]
        gold = self._loaded.samples.target(sample.sample_id).gold
        texts = {} if gold is None else {"gold": written(gold)}
        if judged is not None:
            result, answer = judged.result, written(self._reference(sample))
            told = scores_text(result.components) or result.reason
            texts |= {"reference": answer} if answer != texts["gold"] else {}
            texts["graders on the reference"] = f"reward {outcome(result.status, result.reward)}: {told}"
        path = getattr(self._loaded.config.datasets[slot.dataset], "path", None)
        place = f"{slot.dataset}: {'row ' if path is None else f'{PurePath(path).name}:'}{rows.key(slot.index)}"
        if self._encoder is None:
            texts = {**{message.role: message.content for message in sample.messages}, **texts}
            return Shown(place, why, [], [], texts=texts)
        tokens = prompt_tokens(self._tokenizer, self._encoder, conversation_of(sample))
        started = sum(token.tone == "start" for token in tokens)
        facts = [counted(len(tokens), "token"), f"{started} of the generation prompt"]
        return Shown(place, why, [Side("", tokens)], facts, texts=texts)

    def _reference(self, sample: Sample) -> Any:
        """All that the row's gold column holds, of which `gold.extract` may take a part; None without a gold."""
        target = self._loaded.samples.target(sample.sample_id)
        section = getattr(self._loaded.config.datasets[sample.dataset], "gold", None)
        return target.gold if section is None else column_value(target.row.record, section.column)

    def _graded(self, asked: Sequence[tuple[Sample, int]]) -> dict[int, Judged]:
        """What the graders say of each reference as an answer, by number; rows without a gold have none."""
        completions = []
        for number, (sample, iteration) in enumerate(asked):
            if (reference := self._reference(sample)) is not None:
                text = _reasoned(self._loaded.config.datasets[sample.dataset].reasoning) + written(reference)
                completions.append(
                    Completion(
                        place=sample.sample_id,
                        number=number,
                        sample_id=sample.sample_id,
                        iteration=iteration,
                        text=text,
                        completion_tokens=None,
                        truncated=False,
                    )
                )
        judged: dict[int, Judged] = {}

        def keep(completion: Completion, found: Judged) -> None:
            judged[completion.number] = found

        if completions:
            grade_all(self._loaded, completions, len(completions), keep)
        return judged


def prompt_tokens(tokenizer: Any, encoder: ConversationEncoder, conversation: Conversation) -> list[Token]:
    """The tokens of a prompt; those that its generation prompt adds have the tone `start`."""
    (ids,) = encoder.prompts([conversation])
    try:
        plain = encoder.rows([conversation])[0].ids
    except DataError:  # some templates render no conversation without an answer
        plain = ids
    same = next((at for at, (a, b) in enumerate(zip(ids, plain, strict=False)) if a != b), min(len(ids), len(plain)))
    shown = zip(ids, pieces(tokenizer, ids), strict=True)
    return [Token(token, text, "context" if at < same else "start") for at, (token, text) in enumerate(shown)]


def conversation_of(sample: Sample) -> Conversation:
    """The conversation of a sample, as the trainer reads it."""
    return parse_conversation([message.model_dump(exclude_none=True) for message in sample.messages], sample.tools)


def written(gold: object) -> str:
    """A gold answer as text."""
    return gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False)


def _reasoned(tags: ReasoningTags | None) -> str:
    """An empty reasoning, where an answer without one is none."""
    if tags is None:
        return ""
    return ("" if tags.opened_in_prompt else tags.open) + f"\n{tags.close}\n"
