"""Messages between trainer and engine process: what arrives is what was sent, and nothing is pickled."""

from multiprocessing.connection import Pipe

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.inference.engine import Completion, GenerationRequest, StopReason
from posttrain.inference.process.messages import (
    Message,
    completion_arrays,
    limit_silence,
    read_completions,
    read_requests,
    receive,
    request_arrays,
    send,
)

ids = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
# What a float32 can hold, and NaN, which equals itself here.
logprob = st.floats(max_value=0, width=32)


@st.composite
def completions(draw: st.DrawFn, with_logprobs: bool) -> Completion:
    tokens = draw(ids)
    given_logprobs = draw(st.lists(logprob, min_size=len(tokens), max_size=len(tokens)).map(tuple))
    return Completion(tokens, draw(st.sampled_from(StopReason)), given_logprobs if with_logprobs else None)


@given(st.lists(st.builds(GenerationRequest, ids, st.lists(st.integers(0, 2**56 - 1), max_size=3).map(tuple))))
def test_requests_arrive_as_they_were_sent(requests: list[GenerationRequest]) -> None:
    assert read_requests(request_arrays(requests)) == requests


@given(st.data(), st.booleans())
def test_completions_arrive_as_they_were_sent(data: st.DataObject, with_logprobs: bool) -> None:
    rows = data.draw(st.lists(completions(with_logprobs)))
    sent = [((number // 2, number % 2), row) for number, row in enumerate(rows)]
    assert repr(read_completions(completion_arrays(sent))) == repr(sent)


def test_a_message_has_facts_and_arrays() -> None:
    ours, theirs = Pipe()
    send(ours, Message("made", {"step": 3, "text": "ü"}, {"ids": np.arange(4).reshape(2, 2)}))
    got = receive(theirs)
    assert (got.kind, got.facts, got.arrays["ids"].tolist()) == ("made", {"step": 3, "text": "ü"}, [[0, 1], [2, 3]])
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs)


@pytest.mark.parametrize("size", [1, 2**22], ids=["a command that fits into the buffer", "one that does not"])
def test_who_neither_reads_nor_answers_is_waited_for_no_longer_than_allowed(size: int) -> None:
    ours, theirs = Pipe()
    limit_silence(ours, 0.05)
    with ours, theirs, pytest.raises(TimeoutError):
        send(ours, Message("score", {"text": "x" * size}))
        receive(ours)


def test_who_falls_silent_within_a_message_is_late_and_who_goes_is_not() -> None:
    ours, theirs = Pipe()
    limit_silence(ours, 0.05)
    with ours:
        with theirs:
            send(theirs, Message("made"))
            theirs.send_bytes(b'{"kind": "done"}')  # its arrays never come
            assert receive(ours).kind == "made"
            with pytest.raises(TimeoutError):
                receive(ours)
        with pytest.raises((EOFError, OSError)) as caught:
            receive(ours)
    assert not isinstance(caught.value, TimeoutError)
