"""How a backend loads a model, reported as JSON by a subprocess, because unsloth patches classes in its process.

Run as a script: `unsloth_facts.py BACKEND MODEL FOLDER`, where FOLDER is empty and receives its files.
"""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# The layers whose forward pass is located.
LAYERS = ("LlamaAttention", "LlamaMLP", "LlamaRMSNorm", "LlamaForCausalLM")


def facts(backend: str, model: Path, folder: Path, **environment: str) -> dict[str, Any]:
    """The facts about one backend, by name: see `_facts`."""
    finished = subprocess.run(
        [sys.executable, __file__, backend, str(model), str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def _facts(backend: str, model: Path, folder: Path) -> dict[str, Any]:
    from posttrain.config.sections.model import LoraConfig, ModelConfig
    from posttrain.models.load import choose_backend

    config = ModelConfig(name=str(model), backend=backend, dtype="float32")  # pyright: ignore[reportArgumentType]
    chosen = choose_backend(config)  # before the helpers below import what it rewrites
    loaded = chosen.load_for_training(config, LoraConfig(r=4), settings=_settings())
    return {
        "forwards": _forwards(loaded.model),
        "refusals": _refusals(chosen, config, folder),
        "recomputes": chosen.load_for_training(config, None, settings=_settings()).model.is_gradient_checkpointing,
        "compile_location": _compile_location(backend),
    }


def _forwards(model: Any) -> dict[str, str]:
    """The file that defines the forward pass of each kind of layer."""
    modules = {type(module).__name__: module for module in model.modules()}
    return {name: _file(modules[name].forward) for name in LAYERS}


def _file(thing: Any) -> str:
    """The source file's path within its package, such as `trl/trainer/sft_trainer.py`."""
    found = Path(inspect.getfile(getattr(thing, "__func__", thing)))
    parts = found.parts
    start = max(index for index, part in enumerate(parts) if part in ("site-packages", "src", "lib", "python3.11"))
    return "/".join(parts[start + 1 :])


def _refusals(backend: Any, config: Any, folder: Path) -> dict[str, str]:
    """The error messages for configs that may not be trainable; empty if one is."""
    lacking = shutil.copytree(config.name, folder / "lacking")
    described = json.loads((lacking / "config.json").read_text())
    (lacking / "config.json").write_text(json.dumps({**described, "num_hidden_layers": 3}))
    return {
        "4bit": _refusal(backend, config, quantization="4bit"),
        "8bit": _refusal(backend, config, quantization="8bit"),
        "weights": _refusal(backend, config, name=str(lacking)),
        "attention": _refusal(backend, config, attention="flash_attention_2"),
        "head": _refusal(backend, config, targets=("q_proj", "lm_head")),
    }


def _refusal(backend: Any, config: Any, targets: Any = "all-linear", **changes: Any) -> str:
    from posttrain.config.sections.model import LoraConfig
    from posttrain.errors import ModelError

    try:
        changed = config.model_copy(update=changes)
        backend.load_for_training(changed, LoraConfig(target_modules=targets), settings=_settings())
    except ModelError as error:
        return str(error)
    return ""


def _settings() -> Any:
    from posttrain.models.backend import TrainingSettings

    return TrainingSettings(chatml=True, max_length=256, gradient_checkpointing=False, seed=0)


def _compile_location(backend: str) -> str | None:
    """The folder for generated code, as read by the part of unsloth that writes it."""
    if backend != "unsloth":
        return None
    from unsloth_zoo.compiler import UNSLOTH_COMPILE_LOCATION  # pyright: ignore[reportMissingImports]

    return UNSLOTH_COMPILE_LOCATION


if __name__ == "__main__":
    # Libraries print to stdout, so keep the original for the result and send the rest to stderr.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told.write(json.dumps(_facts(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
    told.close()
