"""All built-in graders, as a union of config sections by `type`."""

from typing import Annotated, get_args

from pydantic import Field

from posttrain.dataserver.graders.answer_partial import AnswerPartial
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.category_match import CategoryMatch
from posttrain.dataserver.graders.choice import Choice
from posttrain.dataserver.graders.code_stdio import CodeStdio
from posttrain.dataserver.graders.completion_length_cap import CompletionLengthCap
from posttrain.dataserver.graders.contains import Contains
from posttrain.dataserver.graders.crossword import Crossword
from posttrain.dataserver.graders.http import HttpGrader
from posttrain.dataserver.graders.ifeval import IfEval
from posttrain.dataserver.graders.json_equal import JsonEqual
from posttrain.dataserver.graders.json_schema import JsonSchema
from posttrain.dataserver.graders.json_valid import JsonValid
from posttrain.dataserver.graders.language import Language
from posttrain.dataserver.graders.latex_only import LatexOnly
from posttrain.dataserver.graders.length_soft import LengthSoft
from posttrain.dataserver.graders.llm_judge import LlmJudge
from posttrain.dataserver.graders.math_verify import MathVerify
from posttrain.dataserver.graders.number_exact import NumberExact
from posttrain.dataserver.graders.number_match import NumberMatch
from posttrain.dataserver.graders.number_only import NumberOnly
from posttrain.dataserver.graders.python import PythonGrader
from posttrain.dataserver.graders.reasoning_format import ReasoningFormat
from posttrain.dataserver.graders.reasoning_gym import ReasoningGym
from posttrain.dataserver.graders.regex import Regex
from posttrain.dataserver.graders.repetition import Repetition
from posttrain.dataserver.graders.rush_hour import RushHour
from posttrain.dataserver.graders.string_exact import StringExact
from posttrain.dataserver.graders.tag_format import TagFormat
from posttrain.dataserver.graders.xml_schema import XmlSchema

AnyGrader = Annotated[
    StringExact
    | AnswerPartial
    | CategoryMatch
    | Choice
    | CodeStdio
    | CompletionLengthCap
    | Contains
    | Crossword
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
    | RushHour
    | TagFormat
    | XmlSchema,
    Field(discriminator="type"),
]


def built_in_graders() -> dict[str, type[Grader]]:
    """Each allowed value of `type` and its class."""
    members = get_args(get_args(AnyGrader)[0])
    return {name: member for member in members for name in get_args(member.model_fields["type"].annotation)}
