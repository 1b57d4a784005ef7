"""Where an answer ends, and the stop reason it gets."""

import random

import pytest
from loaded_model import Loaded

from posttrain.inference.engine import GenerationRequest, Sampling, StopReason, completion_text, decode

LONG = 8


def text_of(sharp: Loaded, request: GenerationRequest) -> tuple[tuple[int, ...], str]:
    ids = sharp.ask([request], Sampling(LONG))[0].token_ids
    return ids, decode(sharp.tokenizer, ids)


def readable(sharp: Loaded) -> GenerationRequest:
    """A prompt whose answer is plain text and repeats no token."""
    choose = random.Random(0)
    requests = [GenerationRequest(tuple(choose.choices(range(3, 380), k=12))) for _ in range(500)]
    for request, completion in zip(requests, sharp.ask(requests, Sampling(LONG), batch_size=500), strict=True):
        text = decode(sharp.tokenizer, completion.token_ids)
        if text.isascii() and len(set(completion.token_ids)) == LONG and max(completion.token_ids) < 380:
            return request
    raise AssertionError("no prompt has a plain answer")


def test_an_answer_that_never_ends_is_cut_at_the_limit(sharp: Loaded, uneven):
    for completion in sharp.ask(uneven, Sampling(7)):
        assert (len(completion.token_ids), completion.stop_reason) == (7, StopReason.LENGTH)


def test_an_answer_ends_with_the_first_end_token_and_keeps_it(sharp: Loaded, uneven):
    free = sharp.ask(uneven, Sampling(LONG))
    ends = frozenset(completion.token_ids[row] for row, completion in enumerate(free))
    for before, after in zip(free, sharp.ask(uneven, Sampling(LONG), batch_size=8, end_ids=ends), strict=True):
        length = next(at for at, token in enumerate(before.token_ids, start=1) if token in ends)
        assert (after.token_ids, after.stop_reason) == (before.token_ids[:length], StopReason.END)


def test_an_end_token_that_is_also_the_padding_ends_each_row_where_it_should(sharp: Loaded, uneven):
    free = sharp.ask(uneven, Sampling(LONG))
    end = free[3].token_ids[4]
    sharp.tokenizer.pad_token = sharp.tokenizer.convert_ids_to_tokens(end)
    for before, after in zip(
        free, sharp.ask(uneven, Sampling(LONG), batch_size=8, end_ids=frozenset({end})), strict=True
    ):
        length = before.token_ids.index(end) + 1 if end in before.token_ids else LONG
        assert after.token_ids == before.token_ids[:length]
        assert after.stop_reason is (StopReason.END if length < LONG else StopReason.LENGTH)


def test_an_end_token_in_the_last_place_is_an_end(sharp: Loaded, uneven):
    last = sharp.ask(uneven[:1], Sampling(LONG))[0].token_ids[5]
    completion = sharp.ask(uneven[:1], Sampling(6), end_ids=frozenset({last}))[0]
    assert completion.stop_reason is StopReason.END


def test_a_stop_string_ends_an_answer_with_the_token_that_completes_it(sharp: Loaded):
    request = readable(sharp)
    ids, text = text_of(sharp, request)
    for start, stop in ((3, 5), (0, 1), (4, 7), (LONG - 2, LONG)):
        before, string = decode(sharp.tokenizer, ids[:start]), decode(sharp.tokenizer, ids[start:stop])
        completion = sharp.ask([request], Sampling(LONG, stop=("never said", string)))[0]
        first = next(end for end in range(1, LONG + 1) if string in decode(sharp.tokenizer, ids[:end]))
        assert (completion.token_ids, completion.stop_reason) == (ids[:first], StopReason.STOP)
        assert completion_text(sharp.tokenizer, completion, [string]) == text[: text.index(string)]
        assert text.index(string) <= len(before)


def test_a_stop_string_may_begin_and_end_inside_tokens(sharp: Loaded):
    request = readable(sharp)
    ids, text = text_of(sharp, request)
    lengths = [len(decode(sharp.tokenizer, ids[:end])) for end in range(LONG + 1)]
    # Take a token of two or more letters: the stop string is the letter before it and its first letter.
    inside = next(end for end in range(2, LONG) if lengths[end + 1] - lengths[end] > 1)
    string = text[lengths[inside] - 1 : lengths[inside] + 1]
    completion = sharp.ask([request], Sampling(LONG, stop=(string,)))[0]
    assert completion_text(sharp.tokenizer, completion, [string]) == text.split(string)[0]
    assert string in decode(sharp.tokenizer, completion.token_ids)
    assert string not in decode(sharp.tokenizer, completion.token_ids[:-1])


def test_each_row_of_a_batch_stops_by_itself(sharp: Loaded, uneven):
    request = readable(sharp)
    _, text = text_of(sharp, request)
    requests = [*uneven, request]
    free = sharp.ask(requests, Sampling(LONG), batch_size=9)
    stopped = sharp.ask(requests, Sampling(LONG, stop=(text[4:8],)), batch_size=9)
    assert stopped[8].stop_reason is StopReason.STOP
    assert [completion.token_ids for completion in stopped[:8]] == [completion.token_ids for completion in free[:8]]


def test_what_the_prompt_says_stops_nothing_not_even_together_with_the_answer(sharp: Loaded):
    request = readable(sharp)
    ids, text = text_of(sharp, request)
    prompt_end = decode(sharp.tokenizer, request.prompt_ids)[-1]
    assert prompt_end + text[0] not in text
    completion = sharp.ask([request], Sampling(LONG, stop=(prompt_end + text[0],)))[0]
    assert (completion.token_ids, completion.stop_reason) == (ids, StopReason.LENGTH)


def test_an_end_token_comes_before_a_stop_string_in_what_follows(sharp: Loaded):
    request = readable(sharp)
    ids, _ = text_of(sharp, request)
    string = decode(sharp.tokenizer, ids[4:6])
    completion = sharp.ask([request], Sampling(LONG, stop=(string,)), end_ids=frozenset({ids[2]}))[0]
    assert (completion.token_ids, completion.stop_reason) == (ids[:3], StopReason.END)
    assert completion_text(sharp.tokenizer, completion, [string]) == decode(sharp.tokenizer, ids[:2])


@pytest.mark.parametrize("stop", [(), ("e", "7")])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_rows_that_have_ended_are_left_out_and_the_others_go_on_as_if_alone(
    sharp: Loaded, uneven: list[GenerationRequest], penalty: float, stop: tuple[str, ...]
) -> None:
    sampling = Sampling(20, logprobs=True, repetition_penalty=penalty, stop=stop)
    free = sharp.ask(uneven, sampling)
    ends = frozenset(free[row].token_ids[2 * row] for row in (1, 3, 4) if len(free[row].token_ids) > 2 * row)
    alone = [sharp.ask([request], sampling, end_ids=ends)[0] for request in uneven]
    sizes: list[int] = []
    hook = sharp.model.register_forward_hook(
        lambda module, args, inputs, output: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    together = sharp.ask(uneven, sampling, batch_size=8, end_ids=ends)
    hook.remove()
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.stop_reason for each in together] == [each.stop_reason for each in alone]
    for ours, expected in zip(together, alone, strict=True):
        assert ours.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert len({len(each.token_ids) for each in alone}) > 2
    # A quarter of the rows at least has ended before each smaller batch.
    whole = sizes.index(8)
    assert sizes[whole:] == sorted(sizes[whole:], reverse=True)
    assert min(sizes[whole:]) <= 6
