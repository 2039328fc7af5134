"""What is loaded for whom: attention asks for torch and its own formula, and for nothing of the book."""

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = Path(__file__).resolve().parents[2] / "code"
# Packages that some part of this one needs, and attention does not.
HEAVY = {"matplotlib", "safetensors", "sympy", "tokenizers", "tqdm", "transformers", "triton"}
ATTENTION = "q = torch.ones(1, 1, 2, 2); tested_transformer.attention(q, q, q)"
# The files of attention, shapes and errors. A backend that a call does not take is among them.
OF_ATTENTION = (
    "bounds errors shapes functional functional.attention functional.inputs functional.masks "
    "functional.backends functional.backends.flash functional.backends.flash_configs "
    "functional.backends.fused functional.backends.plain functional.backends.tiled"
).split()


def loaded_by(script: str) -> set[str]:
    """The modules that a fresh process has loaded after the script, beyond those of torch."""
    command = (
        "import json, sys, torch; before = set(sys.modules); import tested_transformer; "
        f"{script}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    settings = {**os.environ, "PYTHONPATH": str(CODE)}
    done = subprocess.run(
        [sys.executable, "-c", command], env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_the_package(modules: set[str]) -> set[str]:
    return {name.partition(".")[2] for name in modules if name.startswith("tested_transformer.")}


def test_importing_the_package_loads_one_module():
    assert loaded_by("pass") == {"tested_transformer"}


def test_a_call_of_attention_loads_its_own_files_alone():
    modules = loaded_by(ATTENTION)
    assert of_the_package(modules) - set(OF_ATTENTION) == set()
    assert len(of_the_package(modules)) > 5
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()


def test_what_stands_above_the_line_loads_nothing_of_the_book():
    names = "Transformer LanguageModel Trainer generate beam_search count_flops translate".split()
    script = "; ".join(f"tested_transformer.{name}" for name in names)
    folders = {name.partition(".")[0] for name in of_the_package(loaded_by(script))}
    assert folders > {"models", "training", "generation", "analysis"}
    assert folders & set("plotting experiments specs exercises reader homework".split()) == set()


def test_the_kernels_tests_need_jaxtyping_alone():
    """What tools/bare.py stands in for on a GPU machine: the Specs load no other package."""
    modules = loaded_by("import tested_transformer.specs.attention.spec")
    outside = {name.partition(".")[0] for name in modules} & HEAVY
    assert outside - {"triton"} == set()


def test_the_pages_of_the_api_need_no_package_of_the_tests():
    """`make book` installs requirements.txt alone, and finds every public name with it."""
    lines = (CODE.parent / "requirements-dev.txt").read_text().splitlines()
    packages = [line.partition("==")[0].replace("-", "_") for line in lines if "==" in line]
    assert "triton" in packages
    command = (
        f"import sys; sys.modules.update(dict.fromkeys({packages}))\n"
        "from tested_transformer.reader.public_names import public_names; print(len(public_names()))"
    )
    settings = {**os.environ, "PYTHONPATH": str(CODE)}
    done = subprocess.run(
        [sys.executable, "-c", command], env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80


def test_every_public_name_is_there():
    import tested_transformer

    missing = [
        name for name in tested_transformer.__all__ if getattr(tested_transformer, name) is None
    ]
    assert missing == []
