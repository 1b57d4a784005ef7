"""`toolkit-chat`: have a conversation with one model, or with two beside each other."""

import sys
from collections.abc import Sequence

from posttrain.base.console import console
from posttrain.chat.answerers import Answerer, open_answerers
from posttrain.chat.commands import State, run_command
from posttrain.chat.dialogue import Answer, Dialogue, Turn
from posttrain.chat.job import ChatJob
from posttrain.chat.terminal import PipedLines, Screen, TerminalLines, ctrl_c_drops_a_line, stopped_by_ctrl_c
from posttrain.errors import DataError, ToolkitError
from posttrain.inference.engine import Sampling, StopReason, derive_seed
from posttrain.inference.load import load_text


class Chat:
    """A conversation with loaded models."""

    def __init__(self, answerers: Sequence[Answerer], job: ChatJob, lines: TerminalLines | PipedLines) -> None:
        self._answerers, self._lines = answerers, lines
        self._screen = Screen()
        dialogue = Dialogue(job.system)
        self.state = State(dialogue, job.settings, self._answer, lines.edit, job.output_dirs, {})

    def run(self) -> None:
        """Take lines until they end.

        Raises:
            ToolkitError: a line of a pipe is wrong. On a terminal this is told, and the chat goes on.
        """
        with ctrl_c_drops_a_line():
            lines = iter(self._lines)
            while True:
                try:
                    line = next(lines, "/quit")
                    if line.strip() == "/quit":
                        return
                    if line.strip():
                        self.take(line)
                except KeyboardInterrupt:
                    if isinstance(self._lines, PipedLines):
                        raise
                    console.print("")
                except ToolkitError as error:
                    if isinstance(self._lines, PipedLines):
                        raise type(error)(f"line {self._lines.number}: {error}") from None
                    console.print(f"error: {error}")

    def take(self, line: str) -> None:
        """Answer a message, or run a command.

        Raises:
            ConfigError, DataError: it cannot be done; the conversation is as before.
        """
        if line.startswith("/") and not line.startswith("//"):
            run_command(self.state, line)
            return
        turns = self.state.dialogue.turns
        turns.append(Turn(line.removeprefix("/") if line.startswith("//") else line))
        try:
            self._answer()
        finally:
            if turns and not turns[-1].answers:
                turns.pop()

    def _answer(self) -> None:
        """Have each model answer the last question."""
        dialogue, settings = self.state.dialogue, self.state.settings
        turn, sampling = dialogue.last, Sampling.of(settings)
        # As toolkit-predict seeds the row of this number in its first file.
        seed = derive_seed(settings.seed, 0, len(dialogue.turns) - 1, turn.attempts)
        prompts = [each.prompt_ids(dialogue.prompt(), settings.max_new_tokens) for each in self._answerers]
        turn.attempts += 1
        with stopped_by_ctrl_c() as is_stopped, self._screen.beside(len(prompts) > 1):
            for answerer, ids in zip(self._answerers, prompts, strict=True):
                with self._screen.answer(self._heading(turn, answerer)) as show:

                    def hear(piece: str) -> bool:
                        show(piece)
                        return not is_stopped()

                    turn.answers.append(answerer.answer(ids, seed, sampling, hear))
                if is_stopped():
                    break
        for answer in turn.answers[-len(prompts) :]:
            _tell_if_cut(answer)

    def _heading(self, turn: Turn, answerer: Answerer) -> str:
        """Says the number that /prefer takes, where there is more than one answer."""
        number = len(turn.answers) + 1
        return f"[{number}] {answerer.name}" if len(self._answerers) > 1 or number > 1 else ""


def _tell_if_cut(answer: Answer) -> None:
    if answer.stop_reason is StopReason.LENGTH:
        console.print("(cut at max_new_tokens; /set max_new_tokens=... allows longer answers)")
    elif answer.stop_reason is StopReason.CUT:
        console.print("(stopped)")


def chat(job: ChatJob) -> None:
    """Load the models, and talk until the lines end.

    Raises:
        ConfigError, DataError: a line of a pipe is wrong.
        ModelError: a model cannot be loaded.
    """
    show_plan(job)
    lines = TerminalLines() if sys.stdin.isatty() else PipedLines()
    with open_answerers(job.candidates) as answerers:
        for each in answerers:
            if not each.streams:
                console.print(f"{each.name} answers in one piece: its engine does not stream")
        if isinstance(lines, TerminalLines):
            console.print("/help lists the commands")
        Chat(answerers, job, lines).run()


def check(job: ChatJob) -> None:
    """`--dry-run`: check everything that can be checked without loading a model, and print the plan.

    Raises:
        ModelError: a tokenizer cannot be loaded, or cannot end a turn.
        DataError: the system message leaves no room.
    """
    for candidate in job.candidates:
        text = load_text(candidate.weights.model, candidate.weights.chat)
        if text.positions is not None and job.settings.max_new_tokens >= text.positions:
            raise DataError(
                f"{candidate.name}: generation.max_new_tokens: {job.settings.max_new_tokens} leaves no room for a "
                f"prompt in the model's {text.positions} positions"
            )
    show_plan(job)
    console.print("nothing was loaded (--dry-run)")


def show_plan(job: ChatJob) -> None:
    """Print who answers, and how answers are sampled."""
    for candidate in job.candidates:
        console.print(f"{candidate.name}: {candidate.weights}")
    console.print(f"sampling: {job.settings}")
