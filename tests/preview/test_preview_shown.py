"""Previews on a terminal and as a page, and those of reinforcement learning."""

import io
import json
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser
from rich.console import Console
from typer.testing import CliRunner

from posttrain.cli.preview import main
from posttrain.preview import terminal
from posttrain.preview.preview import Request, gather
from preview.conftest import HOSTILE, write_rows

ROWS = [{"prompt": f"row {n} {HOSTILE}", "completion": f"answer {n} {HOSTILE}"} for n in range(4)]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns is sent, with colours."""
    sent = io.StringIO()
    options = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
    console = Console(file=sent, width=80, force_terminal=True, color_system="standard", **options)
    monkeypatch.setattr(terminal, "console", console)
    return sent


def plain(sent: str) -> str:
    """The text on the screen, without rich's own colour codes; all other control characters are kept."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", sent)


def test_hostile_rows_are_text_on_a_terminal_of_80_columns(write_sft, screen: io.StringIO) -> None:
    config = write_sft(ROWS, ROWS)
    terminal.show_preview(gather(config, Request()), ids=False)
    text = plain(screen.getvalue())
    assert "\\x1b[31m<script>alert(1)</script>\\u202eevil[bold]\\x07" in text.replace("\n", "").replace("⋯", "")
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert max(map(len, text.split("\n"))) <= 80


def test_colours_tell_what_is_trained(write_sft, screen: io.StringIO) -> None:
    preview = gather(write_sft([{"prompt": "q", "completion": "9"}]), Request())
    terminal.show_preview(preview, ids=False)
    assert "\x1b[1;30;42m9" in screen.getvalue() or "\x1b[1;30;102m9" in screen.getvalue()  # black on green


def test_marks_tell_it_where_there_are_no_colours_and_ids_are_shown_on_demand(write_sft) -> None:
    config = write_sft([{"prompt": "q", "completion": "9"}])
    result = CliRunner().invoke(main, [str(config), "--ids"])
    assert result.exit_code == 0, result.output
    (row,) = gather(config, Request()).rows
    nine = next(token for token in row.sides[0].tokens if token.text == "9")
    assert f"«9[{nine.id}]<|im_end|>" in result.output.replace("\n", "")


def test_pairs_stand_side_by_side_on_a_terminal(write_dpo, screen: io.StringIO) -> None:
    config = write_dpo([{"prompt": "p", "chosen": "1 " * 40, "rejected": "2 " * 40}])
    terminal.show_preview(gather(config, Request()), ids=False)
    lines = plain(screen.getvalue()).split("\n")
    assert any("1␠1␠1" in line and "2␠2␠2" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_long_rows_say_how_much_of_them_is_not_shown(write_sft, screen: io.StringIO, monkeypatch) -> None:
    monkeypatch.setattr(terminal, "_MOST", 20)
    terminal.show_preview(gather(write_sft([{"prompt": "9" * 50, "completion": "8"}]), Request()), ids=False)
    assert "tokens that --html shows" in plain(screen.getvalue())


@pytest.fixture
def write_rl(tmp_path: Path, tiny_model: Path):
    """`write_rl()` writes the configs of a trainer and of its dataserver, and returns their paths."""

    def write() -> tuple[Path, Path]:
        rows = [{"prompt": f"{n} + 1 {HOSTILE}", "answer": f"so it is #### {n + 1}"} for n in range(6)]
        write_rows(tmp_path / "sums.jsonl", [*rows, {"prompt": "long " * 30, "answer": "#### 7"}])
        server = {
            "prompts_per_iteration": 2,
            "datasets": {
                "sums": {
                    "path": "sums.jsonl",
                    "gold": {"column": "answer", "extract": {"after": "####"}},
                    "graders": {"right": 1},
                }
            },
            "graders": {"right": {"type": "number_exact", "extract": {"after": "####"}}},
            "stages": [{"name": "all", "until_step": 4, "mix": {"sums": 1}}],
        }
        trainer = {
            "model": {"name": str(tiny_model)},
            "dataserver": {"config": "data.yaml"},
            "rollout": {"generations": 2, "max_new_tokens": 4},
            "training": {"rows_per_step": 4, "micro_batch_size": 2},
        }
        for name, config in (("data.yaml", server), ("rl.yaml", trainer)):
            (tmp_path / name).write_text(yaml.safe_dump(config, sort_keys=False))
        return tmp_path / "rl.yaml", tmp_path / "data.yaml"

    return write


def test_prompts_are_shown_with_their_generation_prompt_gold_and_grade(write_rl) -> None:
    trainer, _ = write_rl()
    preview = gather(trainer, Request(row="sums.jsonl:2"))
    (row,) = preview.rows
    (side,) = row.sides
    assert "".join(token.text for token in side.tokens if token.tone == "start") == "<|im_start|>assistant\n"
    assert "".join(token.text for token in side.tokens if token.tone == "context").startswith("<|im_start|>user\n1 + 1")
    assert row.texts["gold"] == "2"
    assert row.texts["reference"] == "so it is #### 2"
    assert row.texts["graders on the reference"].startswith("reward 1.0000: right 1.0000")


def test_a_dataserver_is_previewed_without_a_tokenizer(write_rl, screen: io.StringIO) -> None:
    _, server = write_rl()
    preview = gather(server, Request())
    why = {row.why.partition(":")[0]: row.place for row in preview.rows}
    assert why["longest"] == "sums: sums.jsonl:7"
    terminal.show_preview(preview, ids=False)
    text = plain(screen.getvalue())
    assert "reward 1.0000" in text
    assert not {"\x1b", "\u202e", "\x07"} & set(text)


def test_a_running_dataserver_is_not_asked(write_rl) -> None:
    trainer, _ = write_rl()
    trainer.write_text(trainer.read_text().replace("config: data.yaml", "url: http://127.0.0.1:1"))
    result = CliRunner().invoke(main, [str(trainer)])
    assert result.exit_code == 2
    assert "dataserver.url" in result.output


def test_a_page_holds_each_token_as_text_and_contacts_nobody(write_sft, tmp_path: Path, browser: Browser) -> None:
    config, html = write_sft(ROWS, ROWS), tmp_path / "preview.html"
    result = CliRunner().invoke(main, [str(config), "--html", str(html)])
    assert result.exit_code == 0, result.output
    page = browser.new_context(viewport={"width": 1000, "height": 800}).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(html.as_uri())
    (first, *_) = gather(config, Request()).rows
    spans = page.locator("pre.tokens").first.locator("span")
    assert spans.evaluate_all("all => all.map(each => Number(each.title))") == [t.id for t in first.sides[0].tokens]
    tones = {"good": "trained", "quiet": "context"}
    classes = spans.evaluate_all("all => all.map(each => each.className)")
    assert [tones[each] for each in classes] == [token.tone for token in first.sides[0].tokens]
    assert page.locator("script").count() == 0
    assert "<script>alert(1)</script>" in page.locator("pre.tokens").first.inner_text()
    widths = page.locator(".bar > div").evaluate_all(
        "all => all.map(each => [...each.children].map(part => part.getBoundingClientRect().width))"
    )
    # Two stages of two steps each: the second begins in the middle, and a quarter of it is of the first data set.
    assert widths[1][0] == pytest.approx(widths[0][1], rel=0.01)
    assert widths[1][2] == pytest.approx(3 * widths[1][1], rel=0.01)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_page_replaces_no_file_unless_asked_to(write_sft, tmp_path: Path) -> None:
    config, html = write_sft(ROWS), tmp_path / "preview.html"
    html.write_text("mine")
    assert CliRunner().invoke(main, [str(config), "--html", str(html)]).exit_code == 2
    assert html.read_text() == "mine"
    assert CliRunner().invoke(main, [str(config), "--html", str(html), "--overwrite"]).exit_code == 0
    data = tmp_path / "train.jsonl"
    assert CliRunner().invoke(main, [str(config), "--html", str(data), "--overwrite"]).exit_code == 2
    assert json.loads(data.read_text().splitlines()[0]) == ROWS[0]


def test_no_weights_are_loaded(write_sft, tmp_path: Path, tiny_model: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).write_bytes(file.read_bytes())
    assert gather(write_sft(ROWS, model={"name": str(bare)}), Request()).rows
