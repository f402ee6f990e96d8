# Needs git, make and one of python3.11 to python3.13. Everything is installed into .venv.

# The newest that runs and can make a virtual environment (a name on PATH may be an empty shim).
PYTHON ?= $(shell for v in 3.13 3.12 3.11; do \
	python$$v -c 'import ensurepip, venv' 2>/dev/null && echo python$$v && break; done)
# Where a shell forbids it, each of the hundreds of processes that tests start would compile all it imports.
export PYTHONDONTWRITEBYTECODE =
BIN := .venv/bin
# A real engine may take minutes to start.
PATIENT := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=false
SOURCES := gateway policies tool_runtime batch_agent benchmarks tests

.PHONY: demo test check lint format lock test-real pictures wheel bench clean

demo: .venv/installed-demo  ## the embedded engine under 32 agents, straight and through the gateway
	$(BIN)/turngate demo

test: .venv/installed-dev  ## all tests that need nothing but Python
	$(BIN)/pytest --numprocesses auto --dist worksteal

lint: .venv/installed-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

check: lint test  ## what has to be green before a commit

format: .venv/installed-dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lock: .venv/installed-lock .venv/installed-dev  ## pins of all dependencies with hashes, and the list of their licences
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.deploy.lock
	$(BIN)/python -m tests.deploy.licences

test-real: .venv/installed-dev  ## real engines and clients; downloads and caches them, several GB
	$(BIN)/python -m tests.real.install all
	$(BIN)/pytest $(PATIENT) tests/real || $(BIN)/pytest $(PATIENT) tests/real --last-failed  # a real engine may starve two cores for a while

pictures: .venv/installed-dev  ## docs/ui.png and docs/top.svg, by the test that looks at them
	$(BIN)/python -m tests.real.install browser
	TURNGATE_PICTURES=docs $(BIN)/pytest tests/real/test_ui.py

wheel: .venv/bin/python  ## dist/*.whl; TURNGATE_URL=https://... is the address of the repository that its description links to
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

bench: .venv/installed-dev  ## tables of benchmarks/README.md that need no real engine
	$(BIN)/python -m benchmarks.simulation all
	$(BIN)/python -m benchmarks.fleet --fleet base
	$(BIN)/python -m benchmarks.fleet --fleet below
	$(BIN)/python -m benchmarks.clients.identity
	$(BIN)/python -m benchmarks.clients.fleets
	$(BIN)/python -m benchmarks.overhead.transports
	$(BIN)/python -m benchmarks.overhead.streams
	$(BIN)/python -m tests.real.install peers litellm nginx
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.overhead.memory
	$(BIN)/python -m benchmarks.fuzz --inputs 1000000 --by-chance
	$(BIN)/python -m benchmarks.fuzz.openapi --seconds 600
	$(BIN)/python -m benchmarks.soak --seconds 1800

clean:
	rm -rf .venv

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "python3.11, 3.12 or 3.13 (with venv) is needed on PATH, or PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
