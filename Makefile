# make demo: a service of its own runs 20 HumanEval problems x 4 samples, shows figures, and leaves nothing running.
# make test: the quick tests and those that run the whole service.

VENV ?= .venv
PYTHON ?= python3
TEST_WORKERS ?= 3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo demo-real test test-full test-tasks test-faults test-pythons test-newest-python test-vllm test-smollm2 lint bench requirements clean

demo: $(INSTALLED)
	$(BIN)/prorl demo

demo-real: $(INSTALLED)
	$(BIN)/prorl demo-real

# Most tests wait for processes and deadlines, so some run beside each other; a file's tests stay together, since they
# share services.
test: $(INSTALLED)
	$(BIN)/python -P -m pytest -m "not slow" -n $(TEST_WORKERS) --dist loadfile

test-full: $(INSTALLED)
	$(BIN)/python -P -m pytest
	.ci/pythons

# What a service survives: real processes are killed, stopped and cut off.
test-faults: $(INSTALLED)
	$(BIN)/python -P -m pytest tests/faults

# Real instances of each task kind, whole.
test-tasks: $(INSTALLED)
	$(BIN)/python -P -m pytest tests/kinds

test-pythons: $(INSTALLED)
	.ci/pythons

test-newest-python: $(INSTALLED)
	.ci/pythons --newest

# Against a real vLLM, with a tiny model of random weights or a small real one: VLLM_TEST_DIR is where they are prepared.
test-vllm test-smollm2: export VLLM_TEST_DIR ?= .prorl
test-vllm: $(INSTALLED)
	$(BIN)/prorl models prepare tiny --data-dir $(VLLM_TEST_DIR)
	$(BIN)/python -P -m pytest -m vllm tests/models

test-smollm2: $(INSTALLED)
	$(BIN)/prorl models prepare smollm2 --data-dir $(VLLM_TEST_DIR)
	$(BIN)/python -P -m pytest tests/models/test_smollm2.py tests/models/test_smollm2_batches.py tests/models/test_smollm2_kinds.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/prorl bench

requirements: $(INSTALLED)
	(echo "# The pinned set that is tested. Generated: make requirements"; \
	$(BIN)/pip-compile --quiet --extra dev --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links --output-file - pyproject.toml | grep -vE '^(#|-e|prorl-celery|$$)') > requirements.new
	mv requirements.new requirements.txt

clean:
	rm -rf $(VENV) out .prorl

$(INSTALLED): pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@
