# The Tested Transformer. `make` alone lists the commands. Works with GNU make 3.81 and later.

PYTHON ?= python3
PORT ?= 8000
GPU_PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
INSTALL := $(BIN)/python tools/install.py
SITE := _build/html/index.html
BEGAN := $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: help book pdf homework test test-fast lab serve refresh clean links book-next judge-soak malformed gpu-compile test-gpu tune-gpu bench-gpu \
	python venv pdf-asked refresh-asked
.PRECIOUS: $(SITE)  # an interrupted make would delete it, though it is whole

help:
	@echo "make book       build the site from nothing and say where to open it"
	@echo "make pdf        print every chapter and the whole book as PDF (ONLY=\"3 book\" for some, PAPER=letter)"
	@echo "make test       check everything: code, chapters, site (RECORD=1: store the numbers for the book)"
	@echo "make test-fast  lint, doctests and the quick unit tests, for the edit loop"
	@echo "make lab        open the chapters in JupyterLab (LAB=\"--no-browser --port=8889\" hands options on)"
	@echo "make serve      serve the built site on this machine (PORT=8000)"
	@echo "make homework   write the assignments: students' versions, and solutions for instructors"
	@echo "make refresh    execute the chapters and store their outputs (CHAPTERS=\"3 10\" for some)"
	@echo "make links      ask every outside address that a page links to whether it still answers"
	@echo "make malformed  call everything public with malformed arguments, and say what becomes of each call"
	@echo "make book-next  build the site without Jupyter Book 1, under a later Sphinx"
	@echo "make judge-soak  judge every right implementation at 500 seeds (SEEDS=20, FIRST=100, MINUTES=60, ONLY=attention)"
	@echo "make clean      delete what was built, and the environment"
	@echo "make gpu-compile  compile the flash kernels for a GPU, without having one (Linux)"
	@echo "make test-gpu     the flash kernels' tests on a GPU (GPU_PYTHON=python3 has torch and Triton)"
	@echo "make tune-gpu     measure tile sizes on a GPU; make bench-gpu measures against other kernels"
	@echo "Another Python: make book PYTHON=python3.12"

book: $(VENV)/book.stamp
	@$(BIN)/python tools/build_book.py --since $(BEGAN)

# The site, if it is not there or something that it is made of is younger.
$(SITE): $(VENV)/book.stamp $(shell sed -n 's,^ *- file: \(chapters/.*\),\1.ipynb,p' _toc.yml) \
		$(shell find book code/tested_transformer benchmarks/results tools/generate.py \
		_config.yml _toc.yml CITATION.cff CHANGELOG.md CONTRIBUTING.md \
		-type f -not -path "*/generated/*" -not -path "*/__pycache__/*" -not -path "*/.*" -not -path "* *" 2>/dev/null)
	@$(BIN)/python tools/build_book.py --since $(BEGAN)

pdf: pdf-asked $(VENV)/dev.stamp $(SITE)
	@$(BIN)/python tools/pdf.py $(if $(ONLY),--only $(ONLY)) $(if $(PAPER),--paper $(PAPER))

test: $(VENV)/dev.stamp $(VENV)/homework.stamp $(VENV)/gpu.stamp $(VENV)/lighthouse.stamp
	@$(BIN)/python tools/run_tests.py $(if $(RECORD),--record)

test-fast: $(VENV)/dev.stamp
	@$(BIN)/python tools/run_tests.py --fast

lab: $(VENV)/book.stamp
	@mkdir -p chapters/my_transformer  # here check() keeps what a reader wrote, see book/how_to_use.md
	@$(BIN)/python tools/trust.py
	@OMP_NUM_THREADS=1 $(BIN)/python -m jupyterlab chapters $(LAB)  # small products, and as the tests run them

serve: python
	@$(PYTHON) tools/serve.py --port $(PORT)

homework: $(VENV)/homework.stamp
	@$(BIN)/python tools/homework.py $(NAMES)

refresh: refresh-asked $(VENV)/dev.stamp
	@$(BIN)/python tools/refresh.py $(CHAPTERS)

links: $(VENV)/book.stamp
	@$(BIN)/python tools/links.py

malformed: $(VENV)/dev.stamp
	@OMP_NUM_THREADS=1 $(BIN)/python tools/malformed.py $(if $(ONLY),--only $(ONLY))

book-next: $(VENV)/book.stamp
	@$(BIN)/python tools/book_next.py

judge-soak: $(VENV)/homework.stamp $(VENV)/dev.stamp
	@$(BIN)/python tools/judge_soak.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only "$(ONLY)")

# On a GPU machine nothing is installed: these take what is there, torch, Triton, NumPy and pytest.
gpu-compile: $(VENV)/dev.stamp $(VENV)/gpu.stamp
	@PYTHONPATH=$(VENV)/triton $(BIN)/python tools/gpu_compile.py $(if $(PLAN),--plan)

test-gpu:
	@$(GPU_PYTHON) -m pytest -q -p no:cacheprovider tests/gpu $(if $(DEADLINE),--deadline $(DEADLINE))

tune-gpu bench-gpu:
	@$(GPU_PYTHON) benchmarks/$(if $(filter tune-gpu,$@),flash_tuning,attention_gpu).py $(if $(DEADLINE),--deadline $(DEADLINE)) $(if $(RESULTS),--results $(RESULTS))

clean:
	rm -rf $(VENV) _build book/generated .pytest_cache .ruff_cache .hypothesis code/*.egg-info
	find code tests tools chapters book \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# A wrong name is said before anything is installed or built for it.
pdf-asked: venv
	@case "$(PAPER)" in ""|A4|letter) ;; *) echo "The paper is A4 or letter, not $(PAPER)." >&2; exit 1;; esac
	@$(BIN)/python tools/chapters.py --or-book $(ONLY)

refresh-asked: venv
	@$(BIN)/python tools/chapters.py $(CHAPTERS)

# The environment. A stamp is younger than the file that it installed, or make installs again.
python:
	@$(PYTHON) -c "" >/dev/null 2>&1 || { echo "There is no $(PYTHON) here: install Python 3.11 to 3.14, or name one, as in \`make book PYTHON=python3.12\`." >&2; exit 1; }

venv: python
	@$(PYTHON) tools/make_venv.py $(VENV)

$(VENV)/book.stamp: requirements.txt pyproject.toml | venv
	@$(INSTALL) requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt $(VENV)/book.stamp
	@$(INSTALL) requirements-dev.txt
	@touch $@

$(VENV)/homework.stamp: requirements-homework.txt $(VENV)/book.stamp
	@$(INSTALL) requirements-homework.txt
	@touch $@

# Linux only, since Triton is: elsewhere the folder stays empty, and the step says so.
$(VENV)/gpu.stamp: requirements-gpu.txt $(VENV)/dev.stamp
	@mkdir -p $(VENV)/triton
	@if [ "$$(uname -s)" = Linux ]; then $(INSTALL) requirements-gpu.txt --target $(VENV)/triton; fi
	@touch $@

# Where node, npm or a network for it is missing, the tests of Lighthouse are skipped and say so.
$(VENV)/lighthouse.stamp: tests/browser/lighthouse/package-lock.json $(VENV)/dev.stamp
	@mkdir -p $(VENV)/lighthouse && cp tests/browser/lighthouse/*.json $(VENV)/lighthouse/
	@if ! command -v npm >/dev/null 2>&1; then echo "There is no npm here: Lighthouse is not installed."; \
	elif npm ci --prefix $(VENV)/lighthouse --ignore-scripts --no-audit --no-fund --loglevel=error; then touch $@; \
	else echo "npm could not install Lighthouse: its tests will be skipped."; fi
