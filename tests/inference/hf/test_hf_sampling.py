"""An answer depends on its prompt, the options and the seeds, and on nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loaded_model import END, Loaded
from transformers import GenerationConfig

from posttrain.inference.engine import GenerationRequest, Sampling
from posttrain.inference.hf.engine import HfEngine
from sharp_model import write_adapter


def ids_of(completions):
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_answers_are_the_same_alone_and_padded_in_a_batch(sharp: Loaded, uneven, penalty: float):
    sampling = Sampling(20, repetition_penalty=penalty)
    together = sharp.ask(uneven, sampling, batch_size=8)
    alone = [sharp.ask([request], sampling)[0] for request in uneven]
    assert together == alone
    assert len(set(ids_of(together))) == 8


def test_padding_with_the_end_token_changes_nothing(sharp: Loaded, uneven):
    sampling = Sampling(20, repetition_penalty=1.3)
    before = sharp.ask(uneven, sampling, batch_size=8)
    sharp.tokenizer.pad_token = sharp.tokenizer.eos_token
    assert sharp.ask(uneven, sampling, batch_size=8) == before


def test_a_greedy_answer_takes_the_likeliest_token_each_time(sharp: Loaded):
    ids = list(range(9, 20))
    for token in sharp.ask([GenerationRequest(tuple(ids))], Sampling(10))[0].token_ids:
        assert sharp.model(torch.tensor([ids])).logits[0, -1].argmax() == token
        ids.append(token)


@pytest.mark.parametrize(
    "filtered", [Sampling(20, 1.5, top_k=1), Sampling(20, 1.5, top_p=1e-6), Sampling(20, 1.5, min_p=0.999999)]
)
def test_the_strictest_filters_leave_only_the_likeliest_token(sharp: Loaded, uneven, filtered: Sampling):
    assert ids_of(sharp.ask(uneven, filtered)) == ids_of(sharp.ask(uneven, Sampling(20)))


def test_zero_for_top_k_and_min_p_and_one_for_top_p_filter_nothing(sharp: Loaded):
    # At this temperature all 384 tokens are almost equally likely: 400 draws limited to 50 of them would show.
    request = GenerationRequest(tuple(range(9, 20)), tuple(range(40)))
    completions = sharp.ask([request], Sampling(10, temperature=1000.0), batch_size=40)
    assert len({token for completion in completions for token in completion.token_ids}) > 200


def test_a_penalty_keeps_tokens_from_coming_again(sharp: Loaded):
    prompt = GenerationRequest(tuple(range(9, 20)))
    answer = sharp.ask([prompt], Sampling(40, repetition_penalty=1e6))[0].token_ids
    assert len({*prompt.prompt_ids, *answer}) == len(prompt.prompt_ids) + len(answer)


def test_the_sampling_options_in_a_models_folder_are_not_used(sharp: Loaded, uneven):
    greedy, sampling = Sampling(20), Sampling(20, temperature=1.0)
    before = sharp.ask(uneven, greedy), sharp.ask(uneven, sampling)
    defaults = GenerationConfig(
        do_sample=True, temperature=5.0, top_k=2, top_p=0.1, min_p=0.9, no_repeat_ngram_size=1, min_new_tokens=19,
        repetition_penalty=9.0, suppress_tokens=list(range(100)), forced_eos_token_id=300, renormalize_logits=True,
    )  # fmt: skip
    sharp.model.generation_config = defaults
    assert (sharp.ask(uneven, greedy), sharp.ask(uneven, sampling)) == before
    assert sharp.model.generation_config is defaults


def test_the_same_seeds_give_the_same_samples_and_others_others(sharp: Loaded, uneven):
    sampling = Sampling(20, temperature=1.0)
    assert sharp.ask(uneven, sampling) == sharp.ask(uneven, sampling)
    reseeded = [GenerationRequest(request.prompt_ids, (100 + row,)) for row, request in enumerate(uneven)]
    assert not set(ids_of(sharp.ask(uneven, sampling))) & set(ids_of(sharp.ask(reseeded, sampling)))


def test_a_sample_depends_on_its_own_seed_and_not_on_its_batch(sharp: Loaded, uneven):
    sampling = Sampling(20, temperature=1.0, top_k=40)
    together = sharp.ask(uneven, sampling, batch_size=8)
    assert together == [sharp.ask([request], sampling)[0] for request in uneven]


def test_the_random_numbers_of_the_process_go_on_as_if_nothing_had_been_drawn(sharp: Loaded, uneven):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    sharp.ask(uneven, Sampling(5, temperature=1.0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_done_is_left_out_and_changes_none_of_the_others(sharp: Loaded, uneven):
    requests = [GenerationRequest(request.prompt_ids, (row, 50 + row, 90 + row)) for row, request in enumerate(uneven)]
    sampling = Sampling(20, temperature=1.0, logprobs=True)
    engine = HfEngine(sharp.model, sharp.tokenizer, END, 4)
    everything = dict(engine.generate(requests, sampling))
    assert sorted(everything) == [(row, sample) for row in range(8) for sample in range(3)]
    done = {key for number, key in enumerate(everything) if number < 9 or number == 15}
    rest = dict(engine.generate(requests, sampling, done=done))
    assert rest == {key: completion for key, completion in everything.items() if key not in done}


def test_batches_that_are_all_done_are_not_generated(sharp: Loaded, uneven):
    engine = HfEngine(None, sharp.tokenizer, END, 4)
    assert list(engine.generate(uneven, Sampling(5), done={(row, 0) for row in range(8)})) == []


def test_more_samples_than_a_batch_holds_are_all_different_and_all_there(sharp: Loaded):
    request = GenerationRequest(tuple(range(9, 20)), tuple(range(11)))
    completions = sharp.ask([request], Sampling(20, temperature=1.0), batch_size=4)
    assert len(set(ids_of(completions))) == 11


def test_a_prompt_of_one_token_can_be_sampled_twice(sharp: Loaded):
    requests = [GenerationRequest((9,), (1, 2)), GenerationRequest(tuple(range(9, 20)), (3,))]
    assert len(set(ids_of(sharp.ask(requests, Sampling(20, temperature=1.0))))) == 3


def test_an_adapter_answers_and_its_base_keeps_its_options(
    sharp_model: Path, tmp_path: Path, load: Callable[..., Loaded], sharp: Loaded, uneven
):
    adapted = load(sharp_model, write_adapter(sharp_model, tmp_path / "adapter"))
    defaults = adapted.model.get_base_model().generation_config
    repeated = [*uneven, *uneven]  # so that prompts are shared as well
    answers = ids_of(adapted.ask(repeated, Sampling(20), batch_size=16))
    assert answers[:8] == answers[8:]
    assert answers[:8] == [adapted.ask([request], Sampling(20))[0].token_ids for request in uneven]
    assert not set(answers) & set(ids_of(sharp.ask(uneven, Sampling(20))))
    assert adapted.model.get_base_model().generation_config is defaults
    assert adapted.model.generation_config is defaults
