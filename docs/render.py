"""Writes what is derived from the config classes: the reference page and the schema that editors check against.

python docs/render.py
"""

import sys
from pathlib import Path

from toolkit.core.config.reference import render_reference
from toolkit.core.config.schema import json_schema
from toolkit.sft.config import SFTConfig

ROOT = Path(__file__).resolve().parent.parent

_INTRO = """\
<!-- Written by docs/render.py from the sentences in the config classes; change those. -->

A config is a YAML file. Unknown keys are errors, and all errors of a file come at once, each with its line. Paths
start from the folder of the file that names them; `~` is your home folder. `--set training.seed=1` replaces a key
for one run, and `--dry-run` checks everything and prints the plan.
`sft_config_template.yaml` has every key with its default and its sentence.

"""


def rendered() -> dict[Path, str]:
    """Each written file and what it holds."""
    return {
        ROOT / "docs" / "config-reference.md": _INTRO + render_reference("The config of toolkit-sft", SFTConfig),
        ROOT / "configs" / "sft" / "schema.json": json_schema(SFTConfig),
    }


def main() -> None:
    """Write the files, and say which changed."""
    for path, text in rendered().items():
        changed = not path.is_file() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'wrote' if changed else 'as it was'}: {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
