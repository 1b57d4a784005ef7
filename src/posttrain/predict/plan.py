"""What a job is going to do, in a few lines for a person."""

from posttrain.base.console import console
from posttrain.base.locks import require_unowned
from posttrain.config.sections.generation import GenerationConfig
from posttrain.predict.inputs import passed_over
from posttrain.predict.job import PredictJob, Work, prepare
from posttrain.predict.prompts import first_faults


def show_plan(job: PredictJob) -> None:
    """`--dry-run`: check everything that can be checked without loading the model, and print the plan.

    Raises:
        ConfigError, DataError, ModelError: as the job itself would.
    """
    require_unowned(job.output)
    print_plan(job, prepare(job))
    console.print("nothing was generated (--dry-run)")


def print_plan(job: PredictJob, work: Work) -> None:
    """Rows that are left out, and then what is asked of which weights, and how."""
    if others := passed_over(job.input):
        console.print(f"passed over, for only .jsonl files of a folder are read: {', '.join(others)}")
    for fault in first_faults(work.faults):
        console.print(f"left out: {fault}")
    generation = job.generation
    answers = len(work.rows) * generation.n
    there = len(work.partial) if work.partial.job == work.identity else 0
    lengths = [len(request.prompt_ids) for request in work.requests]
    left_out = f", {len(work.faults)} left out" if work.faults else ""
    found = f", {there} of them in {work.partial.path} already" if there else ""
    console.print(f"rows      {len(work.rows)} in {job.input}{left_out}; {min(lengths)} to {max(lengths)} tokens")
    console.print(f"answers   {answers}: {generation.n} for each row{found}")
    console.print(f"weights   {job.weights}")
    console.print(f"sampling  {_sampling(job)}")
    console.print(f"output    {job.output}")


def _sampling(job: PredictJob) -> str:
    """Only what is not as usual; a greedy answer has no seed."""
    generation = job.generation
    start, names = "greedy", ["repetition_penalty", "stop", "logprobs"]
    if generation.temperature > 0:
        start = f"temperature {generation.temperature:g}, seed {generation.seed}"
        names = ["top_p", "top_k", "min_p", *names]
    usual, given = GenerationConfig().model_dump(mode="json"), generation.model_dump(mode="json")
    options = [f"{name} {given[name]}" for name in names if given[name] != usual[name]]
    return ", ".join([start, *options, f"at most {generation.max_new_tokens} tokens, {generation.batch_size} at once"])
