"""All built-in graders, as one section of a config: `type` says which."""

from typing import Annotated, get_args

from pydantic import Field

from toolkit.dataserver.graders.base import Grader
from toolkit.dataserver.graders.string_exact import StringExact

AnyGrader = Annotated[StringExact, Field(discriminator="type")]

_MEMBERS = get_args(get_args(AnyGrader)[0]) or (get_args(AnyGrader)[0],)


def built_in_graders() -> dict[str, type[Grader]]:
    """Each name that `type` may have, and its class."""
    return {name: member for member in _MEMBERS for name in get_args(member.model_fields["type"].annotation)}
