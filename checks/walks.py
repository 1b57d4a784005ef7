"""Lists the modules that an SFT row, a DPO pair, an RL prompt and a config pass through, in order of first entry.

python checks/walks.py [NAME...]

The commands train a tiny random model for a few steps; `recorder/sitecustomize.py` records what each of their processes
enters. Only data preparation and optimizer steps count, including the dataserver and its grading processes, and not how
a run starts, evaluates, saves and ends. `base` and `errors` are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("base", "errors")


@dataclass(frozen=True)
class Walk:
    """A command whose run is recorded, part by part."""

    title: str
    aim: int | None
    parts: dict[str, str]
    command: str
    write: Callable[[Path, Path], Path]
    options: tuple[str, ...] = ()


def write_sft(folder: Path, model: Path) -> Path:
    """Write a run of three steps, and return its config."""
    rows = [{"prompt": f"Say {number}", "completion": "one two"} for number in range(12)]
    return write_run(folder, model, rows, {})


def write_dpo(folder: Path, model: Path) -> Path:
    """The same with pairs."""
    rows = [{"prompt": f"Say {number}", "chosen": "one two", "rejected": "three"} for number in range(12)]
    return write_run(folder, model, rows, {"method": {"type": "dpo"}})


def write_run(folder: Path, model: Path, rows: list[dict[str, str]], sections: dict[str, Any]) -> Path:
    """Write a run of three steps of two micro-batches on these rows, and return its config."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": str(model)},
        "lora": {"r": 4},
        "datasets": {"rows": {"path": "rows.jsonl"}},
        "stages": [{"name": "only", "until_step": 3, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 2},
        **sections,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def write_rl(folder: Path, model: Path) -> Path:
    """Write a run of eight steps with its own dataserver, and return its config."""
    from rl.rl_runs import write_run as write_rl_run

    return write_rl_run(folder, model, evaluation=None, run={"save_every": 8})


WALKS = {
    "sft": Walk("a row of SFT", 14, {"prepared": "sft.data:prepare_data"}, "toolkit-sft", write_sft),
    "dpo": Walk("a pair of DPO", 18, {"prepared": "dpo.data:prepare_data"}, "toolkit-dpo", write_dpo),
    "rl": Walk("a prompt of RL", 24, {}, "toolkit-rl-train", write_rl),
    "config": Walk("a config", None, {"loaded": "config.load:load_config"}, "toolkit-sft", write_sft, ("--dry-run",)),
}


def main() -> None:
    """Record and print the walks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(WALKS)}; all where none is named")
    names = parser.parse_args().names or list(WALKS)
    if unknown := set(names) - WALKS.keys():
        parser.error(f"{', '.join(unknown)}: the walks are {', '.join(WALKS)}")
    sys.path.insert(0, str(ROOT / "tests"))  # for its tiny model and runs
    from tiny_model import write_tiny_model

    with tempfile.TemporaryDirectory() as temporary:
        model = write_tiny_model(Path(temporary) / "tiny")
        for name in names:
            folder = Path(temporary) / name
            folder.mkdir()
            sys.stdout.write(as_text(WALKS[name], record(WALKS[name], folder, model)) + "\n\n")
            sys.stdout.flush()


def record(walk: Walk, folder: Path, model: Path) -> dict[str, list[str]]:
    """For each part: the modules entered, in order."""
    parts = {**walk.parts, "step": "train.loop:Loop._step"}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "checks" / "recorder"), str(ROOT / "src"))),
        "POSTTRAIN_WALK": str(folder),
        "POSTTRAIN_WALK_PARTS": json.dumps(parts),
        "POSTTRAIN_TOOLKIT_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [Path(sys.executable).parent / walk.command, walk.write(folder, model), *walk.options]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(f"{walk.command} failed:\n{finished.stderr}")
    entered: dict[str, list[str]] = {part: [] for part in parts}
    for line in sorted((folder / "entered").read_text().splitlines(), key=lambda line: int(line.split()[0])):
        _, part, module = line.split()
        if module.split(".")[0] not in LEFT_OUT and module not in entered[part]:
            entered[part].append(module)
    return {part: modules for part, modules in entered.items() if modules}


def as_text(walk: Walk, entered: dict[str, list[str]]) -> str:
    """The walk with its counts; a module entered in two parts counts once."""
    count = len({module for modules in entered.values() for module in modules})
    lines = [f"{walk.title}: {count} files" + (f" (aim {walk.aim})" if walk.aim else "")]
    for part, modules in entered.items():
        lines += [f"  {part}: {len(modules)}", *(f"    {module.replace('.', '/')}.py" for module in modules)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
