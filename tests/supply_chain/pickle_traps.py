"""Pickles that tell if they are read: they write a file."""

import io
import pickle
import pickletools
import zipfile
from pathlib import Path

import torch


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self._sprung = sprung

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._sprung), "w")


def plain_pickle(sprung: Path) -> bytes:
    """As pickle, joblib and pandas write it."""
    return pickle.dumps({"a": Trap(sprung)})


def torch_pickle(sprung: Path) -> bytes:
    """As torch.save writes it."""
    file = io.BytesIO()
    torch.save({"a": Trap(sprung)}, file)
    return file.getvalue()


def old_torch_pickle(sprung: Path) -> bytes:
    """As torch.save wrote it before 1.6."""
    file = io.BytesIO()
    torch.save({"a": Trap(sprung)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def array_pickle(sprung: Path) -> bytes:
    """As numpy writes an array of objects."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.array([Trap(sprung)], dtype=object), allow_pickle=True)
    return file.getvalue()


KINDS = {"plain": plain_pickle, "torch": torch_pickle, "old torch": old_torch_pickle, "array": array_pickle}


def names(content: bytes) -> set[str]:
    """What the pickle in a zip file of torch names, each as module and name, to call it or to build with it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        content = archive.read(name)
    found = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert "STACK_GLOBAL" not in dict(found), "its names stand elsewhere"
    return {argument for opcode, argument in found if opcode == "GLOBAL"}
