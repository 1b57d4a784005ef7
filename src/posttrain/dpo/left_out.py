"""How much of a data set is left out, and when that is too much."""

from posttrain.data.ledger import Ledger
from posttrain.data.preparation import VALIDATION
from posttrain.dpo.sources import USELESS
from posttrain.errors import DataError

NOT_DRAWN = "not drawn (n_samples)"
"""What the ledger calls records that `n_samples` left out."""


def key_of(name: str) -> str:
    """Where the config has the data set of this name."""
    return name if name == VALIDATION else f"datasets.{name}"


def require_enough_kept(ledger: Ledger, max_dropped_share: float) -> None:
    """Raise DataError where more than this share of the records is bad, useless or too long.

    Of what `n_samples` did not draw it is not known how much would have been too long: taken is the share of those
    that were drawn.
    """
    teaches = ledger.records - ledger.bad - sum(ledger.dropped.get(reason, 0) for reason in USELESS)
    drawn = teaches - ledger.dropped.get(NOT_DRAWN, 0)
    # Rounded, so that a share of exactly as much is not a hair above it.
    share = round(1 - teaches * ledger.rows / (ledger.records * drawn), 9)
    if share <= max_dropped_share:
        return
    counts = {"bad": ledger.bad, **{reason: n for reason, n in ledger.dropped.items() if reason != NOT_DRAWN}}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    raise DataError(
        f"{key_of(ledger.name)}: {share:.0%} of {ledger.records:,} records are left out ({reasons}), more than "
        f"max_dropped_share: {max_dropped_share:g} allows; look at the data and its columns, raise chat.max_length "
        "where they are too long, or raise max_dropped_share"
    )
