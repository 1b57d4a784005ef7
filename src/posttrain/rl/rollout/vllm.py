"""vLLM beside the training model, in the same process and with weights of its own."""

from collections.abc import Sequence

from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from posttrain.rl.rollout.weight_sync import WeightSync


class VllmRolloutEngine:
    """A RolloutEngine that gets the weights anew when there were optimizer steps since.

    Where `options.sleeps` it has a CUDA device's memory only while it generates. It wakes up before weights are
    brought: asleep they have no place.

    Raises:
        ConfigError: vLLM is not installed, or has no room for adapters of the wanted rank.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """

    def __init__(self, sync: WeightSync, end_ids: frozenset[int], options: VllmOptions) -> None:
        self._sync = sync
        self._step: int | None = None
        self._sleeps = options.sleeps
        try:
            self._engine = VllmEngine(sync.first_folder(), end_ids, options)
            sync.release()
            self._rest()
        except BaseException:
            sync.close()
            raise

    def update(self, step: int) -> None:
        """Bring the weights over, unless those of this step are there."""
        if step != self._step:
            self._engine.wake_up()
            self._sync.bring(self._engine)
            self._step = step

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests."""
        self._engine.wake_up()
        completions = dict(self._engine.generate(requests, sampling))
        self._rest()
        return completions

    def close(self) -> None:
        """Stop vLLM, and remove what was written for it."""
        try:
            self._engine.close()
        finally:
            self._sync.close()

    def _rest(self) -> None:
        if self._sleeps:
            self._engine.sleep()
