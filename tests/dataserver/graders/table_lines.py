"""Lines of the graders' tables as grader input."""

from posttrain.dataserver.graders.base import Example
from posttrain.dataserver.graders.text.completions import GradeInput


def grade_input(line: Example) -> GradeInput:
    """The line as the grader sees it."""
    item = GradeInput(
        completion=line.completion,
        answer=None,
        gold=line.gold,
        record=line.record,
        prompt=line.prompt,
        completion_tokens=line.completion_tokens,
        truncated=line.truncated,
        tags=line.tags,
    )
    return item.split()
