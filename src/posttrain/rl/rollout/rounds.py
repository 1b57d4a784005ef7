"""Ask substitutes for rejected groups, round by round, until each slot is filled or has had its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from posttrain.rl.rollout.choice import by_place, datasets, verdicts
from posttrain.rl.rollout.collector import Collector
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.rollout.selection import next_round, spares
from posttrain.train.parallel import RankExchange


@dataclass(frozen=True)
class Rounds:
    """Makes whole generations on all ranks, which call it together; each has a share of every round.

    All ranks judge all groups, so all ask the same substitutes. Nothing depends on time.
    """

    collector: Collector
    config: RejectionConfig
    exchange: RankExchange

    def collect(self, generation: int, version: int) -> list[Rollout]:
        """All groups that were asked, graded, those of one prompt adjacent; the curriculum's own come first.

        Raises:
            ServerError: on any rank, the dataserver gives no prompts or no rewards, or the engine is lost.
            RunError: a user's filter failed.
        """
        collector, iteration = self.collector, self.collector.schedule.iteration_of(generation)
        first = self.exchange.agreed(lambda: collector.prompts.of_generation(generation))
        of_slots = [prompt.dataset for prompt in first]
        extra = spares(collector.seed, iteration, of_slots, self.config.over_sampling)
        more = self.exchange.agreed(lambda: collector.prompts.substitutes(generation, extra, "spare"))
        made = self._made(generation, version, 0, [*first, *more])
        for number in range(1, self.config.attempts + 1):
            groups = by_place(made)
            accepted = {place: each is None for place, each in verdicts(groups, self.config, iteration).items()}
            places = next_round(datasets(groups), accepted, self.config.attempts)
            if not places:
                break
            prompts = self.exchange.agreed(partial(collector.prompts.substitutes, generation, places))
            made += self._made(generation, version, number, prompts)
        return made

    def _made(self, generation: int, version: int, number: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        def share() -> list[Rollout]:
            completed = self.collector.complete(generation, version, prompts)
            return self.collector.grade(generation, completed, number)

        return self.exchange.gathered(share)
