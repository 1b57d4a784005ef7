"""Train a run through unsloth, then have unsloth itself merge the adapter, in one process that unsloth takes over.

Run as a script: `unsloth_merging.py CONFIG RUN_NAME OUTPUT`; the config names the backend.
"""

import sys
from pathlib import Path

from posttrain.cli.sft import main as train


def _main(config: Path, name: str, output: Path) -> None:
    train([str(config), "--run-name", name], standalone_mode=False)
    import torch
    from unsloth import FastLanguageModel  # pyright: ignore[reportMissingImports]

    run = config.parent / "runs" / name
    model, tokenizer = FastLanguageModel.from_pretrained(str(run), dtype=torch.float32, load_in_4bit=False)
    model.save_pretrained_merged(str(output), tokenizer, save_method="merged_16bit")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
