"""Post-training of language models: SFT, preferences and reinforcement learning."""

import logging

# PEFT imports bitsandbytes if it is installed; on a CPU it then warns that it cannot ask the hub for a faster kernel.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
