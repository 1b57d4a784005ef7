"""Failed writes in Python, torch and safetensors are reported in one message."""

import os
import resource
import signal

import pytest
import torch
from safetensors.torch import save_file

from posttrain.errors import ConfigError, RunError
from posttrain.runs.checkpoints import publish
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import storage_explained


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def small_files():
    """Limit files to 4,096 bytes, enforced by the system for every writer."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def _by_python(folder):
    with (folder / "file").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _by_torch(folder):
    torch.save(torch.zeros(10_000), folder / "optimizer.pt")


def _by_safetensors(folder):
    save_file({"weight": torch.zeros(10_000)}, folder / "model.safetensors")


@pytest.mark.parametrize("write", [_by_python, _by_torch, _by_safetensors])
def test_what_could_not_be_written_is_told_in_one_line_with_what_to_do(run, small_files, write):
    with (
        pytest.raises(RunError, match=r"File too large|could not be written in full") as failed,
        storage_explained(run),
    ):
        write(run.path)
    message = str(failed.value)
    assert "MiB are free at" in message
    assert message.endswith("no checkpoint had been written. Fix that or free space, and start again with --resume")
    assert "\n" not in message


def test_a_full_device_is_told_by_its_name_and_the_checkpoint_that_is_left(run):
    private = run.trainer_private / "checkpoint-5"
    private.mkdir(parents=True)
    publish(run, 5, {})
    with pytest.raises(RunError) as failed, storage_explained(run):
        descriptor = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(descriptor, b"x")
        finally:
            os.close(descriptor)
    assert str(failed.value).startswith("No space left on device; ")
    assert str(failed.value).endswith(
        "checkpoint-5 is complete. Fix that or free space; --resume then continues from it"
    )


def test_other_errors_stay_what_they_are(run):
    for error in (ConfigError("No space left on device"), ValueError("wrong"), FileNotFoundError(2, "no such file")):
        with pytest.raises(type(error)) as raised, storage_explained(run):
            raise error
        assert raised.value is error
