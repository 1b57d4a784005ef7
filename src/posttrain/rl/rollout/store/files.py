"""Rollouts on disk: arrays in `name.safetensors`, everything else in `name.json`."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from posttrain.base.files import atomic_write_bytes
from posttrain.base.strict_json import json_line, parse_object
from posttrain.base.text import as_shown, first_line
from posttrain.dataserver.schemas import GradeResult
from posttrain.errors import DataError
from posttrain.rl.rollout.rollout import Prompt, Rollout

FOLDER = "rollouts"
"""Name of the folder with generations, in a run directory and in a checkpoint."""

_FORMAT = "rollouts-1"
_GENERATION = "generation-"

Arrays = dict[str, npt.NDArray[Any]]


def generation_name(number: int) -> str:
    """The name under which a generation is written."""
    return f"{_GENERATION}{number:08d}"


def generations_in(folder: Path) -> list[int]:
    """The generations in the folder `FOLDER` of a run directory or checkpoint, in order."""
    return sorted(int(file.stem.removeprefix(_GENERATION)) for file in (folder / FOLDER).glob(f"{_GENERATION}*.json"))


def write_rollouts(folder: Path, name: str, rollouts: Sequence[Rollout], facts: Mapping[str, Any]) -> None:
    """Write rollouts to `folder/name.safetensors` and `folder/name.json`, replacing earlier ones of that name.

    The JSON file is written last and holds digests of both: a process that dies before leaves no rollouts.

    Args:
        facts: what JSON can hold, e.g. the number of the generation.
    """
    prompts = list({id(each.prompt): each.prompt for each in rollouts}.values())
    numbers = {id(prompt): number for number, prompt in enumerate(prompts)}
    arrays = save(_arrays(prompts, rollouts))
    content = {
        "format": _FORMAT,
        "arrays": _digest(arrays),
        "facts": dict(facts),
        "prompts": [
            {
                "sample_id": prompt.sample_id,
                "dataset": prompt.dataset,
                "slot": prompt.slot,
                "text": prompt.text,
                "is_too_long": prompt.is_too_long,
                "attempt": prompt.attempt,
                "iteration": prompt.iteration,
                "origin": prompt.origin,
            }
            for prompt in prompts
        ],
        "rollouts": [
            {
                "prompt": numbers[id(each.prompt)],
                "sample": each.sample,
                "temperature": each.temperature,
                "text": each.text,
                "was_cut": each.was_cut,
                "result": None if each.result is None else each.result.model_dump(),
            }
            for each in rollouts
        ],
    }
    arrays_file, json_file = _files(folder, name)
    json_file.unlink(missing_ok=True)
    atomic_write_bytes(arrays_file, arrays)
    atomic_write_bytes(json_file, json_line({**content, "digest": _digest(json_line(content))}))


def read_rollouts(folder: Path, name: str) -> tuple[list[Rollout], dict[str, Any]]:
    """The rollouts and the facts that `write_rollouts` wrote, bit for bit.

    Raises:
        DataError: a file is missing, damaged, or not one of ours.
    """
    arrays_file, json_file = _files(folder, name)
    try:
        content = parse_object(json_file.read_bytes())
        raw = arrays_file.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"no such file: {as_shown(Path(error.filename))}") from None
    except OSError as error:
        raise DataError(f"cannot read {as_shown(json_file)}: {error.strerror or error}") from None
    except DataError as error:
        raise _damaged(json_file, str(error)) from None
    if content.get("format") != _FORMAT:
        raise _damaged(json_file, f"its format is not {_FORMAT}")
    if content.pop("digest", None) != _digest(json_line(content)):
        raise _damaged(json_file, "its digest does not match its content")
    if content["arrays"] != _digest(raw):
        raise _damaged(arrays_file, f"its digest does not match {json_file.name}")
    try:
        return _rollouts(content, load(raw)), content["facts"]
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise _damaged(json_file, first_line(error)) from error


def _arrays(prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> Arrays:
    """Flat arrays over all tokens, and the lengths that divide them."""
    has_logprobs = [each.logprobs is not None for each in rollouts]
    logprobs = [each.logprobs for each in rollouts if each.logprobs is not None]
    return {
        "prompt_lengths": np.array([len(prompt.ids) for prompt in prompts], np.int64),
        "prompt_ids": np.array([token for prompt in prompts for token in prompt.ids], np.int64),
        "lengths": np.array([each.tokens for each in rollouts], np.int64),
        "ids": _joined([each.ids for each in rollouts], np.int64),
        "mask": _joined([each.mask for each in rollouts], np.bool_),
        "versions": _joined([each.versions for each in rollouts], np.int32),
        "has_logprobs": np.array(has_logprobs, np.bool_),
        "logprobs": _joined(logprobs, np.float32),
    }


def _rollouts(content: Mapping[str, Any], arrays: Arrays) -> list[Rollout]:
    prompt_ids = _divided(arrays["prompt_ids"], arrays["prompt_lengths"])
    prompts = [
        Prompt(**fields, ids=tuple(ids.tolist())) for fields, ids in zip(content["prompts"], prompt_ids, strict=True)
    ]
    lengths, has_logprobs = arrays["lengths"], arrays["has_logprobs"]
    logprobs = iter(_divided(arrays["logprobs"], lengths[has_logprobs]))
    parts = (_divided(arrays[name], lengths) for name in ("ids", "mask", "versions"))
    return [
        Rollout(
            prompt=prompts[fields["prompt"]],
            sample=fields["sample"],
            ids=ids,
            mask=mask,
            versions=versions,
            logprobs=next(logprobs) if has else None,
            temperature=fields["temperature"],
            text=fields["text"],
            was_cut=fields["was_cut"],
            result=None if fields["result"] is None else GradeResult.model_validate(fields["result"]),
        )
        for fields, ids, mask, versions, has in zip(content["rollouts"], *parts, has_logprobs, strict=True)
    ]


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.array((), dtype), *parts])


def _divided(flat: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    bounds = accumulate(lengths.tolist(), initial=0)
    return [flat[start:end].copy() for start, end in pairwise(bounds)]


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.safetensors", folder / f"{name}.json"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _damaged(file: Path, why: str) -> DataError:
    return DataError(f"{as_shown(file)} is damaged, or not a file of rollouts: {why}")
