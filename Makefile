# make demo and make test do everything on a fresh machine; the rest is for those who work here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo browser test test-slow lint bench dashboard clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvmill needs Python 3.11 or newer (PYTHON=… make …)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,test]'
	touch $@

demo: install
	$(BIN)/kvmill demo $(ARGS)

# The browser tests need a Chromium. It is installed where that is allowed; where not, they skip and say so.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

browser:
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		DEBIAN_FRONTEND=noninteractive timeout 300 sh -c 'apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium' \
			>/dev/null 2>&1 || echo "Chromium could not be installed: the browser tests will be skipped"; \
	fi

# Two tests at once, a thread each: a file runs in one process, in the order in which files are collected.
WORKERS ?= 2

test: install lint browser
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: install
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: install
	@mkdir -p .typing && ln -sfn .. .typing/kvmill
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error

bench: install
	$(BIN)/kvmill bench $(ARGS)

dashboard: install
	$(BIN)/kvmill dashboard $(ARGS)

clean:
	rm -rf $(VENV) .typing .pytest_cache .ruff_cache .hypothesis
