"""The place of a function of the user's in a config: `file.py:function`."""

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from posttrain.base.user_code import split_place
from posttrain.config.strict import resolve_path


def _resolved(place: str, info: ValidationInfo) -> str:
    file, name = split_place(place)
    return f"{resolve_path(file, info)}:{name}"


FunctionPlace = Annotated[str, AfterValidator(_resolved)]
"""`file.py:name`, of which the file is made absolute as every path of a config is."""
