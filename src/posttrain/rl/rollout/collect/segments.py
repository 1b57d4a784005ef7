"""Generate long completions in segments: a generation adds a number of tokens to each, later ones go on with the rest.

How far a completion gets depends on tokens alone, never on time.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from posttrain.base.processes import share_of_rank
from posttrain.inference.engine import Completion, GenerationRequest, Sampling, StopReason, derive_seed
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.rollout import Prompt, Rollout


class Segments:
    """This rank's share of generations of which each gives a completion at most `tokens` more tokens.

    A rank has whole groups, those of its share of the slots, and completes what it has begun.
    """

    def __init__(self, collector: Collector, tokens: int, longest: int) -> None:
        """Start with nothing carried over.

        Args:
            longest: the largest limit of a completion in the run.
        """
        self._collector, self._tokens, self._longest = collector, tokens, longest
        self._carried: dict[int, list[Rollout]] = {}

    def carried_after(self, generation: int) -> list[Rollout]:
        """The rollouts of the groups that were not whole after a generation, whose text is not final."""
        return [] if generation < 0 else self._carried[generation]

    def restore(self, generation: int, rollouts: Sequence[Rollout]) -> None:
        """Continue after `generation`, with what all ranks carried over from it."""
        slots = self._slots()
        self._carried = {generation: [each for each in rollouts if each.prompt.slot in slots]}

    def forget_before(self, generation: int) -> None:
        """Forget what earlier generations left over; the engine's thread may collect a later one meanwhile."""
        for number in [each for each in list(self._carried) if each < generation]:
            del self._carried[number]

    def collect(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """The groups that this generation makes whole, ungraded, in the order of their iterations and slots.

        Args:
            version: number of optimizer steps behind the engine's weights.
            prompts: all that the curriculum asks.

        Raises:
            ServerError: the engine is lost.
        """
        samples = range(self._collector.schedule.generations)
        begun = [self._begun(prompts[slot], sample) for slot in self._slots() for sample in samples]
        extended = self._extended([*self.carried_after(generation - 1), *begun], generation, version)
        whole: list[Rollout] = []
        carried: list[Rollout] = []
        for _, members in groupby(extended, key=lambda each: each.prompt.group):
            group = list(members)
            if any(map(self._is_unfinished, group)):
                prompt = replace(group[0].prompt, origin="carried")
                carried += [replace(each, prompt=prompt) for each in group]
            else:
                whole += group
        self._carried[generation] = carried
        return whole

    def _slots(self) -> range:
        return share_of_rank(self._collector.schedule.prompts_per_iteration)

    def _begun(self, prompt: Prompt, sample: int) -> Rollout:
        """A completion without tokens; it is cut, and so unfinished, unless its prompt is too long."""
        sampling = self._collector.sampling(prompt.iteration)
        nothing = None if prompt.is_too_long else Completion((), StopReason.LENGTH)
        return Rollout.of(prompt, sample, nothing, self._collector.tokenizer, sampling, version=0)

    def _left(self, rollout: Rollout) -> int:
        return self._collector.sampling(rollout.prompt.iteration).max_new_tokens - rollout.tokens

    def _is_unfinished(self, rollout: Rollout) -> bool:
        return rollout.was_cut and self._left(rollout) > 0

    def _extended(self, rollouts: Sequence[Rollout], generation: int, version: int) -> list[Rollout]:
        """The rollouts, the unfinished ones with their next segment; each is sampled as its own iteration says."""
        extended = list(rollouts)
        for sampling in self._samplings(generation):
            numbers = [
                number
                for number, each in enumerate(rollouts)
                if self._is_unfinished(each) and self._sampling(each) == sampling
            ]
            completions = self._completed([rollouts[number] for number in numbers], sampling, generation, version)
            for number, completion in zip(numbers, completions, strict=True):
                extended[number] = rollouts[number].continued(completion, self._collector.tokenizer, version)
        return extended

    def _samplings(self, generation: int) -> list[Sampling]:
        """How segments are sampled in a generation: the same on all ranks, which may have to ask the engine together.

        What an earlier generation began and is unfinished has had a whole segment in each generation since.
        """
        found: dict[Sampling, None] = {}
        for segment in reversed(range(min(generation, -(-self._longest // self._tokens) - 1) + 1)):
            sampling = self._collector.sampling(self._collector.schedule.iteration_of(generation - segment))
            left = sampling.max_new_tokens - segment * self._tokens
            if left > 0:
                found[replace(sampling, max_new_tokens=min(self._tokens, left))] = None
        return list(found)

    def _sampling(self, rollout: Rollout) -> Sampling:
        """How the next segment of a rollout is sampled."""
        sampling = self._collector.sampling(rollout.prompt.iteration)
        return replace(sampling, max_new_tokens=min(self._tokens, self._left(rollout)))

    def _completed(
        self, rollouts: Sequence[Rollout], sampling: Sampling, generation: int, version: int
    ) -> list[Completion]:
        """The next segment of each rollout; those that continue the same tokens share a request."""
        prefixes = [(*each.prompt.ids, *each.ids.tolist()) for each in rollouts]
        pairs = zip(prefixes, map(self._seed, rollouts), strict=True)
        requests = [
            GenerationRequest(prefix, tuple(seed for _, seed in several))
            for prefix, several in groupby(pairs, key=lambda pair: pair[0])
        ]
        made = self._collector.generate(requests, sampling, generation, version)
        return [completion for _, completion in sorted(made.items(), key=lambda pair: pair[0])]

    def _seed(self, rollout: Rollout) -> int:
        generation = rollout.prompt.iteration // self._collector.schedule.iteration_stride
        segment = (rollout.tokens // self._tokens,) if rollout.tokens else ()
        return derive_seed(self._collector.seed, generation, rollout.prompt.slot, rollout.sample, *segment)


def parts_of(rollouts: Sequence[Rollout], parts: int, group: int, multiple: int) -> list[Rollout]:
    """The rollouts divided into parts of equal length, filled up with rollouts that do not count.

    Args:
        rollouts: any number of groups of `group` rollouts.
        multiple: a part has at least as many groups, or twice as many, and so on.
    """
    groups = [rollouts[start : start + group] for start in range(0, len(rollouts), group)]
    shares = [groups[len(groups) * part // parts : len(groups) * (part + 1) // parts] for part in range(parts)]
    rows = group * multiple * max(1, -(-max(map(len, shares)) // multiple))
    divided: list[Rollout] = []
    for share in shares:
        there = [each for several in share for each in several]
        divided += [*there, *[NOTHING] * (rows - len(there))]
    return divided


NOTHING = Rollout(
    prompt=Prompt(sample_id="", dataset="", slot=0, ids=(0,), text="", is_too_long=False),
    sample=0,
    ids=np.zeros(0, np.int64),
    mask=np.zeros(0, np.bool_),
    versions=np.zeros(0, np.int32),
    logprobs=np.zeros(0, np.float32),
    temperature=1.0,
    text="",
    was_cut=False,
    is_left_out=True,
)
