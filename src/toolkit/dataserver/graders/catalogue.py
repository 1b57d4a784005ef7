"""All built-in graders, as one section of a config: `type` says which."""

from typing import Annotated, get_args

from pydantic import Field

from toolkit.dataserver.graders.answer_partial import AnswerPartial
from toolkit.dataserver.graders.base import Grader
from toolkit.dataserver.graders.category_match import CategoryMatch
from toolkit.dataserver.graders.choice import Choice
from toolkit.dataserver.graders.code_stdio import CodeStdio
from toolkit.dataserver.graders.completion_length_cap import CompletionLengthCap
from toolkit.dataserver.graders.contains import Contains
from toolkit.dataserver.graders.http import HttpGrader
from toolkit.dataserver.graders.ifeval import IfEval
from toolkit.dataserver.graders.json_equal import JsonEqual
from toolkit.dataserver.graders.json_schema import JsonSchema
from toolkit.dataserver.graders.json_valid import JsonValid
from toolkit.dataserver.graders.language import Language
from toolkit.dataserver.graders.latex_only import LatexOnly
from toolkit.dataserver.graders.length_soft import LengthSoft
from toolkit.dataserver.graders.llm_judge import LlmJudge
from toolkit.dataserver.graders.math_verify import MathVerify
from toolkit.dataserver.graders.number_exact import NumberExact
from toolkit.dataserver.graders.number_match import NumberMatch
from toolkit.dataserver.graders.number_only import NumberOnly
from toolkit.dataserver.graders.python import PythonGrader
from toolkit.dataserver.graders.reasoning_format import ReasoningFormat
from toolkit.dataserver.graders.reasoning_gym import ReasoningGym
from toolkit.dataserver.graders.regex import Regex
from toolkit.dataserver.graders.repetition import Repetition
from toolkit.dataserver.graders.string_exact import StringExact
from toolkit.dataserver.graders.tag_format import TagFormat
from toolkit.dataserver.graders.xml_schema import XmlSchema

AnyGrader = Annotated[
    StringExact
    | AnswerPartial
    | CategoryMatch
    | Choice
    | CodeStdio
    | CompletionLengthCap
    | Contains
    | HttpGrader
    | IfEval
    | JsonEqual
    | JsonSchema
    | JsonValid
    | Language
    | LatexOnly
    | LengthSoft
    | LlmJudge
    | PythonGrader
    | MathVerify
    | NumberExact
    | NumberMatch
    | NumberOnly
    | ReasoningFormat
    | ReasoningGym
    | Regex
    | Repetition
    | TagFormat
    | XmlSchema,
    Field(discriminator="type"),
]

_MEMBERS = get_args(get_args(AnyGrader)[0]) or (get_args(AnyGrader)[0],)


def built_in_graders() -> dict[str, type[Grader]]:
    """Each name that `type` may have, and its class."""
    return {name: member for member in _MEMBERS for name in get_args(member.model_fields["type"].annotation)}
