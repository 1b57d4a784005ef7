"""The lines of the `--dry-run` plan about the rollout engine."""

from importlib.util import find_spec

from posttrain.base.console import console
from posttrain.rl.config import RLConfig
from posttrain.rl.presets import SamplingCorrection
from posttrain.runs.directory import RunDirectory

_SYNC = {
    "auto": "the adapter on CUDA, all weights on other devices",
    "adapter": "the adapter after each step",
    "weights": "the weights after each step",
}
_SENT = {
    "auto": "the adapter after each step, or all weights if it cannot be used as it is",
    "adapter": _SYNC["adapter"],
    "folder": _SYNC["weights"],
}


def told_sampling(config: RLConfig) -> str:
    """How completions are sampled, and what the engine gets of each step."""
    rollout, traits = config.rollout, config.rollout.traits
    missing = traits.extra is not None and find_spec(traits.extra) is None
    in_segments = "" if rollout.segment_tokens is None else f", in segments of {rollout.segment_tokens},"
    brought = _SYNC[rollout.sync if traits.takes_adapter else "weights"]
    if rollout.servers is not None and rollout.engine_name == "vllm-server":
        brought = _SENT[rollout.servers.weights]
    sync = f", which gets {brought}" if traits.has_weights else ""
    return (
        f"by {rollout.engine_name}{' (not installed here)' * missing}{sync}, {rollout.told}{in_segments} "
        f"after at most {rollout.max_prompt_tokens}; importance correction {_correction(rollout.correction)}"
    )


def _correction(correction: SamplingCorrection) -> str:
    if correction.against_behaviour:
        return "by the algorithm's own ratio"
    if correction.kind == "none":
        return "none"
    floor = "" if correction.floor is None else f"from {correction.floor:g} "
    return f"{correction.kind} {floor}to {correction.limit:g}"


def show_lacks(config: RLConfig, run: RunDirectory) -> None:
    """Check as the run would that the engine's weights have room and its servers fit; it loads no model.

    Raises:
        ConfigError, ServerError: as `require_engine_fits`.
    """
    from posttrain.rl.rollout.engines.requirements import require_engine_fits

    for fault in require_engine_fits(config, run.path, config.training.max_steps or 1):
        console.print(f"server          not checked: {fault}")
