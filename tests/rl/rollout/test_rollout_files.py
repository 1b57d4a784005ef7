"""Rollouts are read as they were written, and a damaged file is an error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.schemas import Component, GradeResult
from posttrain.errors import DataError
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.rollout.store.files import read_rollouts, write_rollouts
from rl.written_rollouts import a_prompt, a_rollout

ANY_TEXT = st.text(st.characters(), max_size=8)  # with lone surrogates
LEGAL_TEXT = st.text(max_size=8)
TOKEN = st.integers(0, 2**40)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PROMPTS = st.builds(Prompt, ANY_TEXT, ANY_TEXT, TOKEN, st.lists(TOKEN, max_size=4).map(tuple), ANY_TEXT, st.booleans())
COMPONENTS = st.builds(
    Component,
    score=st.none() | FINITE,
    weight=st.none() | FINITE,
    status=st.sampled_from(["ok", "abstain", "error"]),
    ms=FINITE,
    detail=LEGAL_TEXT,
)
RESULTS = st.builds(
    GradeResult,
    item_id=LEGAL_TEXT,
    status=st.sampled_from(["ok", "abstain", "error"]),
    reward=st.none() | FINITE,
    reason=LEGAL_TEXT,
    components=st.dictionaries(LEGAL_TEXT, COMPONENTS, max_size=2),
)
# Bits, so that NaNs with any payload and both zeros occur.
LOGPROB_BITS = st.integers(0, 2**32 - 1) | st.sampled_from([0x7FC00000, 0x7F800001, 0x80000000, 0xFF800000])


@st.composite
def rollouts(draw: Any, prompt: Prompt) -> Rollout:
    tokens = draw(st.integers(0, 4))

    def values(of: Any) -> list[Any]:
        return draw(st.lists(of, min_size=tokens, max_size=tokens))

    bits = values(LOGPROB_BITS) if draw(st.booleans()) else None
    return Rollout(
        prompt=prompt,
        sample=draw(st.integers(0, 9)),
        ids=np.array(values(TOKEN), np.int64),
        mask=np.array(values(st.booleans()), np.bool_),
        versions=np.array(values(st.integers(0, 2**31 - 1)), np.int32),
        logprobs=None if bits is None else np.array(bits, np.uint32).view(np.float32),
        temperature=draw(FINITE),
        text=draw(ANY_TEXT),
        was_cut=draw(st.booleans()),
        result=draw(st.none() | RESULTS),
    )


@st.composite
def several(draw: Any) -> list[Rollout]:
    prompts = draw(st.lists(PROMPTS, max_size=3))
    return [each for prompt in prompts for each in draw(st.lists(rollouts(prompt), max_size=3))]


def bits_of(each: Rollout) -> tuple[Any, ...]:
    """Everything in a rollout, comparable bit for bit."""
    arrays = [each.ids, each.mask, each.versions, *([] if each.logprobs is None else [each.logprobs])]
    rest = (each.prompt, each.sample, each.temperature.hex(), each.text, each.was_cut, repr(each.result))
    return (*rest, *((array.dtype, array.shape, array.tobytes()) for array in arrays))


@given(several(), st.dictionaries(ANY_TEXT, st.none() | FINITE | ANY_TEXT | TOKEN, max_size=3))
def test_rollouts_and_facts_are_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, written: list[Rollout], facts: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("rollouts")
    write_rollouts(folder, "g000001", written, facts)
    read, found = read_rollouts(folder, "g000001")
    assert [bits_of(each) for each in read] == [bits_of(each) for each in written]
    assert found == facts


def test_rollouts_of_one_prompt_share_it(tmp_path: Path) -> None:
    prompt = a_prompt(0)
    write_rollouts(tmp_path, "g", [a_rollout(prompt, sample, [1, 2]) for sample in range(3)], {})
    read, _ = read_rollouts(tmp_path, "g")
    assert read[0].prompt is read[2].prompt
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g.json", "g.safetensors"]


def two_written(folder: Path) -> None:
    write_rollouts(folder, "g", [a_rollout(a_prompt(slot), 0, [1, 2, 3], logprobs=[-1, -2, -3]) for slot in (0, 1)], {})


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_any_changed_byte_is_found(tmp_path: Path, suffix: str) -> None:
    two_written(tmp_path)
    file = tmp_path / f"g{suffix}"
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match="damaged"):
            read_rollouts(tmp_path, "g")


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b'{"format": "rollouts-1"}'])
def test_a_foreign_file_is_one_error(tmp_path: Path, suffix: str, content: bytes) -> None:
    two_written(tmp_path)
    (tmp_path / f"g{suffix}").write_bytes(content)
    with pytest.raises(DataError, match=f"g{suffix} is damaged, or not a file of rollouts"):
        read_rollouts(tmp_path, "g")


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    two_written(tmp_path)
    (tmp_path / f"g{suffix}").unlink()
    with pytest.raises(DataError, match=f"no such file: .*g{suffix}"):
        read_rollouts(tmp_path, "g")


def test_a_write_that_fails_leaves_no_rollouts(tmp_path: Path) -> None:
    two_written(tmp_path)
    (tmp_path / "g.safetensors").unlink()
    (tmp_path / "g.safetensors").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match="directory"):
        two_written(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_rollouts(tmp_path, "g")
