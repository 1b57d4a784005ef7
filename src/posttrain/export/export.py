"""`toolkit-export`: write a trained model as a GGUF file that has been compared with it, and a Modelfile.

Everything is made in a hidden folder beside the output. The file gets its name when all checks have passed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.base.console import console
from posttrain.base.files import content_digest
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.outputs import check_output
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.messages import Conversation
from posttrain.data.sources import open_source
from posttrain.errors import ConfigError
from posttrain.export.convert import convert
from posttrain.export.gguf_types import GgufType
from posttrain.export.llama_cpp import LlamaCpp, find_llama_cpp
from posttrain.export.modelfile import modelfile
from posttrain.export.probes import PROMPTS
from posttrain.export.publish import folder_aside, publish
from posttrain.export.verify import verify
from posttrain.inference.config import load_inference_config
from posttrain.inference.weights import ChosenWeights, choose_weights
from posttrain.merge.merge import merge_adapter
from posttrain.merge.verify import verify_merge
from posttrain.models.weights.tensor_files import FLOATS, checkpoint_tensors

MOST_PROMPTS = 20
"""Prompts of a user's file that are answered."""


@dataclass(frozen=True)
class Job:
    """What to export, and to where.

    Attributes:
        name: the run's, which becomes the model's in the file.
        prompts: what is answered in the check.
    """

    weights: ChosenWeights
    generation: GenerationConfig
    name: str
    kind: GgufType
    tools: LlamaCpp
    output: Path
    prompts: tuple[Conversation, ...]

    @property
    def report(self) -> Path:
        """The file with the checks' numbers."""
        return self.output.with_suffix(".export.json")

    @property
    def modelfile(self) -> Path:
        """The file for ollama."""
        return self.output.with_suffix(".Modelfile")


def export(  # noqa: PLR0913 - one parameter for each option of the command
    config_path: Path,
    *,
    kind: GgufType = "q8_0",
    llama_cpp: Path | None = None,
    output: Path | None = None,
    prompts: Path | None = None,
    weights: Literal["adapter", "base"] = "adapter",
    checkpoint: str | None = None,
    run_name: str | None = None,
    model_index: int | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    dry_run: bool = False,
) -> dict[str, Any] | None:
    """Export what the run of `config_path` trained, or the model that it names.

    Args:
        llama_cpp: the folder of the user's own llama.cpp; what it lacks comes from the extra `gguf`.
        output: a file that ends in .gguf; by default NAME-TYPE.gguf in the run's folder.
        prompts: a file of prompts to answer in the check, in the place of general questions.
        weights: `base` for the model that the config names, which needs an `output`.
        checkpoint: a step, or `latest`; None takes what the run exported at its end.
        dry_run: check, print what would be done, and return None.

    Returns:
        The numbers of the checks, as in the file that is written.

    Raises:
        ConfigError: there is no such run or checkpoint, a part of llama.cpp is missing, or `output` cannot be written.
        DataError, ModelError: a prompt cannot be used, or base and adapter do not fit together.
        RunError: a program of llama.cpp failed, the disk is full, or the file is not what the model is.
    """
    which = {"checkpoint": checkpoint, "run_name": run_name, "model_index": model_index}
    if weights == "base" and output is None:
        raise ConfigError("--weights base is no run's, so there is no folder to write to; give --output FILE.gguf")
    chosen = choose_weights(config_path, weights, **which, overrides=overrides)
    folder = chosen.adapter or Path(chosen.model.name)
    run, name = (folder, folder.name) if checkpoint is None else (folder.parent, f"{folder.parent.name}-{folder.name}")
    job = Job(
        weights=chosen,
        generation=load_inference_config(config_path, overrides).generation,
        name=name,
        kind=kind,
        tools=find_llama_cpp(llama_cpp, kind),
        output=output or run / f"{name}-{kind}.gguf",
        prompts=PROMPTS if prompts is None else _read_prompts(prompts),
    )
    if job.output.suffix != ".gguf":
        raise ConfigError(f"--output: {job.output} does not end in .gguf; name the file that is to be written")
    inputs = [config_path, *([] if prompts is None else [prompts])]
    check_output(job.output, inputs, overwrite=overwrite)
    if dry_run:
        require_unowned(job.output)
        _show_plan(job)
        return None
    with own_output(job.output):
        check_output(job.output, inputs, overwrite=overwrite)  # again: another process may have written it since
        return _export(job)


def _read_prompts(file: Path) -> tuple[Conversation, ...]:
    records = open_source(DatasetConfig(path=str(file))).read("error", require_answer=False).records
    asked = []
    for record in records[:MOST_PROMPTS]:
        messages = record.conversation.messages
        kept = messages[:-1] if messages[-1].role == "assistant" else messages
        asked.append(Conversation(kept, record.conversation.tools))
    return tuple(asked)


def _show_plan(job: Job) -> None:
    console.print(f"weights    {job.weights}")
    console.print(f"type       {job.kind}")
    console.print(f"converter  {job.tools.converter}")
    console.print(f"checked by {job.tools.server or 'the server in the package xllamacpp'}, {len(job.prompts)} prompts")
    console.print(f"output     {job.output}, {job.modelfile.name} and {job.report.name}")
    console.print("nothing was exported (--dry-run)")


def _export(job: Job) -> dict[str, Any]:
    with folder_aside(job.output) as aside:
        model = _merged(job, aside)
        file = aside / job.output.name
        console.print(f"converting to {job.kind}")
        convert(job.tools, Path(model.name).absolute(), file, job.kind)
        console.print("comparing the file with the model")
        chat = job.weights.chat
        checks = verify(file, model, chat, tools=job.tools, kind=job.kind, prompts=job.prompts)
        size = file.stat().st_size
        what = {"file": job.output.name, "type": job.kind, "bytes": size, "blake2b": content_digest(file)}
        report = {**what, "weights": str(job.weights), "checks": checks}
        text, reason = _modelfile(job)
        publish(
            file, job.output, {job.modelfile: text, job.report: json.dumps(report, indent=2, ensure_ascii=False) + "\n"}
        )
        if text is None:
            console.print(f"no Modelfile was written: {reason}", markup=False)
    answers = checks["answers"]
    console.print(
        f"wrote {job.output} ({size / 2**20:.0f} MiB): mean KL {answers['kl']:.2g}, same first choice for "
        f"{answers['agreement']:.1%} of {answers['tokens']} tokens, {answers['same_answers']} of {answers['answers']} "
        "answers the same",
    )
    return report


def _merged(job: Job, aside: Path) -> ModelConfig:
    """The whole model: what was trained, or the adapter merged into its base, which is compared with both."""
    base, adapter, chat = job.weights.model, job.weights.adapter, job.weights.chat
    if adapter is None:
        return base
    folder = aside / "merged" / job.name  # the converter takes the folder's name for the model's
    folder.parent.mkdir()
    console.print(f"merging {adapter}")
    merge_adapter(base, adapter, folder, chat=chat)
    stored = {FLOATS[tensor.dtype] for tensor in checkpoint_tensors(folder).values() if tensor.dtype in FLOATS}
    coarsest = min(stored, key=lambda dtype: dtype.itemsize)
    console.print(
        f"compared with the adapter: {verify_merge(base, adapter, folder, chat=chat, weights_dtype=coarsest)}"
    )
    return base.model_copy(update={"name": str(folder), "revision": None, "adapter": None, "added_tokens": ()})


def _modelfile(job: Job) -> tuple[str | None, str]:
    """The Modelfile's text, or None and the reason why there is none."""
    chat = job.weights.chat
    if chat.template != "chatml" or chat.reasoning_tags is not None or chat.solution_tags is not None:
        return None, "a chat template other than chatml, or tags of one's own, cannot be written as one of ollama's"
    try:
        return modelfile(job.output.name, chat, job.generation), ""
    except ValueError as error:
        return None, str(error)
