"""Convert a model folder to GGUF by llama.cpp's own converter, and quantise it by its llama-quantize."""

import sys
from pathlib import Path

from posttrain.errors import RunError
from posttrain.export.gguf_types import BY_CONVERTER, GgufType
from posttrain.export.llama_cpp import LlamaCpp
from posttrain.export.processes import run


def convert(tools: LlamaCpp, model: Path, output: Path, kind: GgufType) -> None:
    """Write the model in the folder `model` to `output`, whose folder takes the programs' other files too.

    Raises:
        RunError: a program failed, or wrote nothing.
    """
    work = output.parent
    direct = kind in BY_CONVERTER
    first = output if direct else work / "float32.gguf"
    command = [sys.executable, str(tools.converter), str(model), "--outtype", kind if direct else "f32"]
    run([*command, "--outfile", str(first)], work, work / "converter.log", "llama.cpp's converter")
    _require(first, "converter")
    if not direct:
        assert tools.quantiser is not None  # find_llama_cpp has refused the type otherwise
        command = [str(tools.quantiser), str(first), str(output), kind.upper()]
        run(command, work, work / "quantiser.log", "llama-quantize")
        first.unlink()
        _require(output, "llama-quantize")


def _require(file: Path, program: str) -> None:
    if not file.is_file():
        raise RunError(f"llama.cpp's {program} said that it had succeeded, but wrote no file {file.name}")
