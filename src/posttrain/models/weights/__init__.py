"""The weights of a model: cut over processes, in a checkpoint, and in safetensors files."""
