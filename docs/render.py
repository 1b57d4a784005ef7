"""Writes what is derived from the classes: the reference pages, and the schemas that editors check configs against.

python docs/render.py
"""

import sys
from pathlib import Path

from posttrain.config.reference import render_reference
from posttrain.config.schema import json_schema
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.graders.reference import render_catalogue
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.rl.config.rl import RLConfig
from posttrain.sft.config import SFTConfig

ROOT = Path(__file__).resolve().parent.parent

_CONFIGS = """\
<!-- Written by docs/render.py from the sentences in the config classes; change those. -->

A config is a YAML file. Unknown keys are errors, and all errors of a file come at once, each with its line. Paths
start from the folder of the file that names them; `~` is your home folder. `--set training.seed=1` replaces a key
for one run, and `--dry-run` checks everything and prints the plan.
`sft_config_template.yaml`, `dpo_config_template.yaml`, `rl_config_template.yaml` and `rl_data_config_template.yaml`
have every key with its default and its sentence.

"""

_GRADERS = """\
<!-- Written by docs/render.py from the grader classes; change those. -->

# Graders

A grader scores a completion from 0 to 1, or abstains. A data set names its graders and their weights; what has no
parameters of its own in the section `graders` of the config has the defaults:

```yaml
graders:
  marked: {type: number_exact, extract: {after: "####"}}
datasets:
  sums:
    path: sums.jsonl
    graders: {marked: 2, number_only: 1}
```

Each line of the examples is run as a test. In them ⏎ is a line break, ⇥ a tab, and ␣ a blank at the beginning or end.

"""


def rendered() -> dict[Path, str]:
    """Each written file and what it holds."""
    reference = _CONFIGS + render_reference("The config of toolkit-sft", SFTConfig)
    reference += "\n" + render_reference("The config of toolkit-dpo", DPOConfig, page=reference)
    reference += "\n" + render_reference("The config of toolkit-rl-train", RLConfig, page=reference)
    reference += "\n" + render_reference(
        "The config of toolkit-rl-dataserver",
        DataserverConfig,
        page=reference,
        elsewhere={"graders.NAME": "[graders](graders.md)"},
    )
    return {
        ROOT / "docs" / "config-reference.md": reference,
        ROOT / "docs" / "graders.md": _GRADERS + render_catalogue(),
        ROOT / "configs" / "sft" / "schema.json": json_schema(SFTConfig),
        ROOT / "configs" / "dpo" / "schema.json": json_schema(DPOConfig),
        ROOT / "configs" / "rl" / "schema.json": json_schema(RLConfig),
        ROOT / "configs" / "dataserver" / "schema.json": json_schema(DataserverConfig),
    }


def main() -> None:
    """Write the files, and say which changed."""
    for path, text in rendered().items():
        changed = not path.is_file() or path.read_text(encoding="utf-8") != text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'wrote' if changed else 'as it was'}: {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
