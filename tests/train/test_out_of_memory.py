"""Which errors mean that memory ran out, where that was, and what is said of it."""

import subprocess
import sys

import pytest
import torch

from posttrain.errors import ModelError, RunError, ServerError
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import RunCounters
from posttrain.train.memory_advice import Phase
from posttrain.train.out_of_memory import ForwardSizes, during, memory_explained, ran_out_of_memory, whereabouts

# More than any machine has: 2⁵⁰ bytes.
TOO_LARGE = 2**50


def failed_allocation() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(TOO_LARGE, dtype=torch.uint8)
    return caught.value


def test_a_tensor_that_torch_finds_no_room_for_is_out_of_memory():
    assert ran_out_of_memory(failed_allocation())
    assert ran_out_of_memory(MemoryError())
    assert ran_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_an_error_that_was_made_of_it_is_too():
    try:
        try:
            raise failed_allocation()
        except RuntimeError as error:
            raise ModelError("cannot load it") from error
    except ModelError as error:
        assert ran_out_of_memory(error)


def test_other_errors_are_not():
    assert not ran_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not ran_out_of_memory(ModelError("there is no folder x"))
    assert not ran_out_of_memory(ServerError("the dataserver answers 500: out of memory"))


def test_another_error_goes_through_as_it_is(tmp_path):
    with (
        pytest.raises(ModelError, match=r"^mine$"),
        memory_explained({}, RunDirectory(tmp_path), RunCounters()),
    ):
        raise ModelError("mine")


def test_before_anything_is_known_the_message_says_how_much_was_asked_for(tmp_path):
    with (
        pytest.raises(RunError) as caught,
        memory_explained({}, RunDirectory(tmp_path), RunCounters()),
    ):
        torch.empty(TOO_LARGE, dtype=torch.uint8)
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith("out of memory before the first optimizer step: of the machine's ")
    assert first.endswith(", and 1048576.00 GiB more were asked for")
    assert last == "nothing was saved yet; start again, with --overwrite where the run's folder is there already"


def test_the_innermost_block_says_what_was_going_on_whatever_was_made_of_the_error():
    with pytest.raises(ModelError) as caught, during(Phase.STEP, "in optimizer step 13"):
        try:
            with during(Phase.SCORE, "while the reference was asked"):
                raise failed_allocation()
        except RuntimeError as error:
            raise ModelError("cannot ask it") from error
    assert whereabouts(caught.value) == (Phase.SCORE, "while the reference was asked")


def test_without_a_block_it_was_before_the_first_step():
    assert whereabouts(failed_allocation()) == (Phase.LOAD, "before the first optimizer step")


def test_an_optimizer_that_finds_no_room_for_its_states_has_run_out_of_memory():
    # One number that stands for 2⁴⁸: it takes no room, and its mean and square would.
    parameter = torch.nn.Parameter(torch.zeros(1).expand(2**48))
    parameter.grad = parameter.detach()
    with pytest.raises(RuntimeError) as caught:
        torch.optim.AdamW([parameter], foreach=False).step()
    assert ran_out_of_memory(caught.value)


def test_the_size_of_what_went_through_the_model_last_is_remembered():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(8, 2)

        def get_input_embeddings(self):
            return self.embedding

        def forward(self, input_ids):
            return self.embedding(input_ids)

    model, sizes = Model(), ForwardSizes()
    sizes.watch(model)
    model(torch.zeros(3, 7, dtype=torch.long))
    model(torch.zeros(2, 5, dtype=torch.long))
    assert (sizes.rows, sizes.tokens) == (2, 5)


def test_whoever_only_prepares_to_explain_does_not_import_torch():
    code = "import posttrain.train.out_of_memory, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
