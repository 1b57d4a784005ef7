"""Percentiles of prompt lengths, in the tokens of a tokenizer or in characters."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from dataserver.dataserver_cases import make_config, write_rows
from posttrain.conversation.messages import Conversation, Message
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.prompt_length import TokenCounter, characters
from posttrain.dataserver.grading.questions import graders_in_use
from posttrain.dataserver.runtime import config_id
from posttrain.errors import ConfigError, DataError

# In characters the first is the longest, in words the last.
PROMPTS = ["antidisestablishmentarianism", "four words at most", "one two", "a b c d e f g"]


def write_tokenizer(path: Path, *words: str) -> Path:
    """Each word is a token, in between two special ones, cut off after five, and padded to nine."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "<s>": 1, **{word: 2 + at for at, word in enumerate(words)}}, "?"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 1)])  # type: ignore[assignment]
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "sums.jsonl", [{"prompt": prompt, "answer": "1"} for prompt in PROMPTS])
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def config(folder: Path, percentile: float | None = 75, **keys: object) -> DataserverConfig:
    return make_config(folder, {"sums": {"max_prompt_percentile": percentile}}, **keys)


def kept(config: DataserverConfig) -> tuple[list[str], list[str]]:
    """The prompts that are left, and what was said."""
    told: list[str] = []
    rows = load_datasets(config, told.append)["sums"]
    return [str(rows.read(index).record["prompt"]) for index in range(len(rows))], told


def test_all_tokens_of_all_messages_count_and_no_special_or_padding_ones(folder: Path):
    asked = Conversation((Message("system", "one two"), Message("user", "a b c d e f g")))
    assert TokenCounter(folder / "tokenizer.json").count(asked) == 9
    assert characters(asked) == 20


def test_with_a_tokenizer_the_prompt_of_the_most_tokens_is_left_out_and_without_one_that_of_the_most_characters(
    folder: Path,
):
    by_characters, told = kept(config(folder))
    assert by_characters == PROMPTS[1:]
    assert f"{folder}/sums.jsonl: max_prompt_percentile 75 keeps prompts of up to 18 characters" in told
    for _ in range(2):  # the second time from the cache
        by_tokens, told = kept(config(folder, tokenizer="tokenizer.json"))
        assert by_tokens == PROMPTS[:3]
        assert f"{folder}/sums.jsonl: max_prompt_percentile 75 keeps prompts of up to 4 tokens" in told
        assert f"{folder}/sums.jsonl: rows left out because their prompts are too long: 1" in told


def test_a_limit_in_characters_stays_one(folder: Path):
    section = {"max_prompt_percentile": 75, "max_prompt_chars": 20}
    both, _ = kept(make_config(folder, {"sums": section}, tokenizer="tokenizer.json"))
    assert both == PROMPTS[1:3]


def test_the_content_of_the_tokenizer_is_part_of_the_identity_and_its_place_is_not(folder: Path):
    def identity(config: DataserverConfig) -> str:
        return config_id(config, load_datasets(config, lambda line: None), graders_in_use(config))

    without, first = identity(config(folder)), identity(config(folder, tokenizer="tokenizer.json"))
    (folder / "copy.json").write_bytes((folder / "tokenizer.json").read_bytes())
    write_tokenizer(folder / "other.json", "a")
    assert identity(config(folder, tokenizer="copy.json")) == first
    assert len({without, first, identity(config(folder, tokenizer="other.json"))}) == 3


def test_a_file_that_is_no_tokenizer_is_told(folder: Path):
    with pytest.raises(ConfigError, match="tokenizer: no such file"):
        kept(config(folder, tokenizer="none.json"))
    (folder / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer: .*bad.json is not a tokenizer.json file"):
        kept(config(folder, tokenizer="bad.json"))


def test_a_tokenizer_that_nothing_needs_is_refused(folder: Path):
    with pytest.raises(ValidationError) as error:
        config(folder, None, tokenizer="tokenizer.json")
    assert [problem["loc"] for problem in error.value.errors()] == [("tokenizer",)]
