"""Model folders that bring Python code along, which leaves a file where it ran."""

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
    """A copy of the tiny model in `folder` whose config and tokenizer name code beside them; returns the file that the
    code writes when it runs.

    Args:
        of_its_own_kind: whether model and tokenizer are of kinds that only that code knows.
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
