"""Pickles that create a file when they are loaded."""

import io
import pickle
import pickletools
import zipfile
from pathlib import Path

import torch


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._sprung), "w")


def plain_pickle(sprung: Path) -> bytes:
    """A trap as pickle, joblib and pandas write it."""
    return pickle.dumps({"a": Trap(sprung)})


def torch_pickle(sprung: Path) -> bytes:
    """A trap as torch.save writes it."""
    file = io.BytesIO()
    torch.save({"a": Trap(sprung)}, file)
    return file.getvalue()


def old_torch_pickle(sprung: Path) -> bytes:
    """A trap as torch.save wrote it before torch 1.6."""
    file = io.BytesIO()
    torch.save({"a": Trap(sprung)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def array_pickle(sprung: Path) -> bytes:
    """A trap in an object array as numpy writes it."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.array([Trap(sprung)], dtype=object), allow_pickle=True)
    return file.getvalue()


KINDS = {"plain": plain_pickle, "torch": torch_pickle, "old torch": old_torch_pickle, "array": array_pickle}


def names(content: bytes) -> set[str]:
    """The globals that the pickle in a torch zip file refers to, each as `module name`."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        content = archive.read(name)
    found = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert "STACK_GLOBAL" not in dict(found), "its names stand elsewhere"
    return {argument for opcode, argument in found if opcode == "GLOBAL"}
