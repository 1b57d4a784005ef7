"""Secrets stay in the environment: a config names the variable, and never the secret."""

import re
from typing import Annotated

from pydantic import AfterValidator

from posttrain.base.secrets import hide_variable

_VARIABLE = re.compile("[A-Z_][A-Z0-9_]{0,99}")


def _names_a_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        # The value may be the token itself, so it is not repeated.
        raise ValueError("wanted the name of an environment variable, in capitals; the token does not stand here")
    hide_variable(name)
    return name


VariableName = Annotated[str, AfterValidator(_names_a_variable)]
"""Name of an environment variable, in capitals. What it holds is shown nowhere once a config has named it."""
