# Every target works on a machine that has nothing but Python 3.11+ (and apt-get for the browser test).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS ?= 30
# One more than cores, because tests wait for processes that they start; a worker takes up to 2.5 GB.
WORKERS := $(shell $(PYTHON) -c "import os; print(1 + min(os.cpu_count() or 1, 3))")
# A second environment of 110 MB: what builds a release and resolves versions needs none of the rest.
TOOLS := build/tools
TOOLS_STAMP := $(TOOLS)/.installed
RESOLUTION_lowest := lowest-direct
RESOLUTION_newest := highest
SMOKE_EXTRAS := all,heic,raw,ocr,speech,watch,openclip,st,mcp,ray,s3

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 28

setup: $(STAMP) ## make .venv and install everything at the tested versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	# Only its BPE table is read (by the tokenizer tests), so none of its own dependencies.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps open_clip_torch timm ftfy wcwidth -c constraints.txt
	touch $(STAMP)

$(TOOLS_STAMP): tools/requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r tools/requirements.txt
	touch $(TOOLS_STAMP)

format: $(STAMP) ## format and sort imports
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

check: $(STAMP) ## ruff, mypy --strict, import contract
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports

browser: ## install Debian's Chromium for the page test (skipped where there is one, or no apt-get)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium found and none could be installed: the page test will be skipped"

docs: $(STAMP) ## build the documentation with its Python reference into dist/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

quick: check ## checks and the fast tests, in under a minute: before a commit
	$(BIN)/python tools/quick.py

test: browser ## checks, then the default tests (offline, CPU); pictures of the page in out/pictures
	@$(MAKE) --no-print-directory -j 2 check docs  # the documentation takes one core
	EAGLENET_KEEP_PICTURES=out/pictures $(BIN)/pytest -n $(WORKERS) --dist worksteal

test-all: check browser ## the slow tests too
	$(BIN)/pytest -n 2 --dist worksteal -m "not gpu and not download"

test-hostile: $(STAMP) ## the campaign against it: every fuzzer for SECONDS each, every cut and fault
	EAGLENET_HOSTILE_SECONDS=$(SECONDS) $(BIN)/pytest tests/hostile tests/serve/test_hostile_requests.py tests/serve/test_memory.py -m "not gpu and not download"

audit: $(STAMP) ## known holes in the dependencies, where a network is; pins and the list of parts anyhow
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 10 pip-audit -c constraints.txt
	$(BIN)/python tools/audit.py --sbom dist/sbom.json

dist: $(TOOLS_STAMP) ## wheel and sdist in dist/, checked as PyPI checks them
	rm -f dist/*.whl dist/*.tar.gz
	$(TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS)/bin/twine check --strict dist/*.whl dist/*.tar.gz

resolve: $(TOOLS_STAMP) ## resolve constraints.txt for every supported Python and platform
	$(TOOLS)/bin/python tools/resolve.py

pins: $(TOOLS_STAMP) ## write constraints.txt and the hashed files again; UPGRADE="a b" takes newer versions of a and b
	$(TOOLS)/bin/python tools/resolve.py --update --upgrade $(UPGRADE)

smoke: $(STAMP) ## read, index, search and serve one clip with what is installed
	$(BIN)/python tools/smoke.py

smoke-lowest smoke-newest: smoke-%: $(TOOLS_STAMP) ## the same with the lowest or newest versions allowed (downloads GBs)
	$(TOOLS)/bin/uv venv --quiet --clear --python $(PYTHON) build/$*
	$(TOOLS)/bin/uv pip install --quiet --python build/$*/bin/python --resolution $(RESOLUTION_$*) '.[$(SMOKE_EXTRAS)]'
	build/$*/bin/python tools/smoke.py

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu

demo: $(STAMP) ## index twelve real clips, ask five queries, draw the hits (demo/results.png)
	$(BIN)/eaglenet demo --output demo

.PHONY: help setup format check docs browser quick test test-all test-hostile audit dist resolve pins smoke smoke-lowest smoke-newest test-gpu demo
