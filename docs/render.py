"""Writes what is derived from the code: the reference pages, the config schemas for editors, and the package graph.

python docs/render.py
"""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from config_reference import render_reference
from grader_reference import render_catalogue
from memory_table import stored, tables

from posttrain.config.peer_keys import PEER_KEYS
from posttrain.config.schema import json_schema
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.evaluate.config import EvalConfig
from posttrain.pipeline.config import PipelineConfig
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig
from posttrain.synthesis.config import DataConfig

ROOT = Path(__file__).resolve().parent.parent

_CONFIGS = """\
<!-- Written by docs/render.py from the sentences in the config classes; change those. -->

A config is a YAML file. Unknown keys are errors, and all errors of a file come at once, each with its line. Paths
start from the folder of the file that names them; `~` is your home folder. `--set training.seed=1` replaces a key
for one run, and `--dry-run` checks everything and prints the plan.
`sft_config_template.yaml`, `dpo_config_template.yaml`, `rl_config_template.yaml`, `rl_data_config_template.yaml`,
`data_config_template.yaml` and `eval_config_template.yaml` have every key with its default and its sentence.

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

_GRADER_PAGE = {"graders.NAME": "[graders](graders.md)"}

_LEFT_OUT = {"errors", "base"}
"""Packages that any other may import."""
_KEYS = re.compile(r"(<!-- keys -->\n\n).*?(<!-- /keys -->)", re.DOTALL)
_MEMORY = re.compile(r"(<!-- memory -->\n\n).*?(<!-- /memory -->)", re.DOTALL)
_PICTURE = re.compile(r"(<!-- imports: .*? -->\n).*?(<!-- /imports -->)", re.DOTALL)


def package_imports(root: Path) -> dict[str, set[str]]:
    """Which parts of the package `root` each part imports, at the top of a file or within a function."""
    found: dict[str, set[str]] = {}
    for file in sorted(root.rglob("*.py")):
        part = file.relative_to(root).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        imported = found.setdefault(part, set())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{root.name}."):
                imported.add(node.module.split(".")[1])
        imported.discard(part)
    return found


def picture(imports: Mapping[str, set[str]]) -> str:
    """The imports as a Mermaid graph, without those that follow from others."""

    def reached(part: str) -> set[str]:
        return set().union(*({each} | reached(each) for each in imports[part])) if imports[part] else set()

    lines = []
    for part in sorted(imports.keys() - _LEFT_OUT):
        indirect = set().union(*(reached(each) for each in imports[part]))
        lines += [f"  {part} --> {each}" for each in sorted(imports[part] - indirect - _LEFT_OUT)]
    return "\n".join(["", "```mermaid", "graph TD", *lines, "```", "", ""])


def _architecture() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = picture(package_imports(ROOT / "src" / "posttrain"))
    return _PICTURE.sub(lambda found: found[1] + drawn + found[2], page)


def _peer_keys() -> str:
    """The page for users of other tools, with the table of their keys between its markers."""
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    lines = []
    for topic, settings in PEER_KEYS.items():
        lines += [f"### {topic}", "", "| there | here | |", "|---|---|---|"]
        for each in settings:
            there, here = (", ".join(f"`{name}`" for name in names) for names in (each.names, each.ours))
            lines.append(f"| {there} | {here} | {each.remark} |")
        lines.append("")
    return _KEYS.sub(lambda found: found[1] + "\n".join(lines) + found[2], page)


def _memory() -> str:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    return _MEMORY.sub(lambda found: found[1] + tables(stored()) + found[2], page)


def rendered() -> dict[Path, str]:
    """Each written file and its text."""
    reference = _CONFIGS + render_reference("The config of toolkit-sft", SFTConfig)
    reference += "\n" + render_reference("The config of toolkit-dpo", DPOConfig, page=reference)
    reference += "\n" + render_reference("The config of toolkit-rl-train", RLConfig, page=reference)
    graders = {"graders.NAME": "[graders](graders.md)"}
    reference += "\n" + render_reference("The config of toolkit-data", DataConfig, page=reference, elsewhere=graders)
    reference += "\n" + render_reference(
        "The config of toolkit-rl-dataserver",
        DataserverConfig,
        page=reference,
        elsewhere=_GRADER_PAGE,
    )
    reference += "\n" + render_reference(
        "The config of toolkit-eval", EvalConfig, page=reference, elsewhere=_GRADER_PAGE
    )
    reference += "\n" + render_reference("The config of toolkit-pipeline", PipelineConfig, page=reference)
    return {
        ROOT / "docs" / "config-reference.md": reference,
        ROOT / "docs" / "architecture.md": _architecture(),
        ROOT / "docs" / "coming-from.md": _peer_keys(),
        ROOT / "docs" / "gpu.md": _memory(),
        ROOT / "docs" / "graders.md": _GRADERS + render_catalogue(),
        ROOT / "configs" / "data" / "schema.json": json_schema(DataConfig),
        ROOT / "configs" / "sft" / "schema.json": json_schema(SFTConfig),
        ROOT / "configs" / "dpo" / "schema.json": json_schema(DPOConfig),
        ROOT / "configs" / "rl" / "schema.json": json_schema(RLConfig),
        ROOT / "configs" / "dataserver" / "schema.json": json_schema(DataserverConfig),
        ROOT / "configs" / "eval" / "schema.json": json_schema(EvalConfig),
        ROOT / "configs" / "pipeline" / "schema.json": json_schema(PipelineConfig),
    }


def main() -> None:
    """Write the files, and report which changed."""
    for path, text in rendered().items():
        changed = not path.is_file() or path.read_text(encoding="utf-8") != text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'wrote' if changed else 'as it was'}: {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
