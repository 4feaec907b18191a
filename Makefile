# Two commands do all the set-up: `make demo` and `make test`. Python 3.10 or 3.11.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= $(firstword $(foreach v,3.11 3.10,$(shell python$(v) -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null)))
BIN := $(VENV)/bin
LOCK = constraints/lock-py$(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])').txt
STAMP := $(VENV)/.installed

.PHONY: demo demo-detection test lint install clean

demo: $(STAMP)
	$(BIN)/paddle-mem demo

# the second part: two detectors on handwritten digits, with PaddleDetection
demo-detection: $(STAMP)
	$(BIN)/python examples/detection/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

# uv resolves and downloads in under a minute; the environment itself is made by venv, because paddlenlp imports pip.
# compileall: importing paddlenlp without bytecode takes three times as long, every time.
$(STAMP): setup.cfg pyproject.toml Makefile $(wildcard constraints/*.txt)
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.10 or 3.11 is needed: paddledet 2.6.0 (numpy<1.24) does not install on newer ones." \
	  "Install one of them, or name it: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.11"; exit 2; fi
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 10), (3, 11)) else "Python %d.%d will not do: 3.10 or 3.11 is needed (paddledet 2.6.0 forces numpy<1.24). Name one: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c $(LOCK) paddlepaddle==3.3.1 -e '.[nlp,det,demo,dev]'
	$(BIN)/python -m compileall -q -j2 $(VENV)/lib > /dev/null || true
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache demo_output
