"""Ask substitutes for rejected groups, round by round, until each slot is filled or has had its attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from posttrain.rl.rollout.choice import Choice, by_place, choose, require_same_verdicts
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.filters.catalogue import Rejection
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.rollout.selection import Place, spares
from posttrain.train.parallel.ranks import RankExchange


@dataclass(frozen=True)
class Rounds:
    """Makes whole generations on all ranks, which call it together; each has a share of every round.

    All ranks judge all groups, so all ask the same substitutes. Nothing depends on time.
    """

    collector: Collector
    config: RejectionConfig
    exchange: RankExchange

    def collect(self, generation: int, version: int, candidates: Candidates | None = None) -> list[Rollout]:
        """All groups that were asked, graded, those of one prompt adjacent; the curriculum's own come first.

        Slots that `candidates` fill get no substitutes, and those that are reserved for them rollouts without tokens.

        Raises:
            ServerError: on any rank, the dataserver gives no prompts or no rewards, or the engine is lost.
            RunError: a user's filter failed, or does not judge alike on all ranks.
        """
        collector, iteration = self.collector, self.collector.schedule.iteration_of(generation)
        asking = f"prompts of generation {generation}"
        first = self.exchange.agreed(asking, lambda: collector.prompts.of_generation(generation))
        asked, empty = collector.without_displaced(generation, first, candidates)
        extra = spares(collector.seed, iteration, [each.dataset for each in first], self.config.over_sampling)
        slots = {each.slot for each in asked}
        extra = [place for place in extra if place.slot in slots]
        more = self.exchange.agreed(asking, lambda: collector.prompts.substitutes(generation, extra, "spare"))
        made = [*empty, *self._made(generation, version, 0, [*asked, *more])]
        for number in range(1, self.config.attempts + 1):
            places = self._chosen(generation, made, candidates).next_round(self.config.attempts)
            if not places:
                break
            prompts = self.exchange.agreed(asking, partial(collector.prompts.substitutes, generation, places))
            made += self._made(generation, version, number, prompts)
        return made

    def _made(self, generation: int, version: int, number: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        def share() -> list[Rollout]:
            completed = self.collector.complete(generation, version, prompts)
            return self.collector.grade(generation, completed, number)

        return self.exchange.gathered(f"round {number} of generation {generation}", share)

    def _chosen(self, generation: int, made: Sequence[Rollout], candidates: Candidates | None) -> Choice:
        """The groups that would be trained if no more were asked: the same on all ranks."""
        iteration, choices = self.collector.schedule.iteration_of(generation), list[Choice]()

        def judge() -> Mapping[Place, Rejection | None]:
            choices.append(choose(by_place(made), self.config, iteration, candidates))
            return choices[0].verdicts

        require_same_verdicts(self.exchange.everywhere(f"verdicts on generation {generation}", judge))
        return choices[0]
