"""Pictures of a run of reinforcement learning."""

from posttrain.runs.plots import Picture

PICTURES = {
    "reward": Picture("mean reward", {"training": "reward", "held out": "eval_reward"}),
    "length": Picture("completion length (tokens)", {"mean": "completion_tokens", "held out": "eval_tokens"}),
    "kl": Picture("KL divergence from the start (nats)", {"training": "kl"}),
    "entropy": Picture("entropy (nats per token)", {"training": "entropy"}),
    "zero_variance": Picture("share of groups whose rewards are all equal", {"training": "zero_variance_share"}),
}
