"""What a dry run says of adaptive sampling."""

from collections.abc import Iterator, Mapping

from posttrain.dataserver.config.adaptive import AdaptiveConfig


def outline(adaptive: AdaptiveConfig, stride: int) -> Iterator[str]:
    """One line on when rows are chosen, and one for each way in which they are."""
    yield f"adaptive: iteration i is decided by the grades of iterations up to i − {adaptive.lag * stride}"
    pools = adaptive.pools
    if pools is not None:
        yield (
            f"  pools: rows with {pools.min_grades} or more grades are kept with a chance of {pools.solved_weight:g} "
            f"from a mean of {pools.solved_at:g} up, of {pools.unsolved_weight:g} from {pools.unsolved_at:g} down"
        )
    if adaptive.easy is not None:
        yield f"  easy: {_points(adaptive.easy.share)} of the prompts come from {adaptive.easy.dataset}"
    if adaptive.replay is not None:
        yield f"  replay: {_points(adaptive.replay.share)} of the prompts are rows that were asked before"


def _points(share: Mapping[int, float]) -> str:
    first, *later = (f"{value:.3g} at iteration {iteration}" for iteration, value in sorted(share.items()))
    return ", ".join([first, *(f"then {point}" for point in later)]) + ("," if later else "")
