"""What keys of Axolotl, LLaMA-Factory, TRL and unsloth are called here, for errors and for the docs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerKey:
    """A setting under the names that other tools give it.

    Attributes:
        names: its keys, in any of the tools.
        ours: key paths here, of which a command has at most one; none if there is no such setting.
        remark: how the value changes, or why there is no such setting.
    """

    names: tuple[str, ...]
    ours: tuple[str, ...] = ()
    remark: str = ""


_MODEL = (
    PeerKey(("base_model", "model_name_or_path", "model_name", "pretrained_model_name_or_path"), ("model.name",)),
    PeerKey(("model_revision",), ("model.revision",)),
    PeerKey(("adapter_name_or_path", "lora_model_dir"), ("model.adapter",)),
    PeerKey(("load_in_4bit",), ("model.quantization",), "`4bit`"),
    PeerKey(("load_in_8bit",), ("model.quantization",), "`8bit`"),
    PeerKey(("quantization_bit",), ("model.quantization",), "`4bit` or `8bit`"),
    PeerKey(("bf16", "fp16", "tf32", "torch_dtype", "pure_bf16"), ("model.dtype",), "`auto` takes what is fast here"),
    PeerKey(("flash_attention", "flash_attn", "attn_implementation", "sdp_attention"), ("model.attention",)),
    PeerKey(("use_unsloth",), ("model.backend",), "`unsloth`"),
    PeerKey(("lora_r", "lora_rank"), ("lora.r",)),
    PeerKey(("lora_alpha",), ("lora.alpha",)),
    PeerKey(("lora_dropout",), ("lora.dropout",)),
    PeerKey(("lora_target_modules", "lora_target", "lora_target_linear"), ("lora.target_modules",)),
    PeerKey(("lora_target_parameters",), ("lora.target_parameters",)),
    PeerKey(("lora_modules_to_save", "additional_target"), ("lora.modules_to_save",)),
    PeerKey(("peft_use_rslora", "use_rslora"), ("lora.rslora",)),
    PeerKey(("peft_use_dora", "use_dora"), ("lora.dora",)),
    PeerKey(("peft_init_lora_weights", "init_lora_weights"), ("lora.init",)),
    PeerKey(("pissa_init", "pissa_iter"), ("lora.init",), "`pissa_niter_16`, or `pissa` for `pissa_iter: -1`"),
    PeerKey(("pissa_convert",), (), "what is saved is always for the original base"),
    PeerKey(("loftq_config",), ("lora.init",), "`loftq`, one iteration, with `model.quantization`"),
    PeerKey(("finetuning_type", "adapter", "use_peft", "full_finetuning"), ("lora",), "null trains all weights"),
)

_DATA = (
    PeerKey(
        ("dataset", "dataset_name", "train_file", "data_files", "train_dataset"), ("datasets",), "a section for each"
    ),
    PeerKey(("dataset_prepared_path", "overwrite_cache"), (), "rows are cached by their content, and never stale"),
    PeerKey(
        ("template", "chat_template", "chat_template_path", "chat_template_jinja"),
        ("chat.template",),
        "`chatml`, `tokenizer`, or the path of a Jinja file",
    ),
    PeerKey(
        ("enable_thinking", "chat_template_kwargs", "reasoning_effort"),
        ("chat.template_variables",),
        "as `{enable_thinking: false}`",
    ),
    PeerKey(("default_system_message", "default_system_prompt"), ("chat.default_system",)),
    PeerKey(
        ("sequence_len", "cutoff_len", "max_seq_length", "max_seq_len", "max_length", "model_max_length"),
        ("chat.max_length",),
    ),
    PeerKey(("max_prompt_length",), ("rollout.max_prompt_tokens", "chat.max_length")),
    PeerKey(
        ("train_on_inputs", "mask_history", "train_on_prompt", "completion_only_loss", "assistant_only_loss"),
        ("chat.train_on",),
        "prompts are never trained; `last` trains the last answer alone",
    ),
    PeerKey(
        ("packing", "sample_packing", "neat_packing", "eval_packing", "padding_free", "group_by_length"),
        ("training.batching",),
        "padding_free puts the rows of a micro-batch into one sequence; each attends only to itself",
    ),
    PeerKey(("pad_to_sequence_len",), (), "rows are never padded beyond the longest of a micro-batch"),
    PeerKey(("val_set_size", "eval_split_ratio"), ("validation.fraction",)),
    PeerKey(("eval_dataset", "test_datasets"), ("validation.dataset",)),
    PeerKey(("eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy"), ("validation.every",), "steps"),
    PeerKey(("max_samples",), ("datasets.NAME.n_samples",)),
    PeerKey(("mix_strategy", "interleave_probs"), ("stages.N.mix",)),
)

_TRAINING = (
    PeerKey(("max_tokens_per_gpu",), ("training.micro_batch_tokens",)),
    PeerKey(("neftune_noise_alpha", "noisy_embedding_alpha"), ("training.neftune_alpha",)),
    PeerKey(("lr", "learning_rate"), ("training.learning_rate",)),
    PeerKey(
        ("gradient_accumulation_steps",),
        ("training.rows_per_step",),
        "accumulation follows from it: rows_per_step / (micro_batch_size × devices)",
    ),
    PeerKey(
        ("per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"),
        ("training.micro_batch_size",),
        "a step has rows_per_step rows in all",
    ),
    PeerKey(("per_device_eval_batch_size", "eval_batch_size"), (), "evaluation goes by training.micro_batch_size"),
    PeerKey(("num_train_epochs", "num_epochs", "epochs"), ("stages.N.epochs",)),
    PeerKey(("lr_scheduler_type", "lr_scheduler", "lr_scheduler_kwargs"), ("training.schedule",)),
    PeerKey(("warmup_steps",), ("training.warmup_steps",)),
    PeerKey(("warmup_ratio",), ("training.warmup_ratio",)),
    PeerKey(("optim", "optimizer"), ("training.optimizer",), "`adamw`, `adamw_8bit`, `muon`, …"),
    PeerKey(("adam_beta1",), ("training.beta1",)),
    PeerKey(("adam_beta2",), ("training.beta2",)),
    PeerKey(("adam_epsilon",), ("training.epsilon",)),
    PeerKey(("weight_decay",), ("training.weight_decay",)),
    PeerKey(("max_grad_norm", "gradient_clipping"), ("training.max_grad_norm",)),
    PeerKey(("router_aux_loss_coef", "moe_aux_loss_coef"), ("training.router_loss",)),
    PeerKey(("gradient_checkpointing", "use_gradient_checkpointing"), ("training.gradient_checkpointing",)),
    PeerKey(("activation_offloading",), ("training.offload_activations",)),
    PeerKey(("offload_embedding",), ("training.offload_embeddings",)),
    PeerKey(("loraplus_lr_ratio", "loraplus_ratio"), ("training.lora_plus_ratio",)),
    PeerKey(("torch_compile", "torchcompile"), ("training.compile",)),
    PeerKey(("use_liger_kernel", "use_liger", "liger_rope", "enable_liger_kernel"), ("training.liger_kernel",)),
    PeerKey(("seed", "random_state", "data_seed"), ("training.seed",)),
    PeerKey(("early_stopping_patience",), ("validation.patience",)),
    PeerKey(
        ("deepspeed", "fsdp", "fsdp_config", "ddp", "tensor_parallel_size"),
        ("parallel.kind",),
        "`ddp` or `fsdp2`; start the same command with `torchrun`",
    ),
)

_RUN = (
    PeerKey(("output_dir", "output_path"), ("run.output_dir",)),
    PeerKey(("run_name", "wandb_name"), ("run.name",)),
    PeerKey(("save_steps", "saves_per_epoch", "save_strategy"), ("run.save_every",), "steps"),
    PeerKey(("save_total_limit",), ("run.keep_checkpoints",)),
    PeerKey(("load_best_model_at_end",), ("run.export",), "`best`"),
    PeerKey(
        ("report_to", "wandb_project", "use_wandb", "wandb_entity", "use_tensorboard", "mlflow_experiment_name"),
        ("run.trackers",),
        "a list such as `[wandb]`, or sections with `kind` and options",
    ),
    PeerKey(("hub_model_id", "push_to_hub", "hub_strategy", "hub_token"), ("run.push",)),
    PeerKey(("resume_from_checkpoint", "auto_resume_from_checkpoints"), (), "an option: `--resume`"),
    PeerKey(("overwrite_output_dir",), (), "an option: `--overwrite`"),
    PeerKey(("logging_steps", "logging_strategy", "plot_loss"), (), "every step is logged, in metrics.jsonl"),
    PeerKey(
        ("do_train", "do_eval", "stage", "rl"), (), "the command says it: toolkit-sft, toolkit-dpo or toolkit-rl-train"
    ),
)

_PREFERENCES_AND_RL = (
    PeerKey(("pref_loss", "loss_type", "rl_beta_type"), ("method.type", "objective.aggregation")),
    PeerKey(("beta", "pref_beta", "rl_beta", "dpo_beta"), ("method.beta", "objective.beta")),
    PeerKey(
        ("label_smoothing", "label_smoothing_factor", "dpo_label_smoothing"),
        ("training.label_smoothing", "method.label_smoothing"),
    ),
    PeerKey(("ref_model", "ref_model_name_or_path"), ("reference",)),
    PeerKey(("num_generations",), ("rollout.generations",)),
    PeerKey(("max_completion_length", "max_new_tokens"), ("rollout.max_new_tokens",)),
    PeerKey(("use_vllm", "vllm_mode", "vllm_server_host"), ("rollout.engine",), "`vllm`, or `rollout.servers`"),
    PeerKey(("vllm_gpu_memory_utilization",), ("rollout.gpu_memory_utilization",)),
    PeerKey(("num_iterations",), ("rollout.iterations",)),
    PeerKey(("scale_rewards",), ("objective.scale_rewards",)),
    PeerKey(
        ("reward_funcs", "reward_weights", "reward_model"),
        ("dataserver",),
        "rewards come from graders in the dataserver's config",
    ),
)

PEER_KEYS = {
    "Model and adapter": _MODEL,
    "Data": _DATA,
    "Training": _TRAINING,
    "Run": _RUN,
    "Preferences and reinforcement learning": _PREFERENCES_AND_RL,
}
"""All settings, by topic."""

BY_NAME = {name: each for group in PEER_KEYS.values() for each in group for name in each.names}
"""The setting that a key of another tool means."""
