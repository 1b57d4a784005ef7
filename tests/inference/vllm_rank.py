"""One torchrun rank with its own vLLM: `vllm_rank.py MODEL FOLDER` writes FOLDER/RANK.json.

Rank 0 completes two prompts, rank 1 four longer ones; afterwards they can still communicate.
"""

import json
import sys
from pathlib import Path

import torch
from loaded_model import NEVER

from posttrain.inference.engine import GenerationRequest, Sampling
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions


def main(model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    engine = VllmEngine(model, NEVER, VllmOptions("float32", max_length=512, eager=True))
    requests = [GenerationRequest(tuple(range(5 + at, 20 + 3 * at))) for at in range(2 * rank, 2 + 4 * rank)]
    answers = dict(engine.generate(requests, Sampling(10 + 20 * rank)))
    engine.close()
    ranks = torch.tensor([1])
    torch.distributed.all_reduce(ranks)
    said = [[request.prompt_ids, answers[at, 0].token_ids] for at, request in enumerate(requests)]
    (folder / f"{rank}.json").write_text(json.dumps({"ranks": ranks.item(), "said": said}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
