"""From a graded request to what the journal keeps of it."""

from collections.abc import Sequence
from datetime import UTC, datetime

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.journal.rows import JournalRow
from posttrain.dataserver.schemas import GradeRequest, GradeResponse


def journal_rows(
    request: GradeRequest,
    targets: Sequence[Target | str],
    digests: Sequence[str],
    response: GradeResponse,
    milliseconds: float,
) -> list[JournalRow]:
    """One row for each completion of which it is known what it answers."""
    now = datetime.now(UTC)
    return [
        JournalRow(
            config_id=response.config_id,
            run_id=request.run_id,
            request_id=request.request_id,
            item_id=item.item_id,
            created_at=now,
            split="validation" if target.is_held_out else "train",
            iteration=request.iteration,
            stage=response.stage,
            dataset=target.dataset,
            sample_id=item.sample_id,
            row_key=target.row.key,
            slot=item.slot,
            prompt=target.prompt,
            gold=target.gold,
            completion=item.completion,
            completion_digest=digest,
            completion_tokens=item.completion_tokens,
            truncated=item.truncated,
            status=result.status,
            reason=result.reason,
            reward=result.reward,
            components=result.components,
            milliseconds=milliseconds,
        )
        for item, target, digest, result in zip(request.items, targets, digests, response.results, strict=True)
        if isinstance(target, Target)
    ]
