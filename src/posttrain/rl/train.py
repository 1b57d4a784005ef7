"""`toolkit-rl-train`: a run of reinforcement learning, step by named step."""

from typing import Any

from posttrain.base.extras import require_extra
from posttrain.base.processes import is_main_process
from posttrain.config.load import load_config
from posttrain.conversation.encoder import conversation_encoder
from posttrain.data.preparation import tokenizer_digest
from posttrain.dataserver.schemas import Meta
from posttrain.errors import RunError
from posttrain.models.backend import Backend
from posttrain.models.load import choose_backend
from posttrain.rl.client.connection import Connection, connected, write_record
from posttrain.rl.clock import Clock
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.curriculum import clock_of, require_fit
from posttrain.rl.run_plan import RunPlan
from posttrain.runs.description import write_description
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finished_run
from posttrain.runs.metrics import keep_until
from posttrain.runs.resume import ResumePoint, prepare_run_directory, resume_point
from posttrain.runs.run_context import guarded_run
from posttrain.train.announce import Schedule, announce_changes, announce_start
from posttrain.train.arguments import require_kernels
from posttrain.train.identity import fixed_training, known_weights, require_loaded_weights
from posttrain.train.running import run_training
from posttrain.train.sharding import launched_as, require_whole_model
from posttrain.train.trained_model import trained_model


def train(config: RLConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Train as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Raises:
        ConfigError, DataError, ModelError, ServerError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    clock = clock_of(config)  # refuses a step that does not divide, before anything is started
    if config.rollout.engine == "vllm":
        require_extra("vllm", "rollout.engine: vllm")
    require_whole_model("toolkit-rl-train")
    run = RunDirectory(config.run.output_dir / name)
    with guarded_run(run, resume=resume, overwrite=overwrite):
        return _train_connected(config, clock, run, resume=resume)


def _train_connected(config: RLConfig, clock: Clock, run: RunDirectory, *, resume: bool) -> dict[str, Any]:
    """Train in a folder that is the run's own."""
    if resume and config.training.max_steps:
        # As far as that is known without a server, so that none is started for nothing.
        done = finished_run(run, config.training.max_steps, config_identity(config))
        if done is not None:
            return done
    backend = choose_backend(config.model)  # before TRL is imported: unsloth rewrites its classes
    require_kernels(config.training, backend.name)
    with connected(config.dataserver, run, resume=resume) as connection:
        plan = RunPlan(config, clock, connection.meta, require_fit(config, clock, connection.meta), run)
        done = _train(plan, backend, connection, resume=resume)
    if done is not None or not is_main_process():
        return done or {}
    from posttrain.rl.report import finish

    return finish(run, config, plan.max_steps)


def _train(plan: RunPlan, backend: Backend, connection: Connection, *, resume: bool) -> dict[str, Any] | None:
    """Train to the end; where nothing is left to train, return what the run has come to."""
    config, run = plan.config, plan.run
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    identity = run_identity(config, plan.meta, tokenizer)
    if resume and (done := finished_run(run, plan.max_steps, identity)):
        return done
    point = find_resume_point(run, identity, plan.clock, resume=resume)
    longest = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    with trained_model(config, run, point, backend, longest=longest, steps=plan.max_steps) as loaded:
        require_loaded_weights(run, identity, config.model, resume=resume)
        identity["compiled"] = loaded.compiled
        from posttrain.rl.build import open_trainer  # imports what a backend changes, so only now that it is there

        encoder = conversation_encoder(config.chat, loaded.tokenizer)
        with open_trainer(plan, loaded, encoder, connection.client, point.counters) as trainer:
            if is_main_process():
                _announce(plan, point, loaded.model)
                _prepare(run, point)
                write_description(run, "toolkit-rl-train", config, identity, [])
                write_record(run, connection.record)
            _train_or_save(trainer, plan, point)
    return None


def config_identity(config: RLConfig) -> dict[str, Any]:
    """The part of `run_identity` that is known without a model and a server."""
    described = config.model_dump(mode="json")
    # How much room there is changes no number; and what vLLM gives differs in its last digits anyway.
    for key in ("gpu_memory_utilization", "sleep", "compile"):
        del described["rollout"][key]
    return {
        **{key: described[key] for key in ("model", "lora", "chat", "algorithm", "objective", "rollout")},
        "training": fixed_training(described["training"]),
        "processes": launched_as(),
    }


def run_identity(config: RLConfig, meta: Meta, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the same run, bit for bit."""
    return {
        **config_identity(config),
        **known_weights(config.model),
        "tokenizer": tokenizer_digest(tokenizer),
        "dataserver": meta.config_id,
    }


def find_resume_point(run: RunDirectory, identity: dict[str, Any], clock: Clock, *, resume: bool) -> ResumePoint:
    """The newest sound checkpoint, after checking that this config would have led there and can go on from it.

    Raises:
        ConfigError: as `resume_point`; model, dataserver or sampling changed; or the checkpoint lies where a generation
            is half used.
    """
    return resume_point(run, identity, lambda counters: clock.require_resumable(counters.step), resume=resume)


def _train_or_save(trainer: Any, plan: RunPlan, point: ResumePoint) -> None:
    """Train; where the dataserver stays out of reach, keep what was learnt before giving up."""
    from posttrain.rl.client.outages import Outage

    first = point.counters.step  # the counters go on with the run
    try:
        run_training(trainer, plan.run, point, may_stop_after=plan.clock.is_aligned)
    except Outage as error:
        step = trainer.state.global_step
        if step == 0:
            raise RunError(f"stopped before the first step was done, so there is nothing to save: {error}") from error
        if step > first:
            trainer.save_now()
        raise RunError(f"stopped after step {step}, which is saved; --resume goes on from it: {error}") from error


def _prepare(run: RunDirectory, point: ResumePoint) -> None:
    from posttrain.rl.evaluation import EVALUATIONS, discard_evaluations

    prepare_run_directory(run, point)
    if point.checkpoint is not None:
        keep_until(run.path / "completions.jsonl", point.counters.step)
        discard_evaluations(run.path / EVALUATIONS, point.counters.step)


def _announce(plan: RunPlan, point: ResumePoint, model: Any) -> None:
    announce_start(plan.run, point, model)
    if point.checkpoint is None:
        return
    before = load_config(plan.run.config, RLConfig)
    steps = before.training.max_steps or plan.meta.total_iterations
    announce_changes(
        Schedule(before, before.training, steps),
        Schedule(plan.config, plan.config.training, plan.max_steps),
        point.counters.step,
    )
