"""The models that answer in a chat."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from posttrain.chat.dialogue import Answer
from posttrain.chat.job import Candidate
from posttrain.conversation.messages import Conversation
from posttrain.errors import DataError
from posttrain.inference.answering.rows import Room, too_long
from posttrain.inference.answering.text_stream import TextStream
from posttrain.inference.devices import open_answering
from posttrain.inference.engine import Engine, GenerationRequest, Sampling, StreamingEngine, heard
from posttrain.inference.load import ModelText, load_text
from posttrain.inference.process.specs import AnsweringSpec


class Answerer:
    """A loaded model that answers conversations."""

    def __init__(self, candidate: Candidate, engine: Engine, text: ModelText) -> None:
        self.name = candidate.name
        self._chat = candidate.weights.chat
        self._engine, self._text = engine, text

    @property
    def streams(self) -> bool:
        """Whether an answer comes token by token, and can be stopped."""
        return isinstance(self._engine, StreamingEngine)

    def prompt_ids(self, conversation: Conversation, max_new_tokens: int) -> tuple[int, ...]:
        """The prompt, as the encoder of training makes it; DataError if there is no room for it and an answer."""
        (ids,) = self._text.encoder.prompts([conversation])
        if fault := too_long(len(ids), Room(self._chat.max_length, max_new_tokens, self._text.positions)):
            raise DataError(f"{self.name}: {fault}; /undo or /new shortens the conversation")
        return tuple(ids)

    def answer(self, ids: tuple[int, ...], seed: int, sampling: Sampling, hear: Callable[[str], bool]) -> Answer:
        """Answer a prompt; `hear` gets each piece of text, and ends the answer by False."""
        stream = TextStream(self._text.tokenizer, sampling.stop)
        said: list[str] = []

        def hear_tokens(_: object, tokens: Sequence[int]) -> bool:
            said.append(stream.add(tokens))
            return hear(said[-1])

        ((_, completion),) = heard(self._engine, [GenerationRequest(ids, (seed,))], sampling, hear_tokens)
        said.append(stream.finish())
        hear(said[-1])
        return Answer("".join(said), completion.stop_reason, self.name)


@contextmanager
def open_answerers(candidates: Sequence[Candidate]) -> Iterator[list[Answerer]]:
    """Load the models; they are closed at the end of the block.

    Raises:
        ConfigError, ModelError: as `open_answering`.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_opened(candidate)) for candidate in candidates]


@contextmanager
def _opened(candidate: Candidate) -> Iterator[Answerer]:
    weights, generation = candidate.weights, candidate.generation
    text = load_text(weights.model, weights.chat)
    longest = weights.chat.max_length + generation.max_new_tokens
    longest = longest if text.positions is None else min(longest, text.positions)
    spec = AnsweringSpec(generation.engine, weights.model, weights.adapter, weights.chat, 1, longest)
    with open_answering(spec, generation.devices) as engine:
        yield Answerer(candidate, engine, text)
