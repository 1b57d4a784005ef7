"""A foreign pickle in a checkpoint is not loaded, even if the recorded digests match it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pickle_traps import KINDS, names, torch_pickle

from posttrain.errors import ModelError, ToolkitError
from posttrain.runs.checkpoints import STATE_FILE, record_files
from sft.small_sft import train_sft, write_sft_run

# The file to replace, and the name of the pickle that replaces it.
READ_ON_RESUME = {"optimizer.pt": "optimizer.pt", "adapter_model.safetensors": "adapter_model.bin"}


@pytest.fixture(scope="module")
def half_a_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The config of a run that stopped at step 3 of 6."""
    config = write_sft_run(tmp_path_factory.mktemp("sft"), tiny_model)
    train_sft(config, "sft", "training.max_steps=3", "training.schedule=constant")
    return config


@dataclass(frozen=True)
class Copy:
    """A copy of a run, in its own folder."""

    config: Path
    runs: Path

    @property
    def checkpoint(self) -> Path:
        return self.runs / "sft" / "checkpoint-3"

    def set_trap(self, name: str, content: bytes, *, replaced: str | None = None) -> None:
        """Put a file into the checkpoint, optionally in place of another, and update the recorded digests."""
        state = self.checkpoint / STATE_FILE
        recorded = json.loads(state.read_text())
        state.unlink()
        (self.checkpoint / (replaced or name)).unlink(missing_ok=True)
        (self.checkpoint / name).write_bytes(content)
        state.write_text(json.dumps({**recorded, "files": record_files(self.checkpoint)}))

    def resume(self) -> None:
        overrides = ("training.max_steps=4", "training.schedule=constant", f"run.output_dir={self.runs}")
        train_sft(self.config, "sft", *overrides, resume=True)


@pytest.fixture
def run(half_a_run: Path, tmp_path: Path) -> Copy:
    shutil.copytree(half_a_run.parent / "runs", tmp_path / "runs")
    return Copy(half_a_run, tmp_path / "runs")


@pytest.mark.parametrize("kind", ["plain", "torch", "old torch"])
@pytest.mark.parametrize("replaced", READ_ON_RESUME)
def test_a_pickle_in_a_checkpoint_ends_the_resume_and_is_not_run(
    run: Copy, tmp_path: Path, replaced: str, kind: str
) -> None:
    sprung = tmp_path / "sprung"
    run.set_trap(READ_ON_RESUME[replaced], KINDS[kind](sprung), replaced=replaced)

    with pytest.raises(ModelError, match=r"checkpoint-3 is not a checkpoint written by this toolkit"):
        run.resume()

    assert not sprung.exists()


def test_a_pickle_in_the_place_of_whole_weights_ends_the_resume_and_is_not_run(
    tmp_path: Path, tiny_model: Path
) -> None:
    config = write_sft_run(tmp_path, tiny_model, lora=None)
    train_sft(config, "sft", "training.max_steps=3", "training.schedule=constant")
    whole, sprung = Copy(config, tmp_path / "runs"), tmp_path / "sprung"
    whole.set_trap("pytorch_model.bin", torch_pickle(sprung), replaced="model.safetensors")

    with pytest.raises(ModelError, match=r"checkpoint-3 is not a checkpoint written by this toolkit"):
        whole.resume()

    assert not sprung.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin", "tokenizer.pkl", "extra.pt"])
def test_a_pickle_that_nothing_needs_is_left_alone(run: Copy, tmp_path: Path, name: str) -> None:
    sprung = tmp_path / "sprung"
    run.set_trap(name, torch_pickle(sprung))

    run.resume()

    assert not sprung.exists()
    assert run.checkpoint.with_name("checkpoint-4").is_dir()


def test_a_swapped_file_is_noticed_by_its_digest(run: Copy, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    (run.checkpoint / "optimizer.pt").write_bytes(torch_pickle(sprung))

    with pytest.raises(ToolkitError, match=r"optimizer\.pt"):
        run.resume()

    assert not sprung.exists()


def test_what_a_run_exports_is_no_pickle(half_a_run: Path) -> None:
    run = half_a_run.parent / "runs" / "sft"
    exported = {path.suffix for path in run.iterdir() if path.is_file()}

    assert (run / "adapter_model.safetensors").is_file()
    assert not exported & {".bin", ".pt", ".pth", ".pkl"}


def test_what_a_resume_reads_holds_numbers_and_tensors_alone(half_a_run: Path) -> None:
    """The only globals it refers to are those with which torch rebuilds tensors."""
    checkpoint = half_a_run.parent / "runs" / "sft" / "checkpoint-3"

    assert [path.name for path in checkpoint.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".pkl"}] == [
        "optimizer.pt"
    ]
    assert names((checkpoint / "optimizer.pt").read_bytes()) == {
        "torch._utils _rebuild_tensor_v2",
        "torch FloatStorage",
        "collections OrderedDict",
    }
