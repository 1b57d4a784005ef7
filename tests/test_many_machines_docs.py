"""docs/many-machines.md: its commands, as tasks of SLURM run them."""

import json
import os
import re
import subprocess
from pathlib import Path

import yaml

from running import BIN

PAGE = (Path(__file__).parent.parent / "docs" / "many-machines.md").read_text(encoding="utf-8")


def test_the_tasks_of_a_job_answer_a_shard_each_and_are_joined(tmp_path: Path, tiny_model: Path):
    config = {
        "model": {"name": str(tiny_model), "backend": "hf", "dtype": "float32"},
        "generation": {"max_new_tokens": 4, "batch_size": 1},
    }
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two")))
    path = f"{BIN}:{os.environ['PATH']}"

    def run(command: str, **variables: str) -> None:
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
        command = command.replace("sft.yaml", "sft.yaml --weights base")
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, capture_output=True)

    [task] = re.findall(r"^srun -n 8 bash -c '(.*)'$", PAGE, re.MULTILINE)
    [of_array] = re.findall(r"^(.*SLURM_ARRAY_TASK_ID.*)$", PAGE, re.MULTILINE)
    [join] = re.findall(r"^(.* --join) +#", PAGE, re.MULTILINE)
    run(task, SLURM_PROCID="0", SLURM_NTASKS="2")
    run(of_array, SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_TASK_COUNT="2")
    run(join)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
