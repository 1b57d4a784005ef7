"""A conversation that is being had: what was asked, and each answer to it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError
from posttrain.inference.engine import StopReason

_CUT = {StopReason.LENGTH: "it was cut at max_new_tokens", StopReason.CUT: "it was stopped"}


@dataclass(frozen=True)
class Answer:
    """One answer of a model: its text, how it ended, and who gave it."""

    text: str
    stop_reason: StopReason
    by: str

    @property
    def fault(self) -> str | None:
        """Why it cannot be trained on; None if it can."""
        return _CUT.get(self.stop_reason) or (None if self.text.strip() else "it is empty")


@dataclass
class Turn:
    """A question, and the answers to it, of which the conversation goes on with the one numbered `current`."""

    question: str
    answers: list[Answer] = field(default_factory=list)
    current: int = 0
    attempts: int = 0
    """How often it was asked; each attempt has a seed of its own."""

    @property
    def answer(self) -> Answer:
        """The answer that counts."""
        return self.answers[self.current]


@dataclass
class Dialogue:
    """The turns so far, and the system message if one was set."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    @property
    def last(self) -> Turn:
        """The last turn; DataError if nothing was asked yet."""
        if not self.turns:
            raise DataError("nothing was asked yet")
        return self.turns[-1]

    def prompt(self) -> Conversation:
        """What a model is asked: all but the answers to the last question."""
        return Conversation((*self._before(), Message("user", self.last.question)))

    def whole(self) -> Conversation:
        """The conversation with its last answer; answers that cannot be trained on are marked."""
        messages = (*self._before(), *self._of(self.last))
        return Conversation(messages)

    def _before(self) -> Iterator[Message]:
        if self.system is not None:
            yield Message("system", self.system)
        for turn in self.turns[:-1]:
            yield from self._of(turn)

    def _of(self, turn: Turn) -> Iterator[Message]:
        said = Message("assistant", turn.answer.text)
        yield Message("user", turn.question)
        yield said if turn.answer.fault is None else replace(said, train=False)
