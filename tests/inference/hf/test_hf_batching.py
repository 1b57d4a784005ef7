"""Which completions share a batch depends only on the requests and the batch size."""

from hypothesis import given
from hypothesis import strategies as st

from posttrain.inference.engine import GenerationRequest, derive_seed, plan_batches


def request(length: int, *seeds: int) -> GenerationRequest:
    return GenerationRequest((7,) * length, seeds or (0,))


def test_the_longest_prompts_come_first_and_equals_stay_in_order():
    batches = plan_batches([request(2), request(5), request(3), request(5)], 3)
    assert batches == [((1, 0), (3, 0), (2, 0)), ((0, 0),)]


def test_the_samples_of_a_prompt_are_neighbours_and_may_fall_into_two_batches():
    batches = plan_batches([request(4, 10, 11, 12, 13, 14), request(9, 20)], 2)
    assert batches == [((1, 0), (0, 0)), ((0, 1), (0, 2)), ((0, 3), (0, 4))]


def test_no_requests_are_no_batches():
    assert plan_batches([], 4) == []


def test_seeds_depend_on_every_part_and_on_their_order():
    seeds = {derive_seed(), derive_seed(0), derive_seed(0, 0), derive_seed(1, 2), derive_seed(2, 1), derive_seed(12)}
    assert len(seeds) == 6
    # Pinned: another value would change the samples of runs that are reproducible today.
    assert derive_seed(0, 1, 2) == 70132470586539809


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=12), st.integers(1, 7))
def test_every_completion_is_in_exactly_one_batch_and_batches_are_full_but_the_last(shapes, batch_size):
    requests = [request(length, *range(n)) if n else GenerationRequest((7,) * length, ()) for length, n in shapes]
    batches = plan_batches(requests, batch_size)
    keys = [key for batch in batches for key in batch]
    assert sorted(keys) == [(row, sample) for row, (_, n) in enumerate(shapes) for sample in range(n)]
    assert all(len(batch) == batch_size for batch in batches[:-1])
