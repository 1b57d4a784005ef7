"""When tokenised rows are read from the cache, and when they are tokenised again."""

import copy
import os
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig
from posttrain.data.preparation import prepare_dataset, tokenizer_digest
from posttrain.errors import DataError

# 15, 24 and 31 tokens: 10 plus one per letter.
THREE = [{"prompt": "z" * z, "completion": "Q" * q} for z, q in ((2, 3), (10, 4), (1, 20))]

MARKED_ANSWERS = (
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}"
)

OWN = (
    "{% for m in messages %}turn {{ m.role }} {{ mood }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}turn assistant {{ mood }}\n{% endif %}"
)


def state_of(cache: Path) -> dict[str, int]:
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in sorted(cache.rglob("*"))}


def test_the_second_start_reads_the_cache(prepare, own_cache):
    lines: list[str] = []
    first = prepare(THREE, lines=lines)
    before = state_of(own_cache)
    second = prepare(None, lines=lines)
    assert len(lines) == 1
    assert lines[0].startswith("tokenising d (")
    assert state_of(own_cache) == before
    assert second.token_digest() == first.token_digest()
    assert second.ledger == first.ledger


def test_rows_come_from_the_cache_and_not_from_the_tokenizer(prepare, own_cache):
    prepare(THREE[:1])
    folder = next(own_cache.iterdir())
    # A changed token in the cache shows that the cache is read.
    raw = bytearray((folder / "ids.npy").read_bytes())
    raw[-4:] = (7).to_bytes(4, "little")
    (folder / "ids.npy").write_bytes(raw)
    assert prepare(None).row(0)[0][-1] == 7


def test_a_cache_that_was_deleted_is_made_again(prepare, own_cache):
    lines: list[str] = []
    prepare(THREE, lines=lines)
    shutil.rmtree(own_cache)
    prepare(None, lines=lines)
    assert len(lines) == 2


def misses(prepare, change) -> bool:
    """Whether `change(lines)` causes the data to be tokenised again after a default preparation."""
    lines: list[str] = []
    prepare(THREE, lines=lines)
    change(lines)
    return len(lines) == 2


def test_an_edit_of_one_row_is_seen_even_if_size_and_time_stay_as_they_were(prepare, tmp_path, tiny_tokenizer):
    path = tmp_path / "rows.jsonl"

    def edit(lines):
        stat = path.stat()
        path.write_text(path.read_text().replace("zz", "zQ", 1))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
        assert tiny_tokenizer.decode(prepare(None, lines=lines).row(0)[0]).startswith("<|im_start|>user\nzQ<|im_end|>")

    assert misses(prepare, edit)


def test_two_rows_that_change_places_are_seen(prepare):
    def swap(lines):
        assert prepare([THREE[1], THREE[0], THREE[2]], lines=lines).lengths().tolist() == [24, 15, 31]

    assert misses(prepare, swap)


@pytest.mark.parametrize(
    "chat",
    [
        {"max_length": 2047},
        {"truncation": "left"},
        {"train_on": "last"},
        {"default_system": ""},
        {"default_system": "zz"},
        {"default_system": "zz "},
    ],
    ids=str,
)
def test_a_change_of_the_chat_section_is_seen(prepare, chat):
    assert misses(prepare, lambda lines: prepare(None, lines=lines, **chat))


def test_a_template_file_counts_by_its_text_and_its_variables(prepare, tmp_path):
    file, other = tmp_path / "mine.jinja", tmp_path / "other.jinja"
    file.write_text(OWN)
    other.write_text(OWN)
    lines: list[str] = []
    prepare(THREE, lines=lines, template=str(file))
    prepare(None, lines=lines, template=str(other))
    assert len(lines) == 1
    prepare(None, lines=lines, template=str(file), template_variables={"mood": "zz"})
    file.write_text(OWN.replace("turn", "Turn"))
    prepare(None, lines=lines, template=str(file))
    assert len(lines) == 3


def test_whitespace_in_the_default_system_message_makes_another_data_set(prepare):
    lines: list[str] = []
    lengths = [prepare(THREE, lines=lines, default_system=text).lengths()[0] for text in ("zz", "zz ", "zz\n")]
    assert len(lines) == 3
    assert lengths == [15 + 7, 15 + 8, 15 + 8]


def test_a_change_of_the_columns_is_seen(prepare):
    columns = ColumnsConfig(prompt="completion", completion="prompt")
    assert misses(prepare, lambda lines: prepare(None, lines=lines, columns=columns))


def test_on_bad_record_is_part_of_the_key(prepare):
    assert misses(prepare, lambda lines: prepare(None, lines=lines, on_bad_record="skip"))


def test_a_tokenizer_that_gained_a_token_is_another_one(prepare, tiny_model):
    other = AutoTokenizer.from_pretrained(tiny_model)
    other.add_tokens(["zz"])

    def learn(lines):
        assert prepare(None, lines=lines, tokenizer=other).lengths().tolist() == [14, 19, 31]

    assert misses(prepare, learn)


def test_a_tokenizer_with_another_end_token_or_template_is_another_one(tiny_model):
    changed = [AutoTokenizer.from_pretrained(tiny_model) for _ in range(3)]
    changed[1].eos_token = "<|endoftext|>"
    changed[2].chat_template = "{{ messages }}"
    assert len({tokenizer_digest(each) for each in changed}) == 3


def test_another_way_of_masking_is_part_of_the_key(prepare, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    marked = tokenizer.chat_template.replace("{{ m.content }}<|im_end|>\n", MARKED_ANSWERS)
    lines: list[str] = []
    by = {"tokenizer": tokenizer, "template": "tokenizer", "lines": lines}
    prefixed = prepare(THREE, **by)
    masked = [prepare(None, training_template=marked, **by) for _ in range(2)]
    assert len(lines) == 2
    assert {each.token_digest() for each in masked} == {prefixed.token_digest()}


def test_use_of_a_tokenizer_does_not_make_it_another_one(tiny_model, tmp_path):
    # Some tokenizer files contain padding and truncation settings, which the first encoding resets.
    saved = AutoTokenizer.from_pretrained(tiny_model)
    saved.backend_tokenizer.enable_truncation(16)
    saved.backend_tokenizer.enable_padding(length=16)
    saved.save_pretrained(tmp_path / "padding")
    fresh = AutoTokenizer.from_pretrained(tmp_path / "padding")
    assert fresh.backend_tokenizer.padding is not None
    before = tokenizer_digest(fresh)
    fresh(["zz"], padding=False, truncation=False)
    assert fresh.backend_tokenizer.padding is None
    assert tokenizer_digest(fresh) == before


def test_a_limit_on_lost_ends_is_checked_anew_and_not_part_of_the_key(prepare):
    lines: list[str] = []
    cut = {"max_length": 24, "truncation": "right"}
    prepare(THREE, lines=lines, min_end_tokens_kept=0.5, **cut)
    prepare(None, lines=lines, min_end_tokens_kept=0.6, **cut)
    with pytest.raises(DataError, match="min_end_tokens_kept = 70%"):
        prepare(None, lines=lines, min_end_tokens_kept=0.7, **cut)
    assert len(lines) == 1


def test_a_file_of_the_same_content_under_another_name_is_not_tokenised_again(prepare, tmp_path, tiny_tokenizer):
    prepare(THREE)
    (tmp_path / "rows.jsonl").rename(tmp_path / "moved.jsonl")
    lines: list[str] = []
    config = DatasetConfig(path=str(tmp_path / "moved.jsonl"))
    moved = prepare_dataset("other", config, ChatConfig(), tiny_tokenizer, "error", lines.append)
    assert lines == []
    assert moved.name == moved.ledger.name == "other"
