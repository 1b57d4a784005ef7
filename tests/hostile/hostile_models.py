"""Model folders that ship Python code; the code writes a file when it runs."""

import json
import shutil
from pathlib import Path

CODE = """
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({canary!r}).write_text("it ran")


class CanaryConfig(LlamaConfig):
    model_type = "of-its-own-kind"


class CanaryForCausalLM(LlamaForCausalLM):
    config_class = CanaryConfig


class CanaryTokenizer(PreTrainedTokenizerFast):
    pass
"""


def model_with_code(tiny: Path, folder: Path, *, of_its_own_kind: bool) -> Path:
    """Copy the tiny model to `folder`, with a config and tokenizer that refer to Python code there.

    Returns the file that the code writes when it runs.

    Args:
        of_its_own_kind: whether the model type and tokenizer class exist only in that code.
    """
    shutil.copytree(tiny, folder)
    canary = folder.with_name("canary.txt")
    (folder / "canary_code.py").write_text(CODE.format(canary=str(canary)))
    model = {"AutoConfig": "canary_code.CanaryConfig", "AutoModelForCausalLM": "canary_code.CanaryForCausalLM"}
    _change(folder / "config.json", auto_map=model, **({"model_type": "of-its-own-kind"} if of_its_own_kind else {}))
    tokenizer = {"auto_map": {"AutoTokenizer": [None, "canary_code.CanaryTokenizer"]}}
    named = {"tokenizer_class": "CanaryTokenizer"} if of_its_own_kind else {}
    _change(folder / "tokenizer_config.json", **tokenizer, **named)
    return canary


def _change(path: Path, **keys: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
