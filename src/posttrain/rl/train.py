"""`toolkit-rl-train`: run reinforcement learning from a config."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.base.extras import require_extra
from posttrain.base.processes import is_main_process
from posttrain.config.sections.optim.optimizers import OwnOptimizer
from posttrain.conversation.encoder import conversation_encoder
from posttrain.data.preparation import tokenizer_digest
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError
from posttrain.hub.pushes import Pushes
from posttrain.models.backend import LoadedModel
from posttrain.models.load import choose_backend
from posttrain.rl.client.connection import Connection, connected, write_record
from posttrain.rl.config import RLConfig, require_engine_without_weights
from posttrain.rl.objective import check_user_functions, digests
from posttrain.rl.presets import resolve_objective
from posttrain.rl.rollout.engines.config import check_own_engine, engine_digest, servers_identity
from posttrain.rl.rollout.filters.catalogue import check_user_filters, filter_digests
from posttrain.rl.rollout.store.files import generations_in
from posttrain.rl.rollout.store.recorded_rollouts import RecordedRollouts, require_recording_fits
from posttrain.rl.rollout.store.recording import Recorder, Recording, discard_recorded, open_recording
from posttrain.rl.schedule import RolloutSchedule, held_out_count, require_fit
from posttrain.rl.watchdogs import rl_watchdogs
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finished_run
from posttrain.runs.manifest import add_to_manifest
from posttrain.runs.metrics import keep_until
from posttrain.runs.resume import ResumePoint, resume_point
from posttrain.train.identity import fixed_training, known_weights, processes_of, with_any_processes
from posttrain.train.optim.optimizer import averages_weights, require_class
from posttrain.train.parallel.launch import launched
from posttrain.train.parallel.ranks import connect
from posttrain.train.session import Session, require_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accelerate import Accelerator

    from posttrain.rl.client.client import DataserverClient
    from posttrain.rl.recipe import RLRecipe
    from posttrain.rl.rollout.engines.open import OpenedEngine
    from posttrain.rl.rollout.pipeline import RolloutPipeline
    from posttrain.rl.rollout.rollout import PromptSource

# How long to wait at the end for reports that are not sent yet.
_REPORT_SECONDS = 5.0
# Keys of `rollout` that change no number of a run that goes on: memory settings (vLLM's numbers differ in the last
# digits anyway), when to stop or warn, what is kept besides, and a limit that is only checked.
_CHANGE_NOTHING = (
    "gpu_memory_utilization",
    "sleep",
    "compile",
    "placement",
    "engine_seconds",
    "stop_without_signal",
    "max_age",
    "watch",
    "record",
)


def train(
    config: RLConfig,
    name: str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reshard: bool = False,
    rollouts_from: Path | None = None,
) -> dict[str, Any]:
    """Train as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Args:
        reshard: whether the run that is resumed may have had other processes.
        rollouts_from: the directory of a run whose recorded rollouts are trained on instead of new ones.

    Raises:
        ConfigError, DataError, ModelError, ServerError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    schedule = RolloutSchedule.of(config)  # rejects steps that do not divide evenly, before anything is started
    run = RunDirectory(config.run.output_dir / name)
    recording = None if rollouts_from is None else open_recording(rollouts_from, run)
    if (extra := config.rollout.traits.extra) is not None and needs_engine(config, recording):
        require_extra(extra, f"rollout.engine: {config.rollout.engine_name}")
    recorded = rollouts_from and str(rollouts_from)
    options = {"resume": resume, "overwrite": overwrite, "reshard": reshard}
    with launched(run, config, **options, rollouts_from=recorded) as pushes:
        return _train_connected(config, schedule, run, recording, pushes, resume=resume, reshard=reshard)


def _require_average_evaluated(config: RLConfig) -> None:
    """What the config's own check cannot know: whether the user's optimizer averages the weights."""
    own = isinstance(config.training.optimizer, OwnOptimizer)
    if own and config.evaluation is not None and averages_weights(require_class(config.training)):
        try:
            require_engine_without_weights(config.rollout)
        except ValueError as error:
            raise ConfigError(f"training.optimizer: {error}") from None


def needs_engine(config: RLConfig, recording: Recording | None) -> bool:
    """Whether a rollout engine is opened: to train on new rollouts, or to evaluate."""
    return recording is None or config.evaluation is not None


def _train_connected(
    config: RLConfig,
    schedule: RolloutSchedule,
    run: RunDirectory,
    recording: Recording | None,
    pushes: Pushes | None,
    *,
    resume: bool,
    reshard: bool,
) -> dict[str, Any]:
    """Train in a run directory that this process holds."""
    if resume and config.training.max_steps:
        # Checked as far as possible without a server, so that none is started in vain.
        identity = config_identity(config, recording)
        done = finished_run(run, config.training.max_steps, with_any_processes(identity) if reshard else identity)
        if done is not None:
            return done
    require_kernels(config.training, choose_backend(config.model).name, config.lora and config.lora.init)
    _require_average_evaluated(config)
    check_user_functions(resolve_objective(config.algorithm, config.objective))
    check_user_filters(config.rollout.filters)
    check_own_engine(config.rollout.engine)
    with connected(config.dataserver, run, resume=resume) as connection:
        max_steps = require_fit(config, schedule, connection.meta)
        connection = replace(connection, recording=recording)
        session = replace(open_session(config, schedule, run, connection, max_steps), pushes=pushes)
        session = session.with_any_processes() if reshard else session
        done = _train(session, schedule, connection, resume=resume)
    if done is not None or not is_main_process():
        return done or {}
    from posttrain.rl.report import finish

    return finish(run, config, max_steps)


def _train(
    session: Session, schedule: RolloutSchedule, connection: Connection, *, resume: bool
) -> dict[str, Any] | None:
    """Train to the end; if nothing was left to train, return the run's result."""
    config, run, max_steps = session.config, session.run, session.max_steps
    if connection.recording is not None:
        require_recording_fits(connection.recording, config, schedule, max_steps, session.identity["tokenizer"])
    if done := session.finished(resume=resume):
        return done
    point = find_resume_point(run, session.identity, schedule, resume=resume)
    if point.checkpoint is not None and connection.recording is None:
        schedule.require_pending(point.counters.step, max_steps, generations_in(point.checkpoint))
    if needs_engine(config, connection.recording):
        from posttrain.rl.rollout.engines.requirements import require_engine_fits

        require_engine_fits(config, run.path, max_steps)
    with session.model(point, resume=resume) as loaded:
        accelerator = connect()
        with open_recipe(config, run, connection, max_steps, loaded, accelerator, point.checkpoint) as recipe:
            recipe.without_signal = point.counters.without_signal
            session.train(recipe, accelerator, loaded, point)
    return None


def open_session(
    config: RLConfig, schedule: RolloutSchedule, run: RunDirectory, connection: Connection, max_steps: int
) -> Session:
    """The training session for a config and its connected dataserver."""
    backend = choose_backend(config.model)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    return Session(
        command="toolkit-rl-train",
        config=config,
        run=run,
        backend=backend,
        identity=run_identity(config, connection.meta, tokenizer, connection.recording),
        max_steps=max_steps,
        longest=config.rollout.max_prompt_tokens + config.rollout.longest,
        evaluations=config.evaluation,
        watchdogs=rl_watchdogs(config),
        steps_of=lambda other: other.training.max_steps or connection.meta.total_iterations,
        prepare=partial(_prepare, run, connection, schedule),
    )


@contextmanager
def open_recipe(
    config: RLConfig,
    run: RunDirectory,
    connection: Connection,
    max_steps: int,
    loaded: LoadedModel,
    accelerator: "Accelerator",
    checkpoint: Path | None,
) -> "Iterator[RLRecipe]":
    """The recipe of a run, resumed from `checkpoint`; its rollout engine is closed at the end of the block."""
    from posttrain.inference.load import end_ids
    from posttrain.rl.client.reporter import StepReporter
    from posttrain.rl.recipe import RLRecipe
    from posttrain.rl.report import Transcript
    from posttrain.rl.rollout.engines.open import open_rollout_engine
    from posttrain.rl.rollout.engines.threads import trainer_threads
    from posttrain.rl.rollout.evaluation import Evaluator
    from posttrain.rl.rollout.replay.keeper import RolloutKeeper
    from posttrain.rl.rollout.rollout import PromptSource
    from posttrain.train.evaluate import EVALUATIONS

    client, tokenizer = connection.client, loaded.tokenizer
    encoder = conversation_encoder(config.chat, tokenizer)
    schedule, recording = RolloutSchedule.of(config), connection.recording
    prompts = PromptSource(client, encoder, schedule, config.rollout.max_prompt_tokens)
    with ExitStack() as resources:
        keeper = RolloutKeeper(config, schedule, run, connection.meta)
        resources.callback(keeper.close)
        pipeline = evaluator = None
        if needs_engine(config, recording):
            engine = open_rollout_engine(config, loaded, end_ids(loaded, encoder), run.path)
            resources.callback(_close, engine, run)
            resources.enter_context(trainer_threads(config.rollout))
            pipeline = _pipeline(config, engine, prompts, client, loaded, max_steps)
            if checkpoint is not None:
                pipeline.restore(checkpoint)
        source = pipeline if recording is None else RecordedRollouts(recording, schedule, max_steps)
        assert source is not None
        if pipeline is not None and (asked := config.evaluation) is not None:
            count = held_out_count(connection.meta, asked)
            evaluator = Evaluator(asked, prompts, count, pipeline, tokenizer, client, run.path / EVALUATIONS)
        reporter = None
        if is_main_process():
            reporter = StepReporter(client)
            resources.callback(reporter.close, _REPORT_SECONDS)
        recorder = Recorder(run.path) if config.rollout.record and is_main_process() else None
        transcript = Transcript(run.path / "completions.jsonl", connection.meta, max_steps, reporter, recorder)
        yield RLRecipe(config, loaded, accelerator, source, evaluator, transcript, keeper)


def _close(engine: "OpenedEngine", run: RunDirectory) -> None:
    """Close the engine; the manifest then says how often a server failed."""
    if engine.failures is not None and is_main_process() and run.manifest.is_file():
        add_to_manifest(run, server_failures=engine.failures)
    engine.close()


def _pipeline(
    config: RLConfig,
    engine: "OpenedEngine",
    prompts: "PromptSource",
    client: "DataserverClient",
    loaded: LoadedModel,
    max_steps: int,
) -> "RolloutPipeline":
    """What makes the run's completions."""
    from posttrain.inference.engine import Sampling
    from posttrain.rl.rollout.collect.collector import Collector
    from posttrain.rl.rollout.collect.rounds import Rounds
    from posttrain.rl.rollout.collect.segments import Segments
    from posttrain.rl.rollout.engines.probe import SyncProbe
    from posttrain.rl.rollout.grading import Abstention
    from posttrain.rl.rollout.pipeline import RolloutPipeline

    rollout, server = config.rollout, config.dataserver

    def sampling(iteration: int) -> Sampling:
        return Sampling.of(rollout.at(iteration), logprobs=rollout.correction.needs_logprobs)

    schedule = RolloutSchedule.of(config)
    collector = Collector(schedule, prompts, engine.engine, client, loaded.tokenizer, sampling, config.training.seed)
    making = None
    if rollout.rejected == "substitute":
        making = Rounds(collector, rollout, engine.exchange)
    elif rollout.segment_tokens is not None:
        making = Segments(collector, rollout.segment_tokens, rollout.longest)
    room = rollout.max_prompt_tokens + config.longest_completion
    return RolloutPipeline(
        engine,
        collector,
        Abstention(server.abstain_steps if server.on_grade_failure == "abstain" else 0),
        max_steps,
        stop_seconds=config.run.stop_seconds,
        probe=None if engine.published is None else SyncProbe(loaded, room, is_copy=rollout.engine_name == "hf"),
        making=making,
    )


def config_identity(config: RLConfig, recording: Recording | None = None) -> dict[str, Any]:
    """The part of `run_identity` that is known without a model or a server."""
    described = config.model_dump(mode="json")
    for key in _CHANGE_NOTHING:
        del described["rollout"][key]
    described["rollout"]["servers"] = servers_identity(config.rollout.servers)
    return {
        **{key: described[key] for key in ("model", "lora", "chat", "algorithm", "objective", "rollout")},
        **digests(resolve_objective(config.algorithm, config.objective)),
        **filter_digests(config.rollout.filters),
        **engine_digest(config.rollout.engine),
        "training": fixed_training(described["training"]),
        **processes_of(config),
        "rollouts_from": None if recording is None else dict(recording.identity),
    }


def run_identity(config: RLConfig, meta: Meta, tokenizer: Any, recording: Recording | None = None) -> dict[str, Any]:
    """Everything that must not change for a resumed run to be the same run, bit for bit."""
    return {
        **config_identity(config, recording),
        **known_weights(config.model),
        "tokenizer": tokenizer_digest(tokenizer),
        "dataserver": meta.config_id,
    }


def find_resume_point(
    run: RunDirectory, identity: dict[str, Any], schedule: RolloutSchedule, *, resume: bool
) -> ResumePoint:
    """The newest sound checkpoint, after checking that this config would have led to it and can continue from it.

    Raises:
        ConfigError: as `resume_point`; model, dataserver or sampling changed; or the checkpoint lies in the middle of a
            generation.
    """
    return resume_point(run, identity, lambda counters: schedule.require_resumable(counters.step), resume=resume)


def _prepare(run: RunDirectory, connection: Connection, schedule: RolloutSchedule, point: ResumePoint) -> None:
    """Restore RL's files in the run directory to their state at `point`, and write the dataserver's record."""
    from posttrain.train.evaluate import EVALUATIONS, discard_evaluations

    if point.checkpoint is not None:
        keep_until(run.path / "completions.jsonl", point.counters.step)
        discard_evaluations(run.path / EVALUATIONS, point.counters.step)
        discard_recorded(run.path, schedule.generation_of(point.counters.step))
    write_record(run, connection.record)
