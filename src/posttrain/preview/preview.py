"""`toolkit-preview`: what training sees, from the code that prepares it, in the terminal or as one HTML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.base.console import console
from posttrain.base.extras import require_extra
from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import TextsConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.data.config_kind import config_kind
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.ledger import Ledger
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError, DataError
from posttrain.preview.choose import Pick, choose
from posttrain.preview.rows import PreparedRows, Shown
from posttrain.preview.timeline import FirstRow, Span, first_rows, spans
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig


@dataclass(frozen=True)
class Request:
    """What to show.

    Attributes:
        row: `FILE:LINE`, to show only that row.
        worst: how many of the longest, most cut and least trained rows to show.
        stage: a stage, to show only its rows.
        ids: whether tokens are shown with their ids.
    """

    row: str | None = None
    worst: int = 1
    stage: str | None = None
    ids: bool = False


@dataclass(frozen=True)
class Preview:
    """What is shown of a config."""

    title: str
    rows: Sequence[Shown]
    ledgers: Sequence[Ledger] = ()
    spans: Sequence[Span] = ()
    first_rows: Sequence[FirstRow] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def preview(path: Path, request: Request, overrides: Sequence[str] = (), html: Path | None = None) -> None:
    """Show a config's rows in the terminal, and write them to `html` if it is given.

    Raises:
        ConfigError, DataError, ModelError: as training with the config would; or the row or stage does not exist.
    """
    from posttrain.preview.page import write_preview
    from posttrain.preview.terminal import show_preview

    found = gather(path, request, overrides)
    show_preview(found, ids=request.ids)
    if html is not None:
        write_preview(html, found)
        console.print(f"wrote {html}")


def gather(path: Path, request: Request, overrides: Sequence[str] = ()) -> Preview:
    """What there is to show of a config; errors as `preview`."""
    kind = config_kind(path)
    if kind == "dataserver":
        return _of_prompts(path, request, load_config(path, DataserverConfig, overrides))
    require_extra("train", "toolkit-preview")
    if kind == "rl":
        config = load_config(path, RLConfig, overrides)
        from posttrain.preview.rl import dataserver_config

        return _of_prompts(path, request, dataserver_config(config), config)
    if kind == "dpo":
        return _of_pairs(path, request, load_config(path, DPOConfig, overrides))
    return _of_conversations(path, request, load_config(path, SFTConfig, overrides))


def _of_conversations(path: Path, request: Request, config: SFTConfig) -> Preview:
    from posttrain.preview.sft import ConversationRows
    from posttrain.preview.texts import TextRows
    from posttrain.sft.data import prepare_data

    tokenizer = load_tokenizer(config.model, config.chat)
    data = prepare_data(config, tokenizer, console.print)
    rows: dict[str, PreparedRows] = {}
    for name, dataset in data.datasets.items():
        source = config.datasets[name]
        if isinstance(source, TextsConfig):
            rows[name] = TextRows(name, source, tokenizer, dataset)
        else:
            rows[name] = ConversationRows(name, source, config.chat, tokenizer, dataset)
    return _of_curriculum(path, request, rows, data.curriculum, data.max_steps, data.ledgers)


def _of_pairs(path: Path, request: Request, config: DPOConfig) -> Preview:
    from posttrain.dpo.data import prepare_data
    from posttrain.preview.dpo import PreferenceRows

    if config.models:
        config = config.of_model(0)
    tokenizer = load_tokenizer(config.model, config.chat)
    data = prepare_data(config, tokenizer, console.print)
    rows = {
        name: PreferenceRows(name, config.datasets[name], config.chat, tokenizer, dataset)
        for name, dataset in data.datasets.items()
    }
    return _of_curriculum(path, request, rows, data.curriculum, data.max_steps, data.ledgers)


def _of_curriculum(
    path: Path,
    request: Request,
    rows: Mapping[str, PreparedRows],
    curriculum: Curriculum,
    max_steps: int,
    ledgers: Sequence[Ledger],
) -> Preview:
    if request.row is not None:
        return Preview(path.name, [_named_row(rows, request.row)], ledgers)
    picks = choose(rows, curriculum, request.worst, request.stage)
    return Preview(
        title=path.name,
        rows=[_shown(rows, pick) for pick in picks],
        ledgers=ledgers,
        spans=spans(curriculum, max_steps, {name: len(each.lines) for name, each in rows.items()}),
        first_rows=list(first_rows(curriculum, rows, request.stage)),
    )


def _shown(rows: Mapping[str, PreparedRows], pick: Pick) -> Shown:
    return rows[pick.dataset].show(pick.row, pick.why)


def _named_row(rows: Mapping[str, PreparedRows], named: str) -> Shown:
    """The row on a line of a data set's file, trained or not."""
    file, line = split_place(named)
    for name, each in rows.items():
        if file in (name, each.path) or each.path.endswith(f"/{file.removeprefix('./')}"):
            found = [row for row in range(len(each.lines)) if each.lines[row] == line]
            return each.show(found[0], "asked for") if found else each.show_left_out(line, "asked for")
    known = ", ".join(f"{name} ({Path(each.path).name})" for name, each in rows.items())
    raise DataError(f"--row: no data set has the name or the file {file}; the data sets are: {known}")


def split_place(named: str) -> tuple[str, int]:
    """File and line of `FILE:LINE`; ConfigError if it is not of this form."""
    file, _, line = named.rpartition(":")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 16):
        raise ConfigError(f"--row {named}: write it as FILE:LINE, such as train.jsonl:7")
    return file, int(line)


def _of_prompts(path: Path, request: Request, server: DataserverConfig, config: RLConfig | None = None) -> Preview:
    require_extra("server", "toolkit-preview")
    from posttrain.dataserver.runtime import Loaded
    from posttrain.preview.rl import PromptPreview

    loaded = Loaded.read(server, console.print)
    prompts = PromptPreview(loaded)
    if config is not None:
        from posttrain.inference.load import load_text

        text = load_text(config.model, config.chat)
        prompts = PromptPreview(loaded, text.tokenizer, text.encoder)
    if request.row is None:
        chosen = prompts.choose(request.worst, request.stage)
    else:
        file, line = split_place(request.row)
        chosen = [(prompts.find(file, str(line)), "asked for", 0)]
    stages = {} if request.row is not None else {stage.name: _mix(stage) for stage in loaded.meta.stages}
    return Preview(path.name, prompts.show(chosen), facts=stages)


def _mix(stage: Any) -> str:
    """The iterations, the data sets and the rewards of a dataserver's stage, in words."""
    shares = "; ".join(
        f"{share:.0%} {label}, reward {formula}"
        for name, share in stage.mix.items()
        if share
        for label, formula in stage.rewards(name)
    )
    return f"iterations {stage.from_iteration}–{stage.until_iteration - 1}: {shares}"


def load_tokenizer(model: ModelConfig, chat: ChatConfig) -> Any:
    """The tokenizer as training loads it; no weights are read."""
    from posttrain.models.load import choose_backend

    return choose_backend(model).load_tokenizer(model, chatml=chat.template == "chatml")
