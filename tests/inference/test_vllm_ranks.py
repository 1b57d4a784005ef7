"""When several processes train together, each has its own vLLM, and their process group outlives it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from loaded_model import Loaded

from posttrain.inference.engine import GenerationRequest, Sampling
from vllm_model import write_vllm_model

TORCHRUN = Path(sys.executable).with_name("torchrun")
RANK = Path(__file__).with_name("vllm_rank.py")


def test_each_rank_completes_its_own_prompts(tiny_model: Path, load: Callable[..., Loaded], tmp_path: Path):
    model = write_vllm_model(tiny_model, tmp_path / "models")
    command = [str(TORCHRUN), "--standalone", "--nproc-per-node=2", str(RANK), str(model), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    hf = load(model)
    for rank, tokens in ((0, 10), (1, 30)):
        written = json.loads((tmp_path / f"{rank}.json").read_text())
        assert written["ranks"] == 2
        requests = [GenerationRequest(tuple(prompt)) for prompt, _ in written["said"]]
        assert [said for _, said in written["said"]] == [list(c.token_ids) for c in hf.ask(requests, Sampling(tokens))]
        assert len(requests) == 2 + 2 * rank
