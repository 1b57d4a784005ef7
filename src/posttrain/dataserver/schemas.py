"""The wire protocol between trainer and dataserver, version 1.1.

The server's OpenAPI page, its responses and the trainer's client are all built from these classes. Unknown keys are
errors in requests but ignored in responses, so that a newer server can add fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationInfo, field_validator

PROTOCOL_VERSION = "1.1"

T = TypeVar("T")

_LARGEST = 2**40

Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Iteration = Annotated[int, Field(ge=0, le=_LARGEST)]
SlotNumber = Annotated[int, Field(ge=0, le=_LARGEST)]
Split = Literal["train", "validation"]
Status = Literal["ok", "abstain", "error"]
Origin = Literal["fresh", "substitute", "spare", "carried", "replayed", "cached"]
"""Where a group of completions comes from: sampled for its slot; for a substitute that replaces it, or one sampled in
advance; begun in an earlier iteration; trained before; or cached: with a remembered solution, or recorded by another
run."""


class WireRequest(BaseModel):
    # Strict: `true` is not an iteration, and "3" is not a number.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class WireResponse(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="null"
    )


class TaskMeta(WireResponse):
    """How the rows of one task are graded."""

    graders: dict[str, float]
    """The weight of each grader, normalised to add up to 1."""

    gates: list[str]
    """The graders whose scores multiply the reward."""


class StageMeta(WireResponse):
    """One stage of the curriculum."""

    name: str
    from_iteration: int
    """The first iteration of the stage."""

    until_iteration: int
    """The first iteration after it."""

    mix: dict[str, float]
    """Share of each data set, adding up to 1."""

    graders: dict[str, dict[str, float]]
    """Per data set: the weight of each grader, normalised to add up to 1; does not apply to the rows of `tasks`."""

    gates: dict[str, list[str]]
    """Per data set: the graders whose scores multiply the reward; does not apply to the rows of `tasks`."""

    tasks: dict[str, dict[str, TaskMeta]] = {}
    """Per data set whose rows are of several tasks: the grading of each task."""

    def rewards(self, dataset: str) -> list[tuple[str, str]]:
        """The formula of the reward on one line, after the data set's name; or one for each of its tasks."""
        tasks = self.tasks.get(dataset)
        if not tasks:
            return [(dataset, reward_formula(self.graders[dataset], self.gates[dataset]))]
        return [(f"{dataset}: {name}", reward_formula(task.graders, task.gates)) for name, task in tasks.items()]


def reward_formula(weights: Mapping[str, float], gates: Iterable[str]) -> str:
    """The formula of a reward on one line: the weighted sum of the graders' scores, times the gates."""
    terms = " + ".join(f"{weight:.3g} {name}" for name, weight in weights.items())
    factors = "".join(f" × {name}" for name in gates)
    return f"({terms}){factors}" if factors else terms


class DatasetMeta(WireResponse):
    """One data set."""

    name: str
    rows: int
    """Rows that training draws from."""

    validation_rows: int
    too_long_rows: int = 0
    """Rows left out because their prompts are too long."""

    digest: str
    """Hash of its content and of how it is read."""


class Limits(WireResponse):
    """How much one request may contain, and how long it may take."""

    max_batch_size: int
    max_items: int
    max_body_bytes: int
    max_completion_chars: int
    grade_timeout_seconds: float
    """Time limit for a response to `/grade`; completions that are not graded by then abstain."""


class Meta(WireResponse):
    """What a trainer checks before it starts."""

    protocol_version: str
    server_version: str
    config_id: str
    """Hash of config, data and graders: equal ids give equal prompts and rewards."""

    seed: int
    prompts_per_iteration: int
    """Prompts per iteration; `/sample` requires offset + batch_size to be within it."""

    iteration_stride: int
    """Only iterations divisible by this number are sampled; see `prompts_per_iteration` in the docs."""

    total_iterations: int
    """Where the last stage ends; later iterations continue with the last stage."""

    adaptive: bool
    """Whether sampling depends on earlier grades."""

    lag: int | None = None
    """`adaptive.lag`: iteration i depends on the grades up to iteration i − lag·iteration_stride; null if sampling
    depends on none."""

    substitutes: int = 0
    """How many substitutes `/sample` has for each slot; 0 for a server of protocol 1.0, which knows none."""

    stages: list[StageMeta]
    datasets: list[DatasetMeta]
    graders: dict[str, str]
    """Type of each grader, by name."""

    sandboxes: dict[str, str] = {}
    """For each grader that runs programs written by a model: what they run in, bubblewrap or rlimits (limits alone)."""

    limits: Limits


class WireMessage(WireResponse):
    """One message of a prompt."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, object]] | None = None


class SampleRequest(WireRequest):
    """Requests the prompts in slots offset … offset + batch_size − 1 of an iteration, or substitutes for some of its
    training prompts."""

    iteration: Iteration
    """Optimizer steps done so far."""

    slots: Annotated[list[SlotNumber], FailFast()] = []
    """Slots, each once, whose prompts are to be replaced by other rows of the same data sets."""

    attempt: int | None = Field(default=None, ge=1, le=_LARGEST, validate_default=True)
    """With `slots`: the number of the substitute, from 1 to `substitutes` of `/meta`."""

    batch_size: int | None = Field(default=None, ge=1, le=_LARGEST, validate_default=True)
    """Without `slots`: how many prompts, from slot `offset` on."""

    offset: int = Field(default=0, ge=0, le=_LARGEST)
    split: Split = "train"
    """For validation, the slots are the held-out rows in a fixed order, the same at every iteration; any prefix of them
    contains all data sets in proportion."""

    config_id: str | None = None
    """If given, a server with a different config answers 409."""

    run_id: str = Field(default="", max_length=200)
    """Identifies the run; only adaptive sampling depends on it."""

    @property
    def wanted(self) -> Sequence[int]:
        """The slots of the prompts, in the order of the answer."""
        return self.slots or range(self.offset, self.offset + (self.batch_size or 0))

    @field_validator("slots")
    @classmethod
    def _each_once(cls, slots: list[int]) -> list[int]:
        if len(set(slots)) < len(slots):
            raise ValueError("a slot appears twice")
        return slots

    @field_validator("attempt", "batch_size", "offset", "split")
    @classmethod
    def _slots_or_a_batch(cls, value: T, info: ValidationInfo) -> T:
        if "slots" not in info.data:  # they are wrong, which is told on its own
            return value
        has_slots, is_given = bool(info.data["slots"]), value is not None
        if info.field_name == "attempt" and has_slots != is_given:
            raise ValueError("slots and attempt require each other")
        if info.field_name == "batch_size" and has_slots == is_given:
            raise ValueError("give it, or slots and attempt, but not both")
        if has_slots and info.field_name == "offset" and value:
            raise ValueError("slots excludes it")
        if has_slots and info.field_name == "split" and value != "train":
            raise ValueError("only training rows have substitutes")
        return value


class Sample(WireResponse):
    """One prompt. The right answer stays on the server."""

    sample_id: str
    """Identifies the row and its content; `/grade` requires it."""

    dataset: str
    slot: int
    messages: list[WireMessage]
    tools: list[dict[str, object]] | None = None
    """Definitions of the tools that the assistant may call."""


class SampleResponse(WireResponse):
    """The prompts, in slot order, or in the order of the request's `slots`."""

    iteration: int
    stage: str
    config_id: str
    exhausted: bool
    """Whether the iteration is past the last stage."""

    samples: list[Sample]


class SampledBy(WireRequest):
    """How a completion was sampled."""

    versions: list[Annotated[int, Field(ge=0, le=_LARGEST)]] = Field(min_length=1, max_length=16)
    """Versions of the weights, in optimizer steps, at least the lowest and the highest; the journal keeps these two."""

    temperature: float | None = Field(default=None, ge=0)
    origin: Origin = "fresh"


class GradeItem(WireRequest):
    """One completion to grade."""

    item_id: Identifier
    """Returned with the result; unique within the request."""

    sample_id: Identifier
    completion: str
    completion_tokens: int | None = Field(default=None, ge=0, le=_LARGEST)
    truncated: bool | None = None
    """Whether generation stopped at its limit."""

    slot: int | None = Field(default=None, ge=0, le=_LARGEST)
    """The slot that the prompt came from; with it the journal knows which group a completion belongs to."""

    attempt: int = Field(default=0, ge=0, le=_LARGEST)
    """0, or the attempt of the substitute that the prompt is: a group has one iteration, slot and attempt."""

    rollout: SampledBy | None = None
    """For the journal and its page; changes no reward."""


class GradeRequest(WireRequest):
    """Requests the rewards of completions."""

    iteration: Iteration
    """Optimizer steps done so far: determines the stage, and so the weights."""

    request_id: Identifier
    """Repeating a request with the same id changes nothing; a different request needs a different id."""

    # Of a million wrong items, report only the first.
    items: Annotated[list[GradeItem], FailFast()] = Field(min_length=1)
    config_id: str | None = None
    run_id: str = Field(default="", max_length=200)


class Component(WireResponse):
    """One grader's result for one completion."""

    score: float | None
    """In [0, 1]; null unless the status is ok."""

    weight: float | None
    """Its share of the sum; null for a gate."""

    status: Status
    ms: float
    """Time spent in the grader, in milliseconds."""

    detail: str = ""
    """A few words on the score, or why there is none."""


class GradeResult(WireResponse):
    """The reward of one completion."""

    item_id: str
    status: Status
    """ok; abstain: it cannot be judged; error: grading it failed. Unless ok, there is no reward, which is not 0."""

    reward: float | None
    reason: str = ""
    """Why there is no reward."""

    components: dict[str, Component]


class GradeResponse(WireResponse):
    """One result per item, in the order of the items."""

    request_id: str
    iteration: int
    stage: str
    config_id: str
    results: list[GradeResult]


class Problem(WireResponse):
    """Why a request was refused."""

    code: str
    message: str
    fields: list[str] = []
    """Paths of the request's invalid fields."""
