"""Configs that another config names, resolved: what they say, and the files that they name in turn."""

from pathlib import Path
from typing import Any

from posttrain.base.cache import file_digest
from posttrain.base.files import content_digest
from posttrain.config.load import load_config
from posttrain.data.readers.data_files import find_files, find_remote
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.prompts import DataserverPromptsConfig
from posttrain.errors import ConfigError, DataError
from posttrain.evaluate.config import EvalConfig
from posttrain.evaluate.tasks.lm_eval import LmEvalTaskConfig
from posttrain.pipeline.named_files import file_digests, without_places
from posttrain.pipeline.overlap import Prompts, prompts_in, served_prompts

# What changes neither prompts nor rewards.
_OF_SERVING = {"data_root", "listen", "journal"}


def dataserver_facts(path: Path) -> dict[str, Any]:
    """What a dataserver's prompts and rewards depend on; ConfigError if the config is wrong or a file is missing."""
    config = load_config(path, DataserverConfig)
    digests: dict[str, Any] = {}
    for name, named in config.local_data().items():
        try:
            files = find_files(named).files
        except DataError as error:
            raise ConfigError(f"{path}: datasets.{name}.path: {error}") from None
        digests[f"datasets.{name}"] = [content_digest(file) for file in files]
    for name, url in config.remote_data().items():
        digests[f"datasets.{name}"] = [file.version for file in find_remote(url).files]
    named = {key: digest for key, digest in file_digests(config).items() if key.split(".")[0] not in _OF_SERVING}
    dump = without_places(config.model_dump(mode="json", exclude=_OF_SERVING))
    return {"config": dump, "files": {**named, **digests}}


def task_prompts(config: EvalConfig) -> Prompts:
    """The prompts of an evaluation's tasks; errors as `dataserver_facts`."""
    for task in config.tasks.values():
        if isinstance(task, DataserverPromptsConfig):
            yield from served_prompts(task.config, task.dataset, task.split)
        elif isinstance(task, LmEvalTaskConfig):
            for file in task.files()[1:]:
                yield from prompts_in(file, "train", None)
        elif (path := getattr(task, "path", None)) is not None:
            yield from prompts_in(path, getattr(task, "split", "train"), getattr(task, "columns", None))


def eval_facts(config: EvalConfig) -> dict[str, Any]:
    """What an evaluation's numbers depend on besides its models; errors as `dataserver_facts`."""
    served = {
        name: dataserver_facts(task.config)
        for name, task in config.tasks.items()
        if isinstance(task, DataserverPromptsConfig)
    }
    dump = config.model_dump(mode="json", exclude={"output", "models", "baseline"})
    del dump["sampling"]["devices"]
    for name in served:
        del dump["tasks"][name]["config"]
    files = {key: digest for key, digest in file_digests(config).items() if not key.startswith("models.")}
    for name, task in config.tasks.items():
        if isinstance(task, LmEvalTaskConfig):
            files |= {f"tasks.{name}, {path.name}": file_digest(path) for path in task.files()}
    return {"config": without_places(dump), "served": served, "files": files}
