"""A forbidden function is seen under any alias, and nothing else is taken for it."""

import json

import pytest
from handed_in import cells, code, junk, read
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer.homework.submissions.forbidden import uses
from tested_transformer.homework.submissions.reading import Source, read_notebook

FORBIDDEN = "F.scaled_dot_product_attention"
USES = {
    "alias": "import torch.nn.functional as F\nF.{0}(1)",
    "long": "import torch\ntorch.nn.functional.{0}(1)",
    "submodule": "import torch.nn.functional\ntorch.nn.functional.{0}(1)",
    "from torch.nn": "from torch.nn import functional\nfunctional.{0}(1)",
    "nn": "from torch import nn as layers\nlayers.functional.{0}(1)",
    "name": "from torch.nn.functional import {0}\n{0}(1)",
    "name as": "from torch.nn.functional import {0} as s\ns(1)",
    "star": "from torch.nn.functional import *\n{0}(1)",
    "getattr": "import torch\ngetattr(torch.nn.functional, '{0}')(1)",
    "getattr twice": "import torch\ng = getattr\ng(g(torch, 'nn').functional, '{0}', None)(1)",
    "assigned": "import torch.nn.functional as F\ns = t = F.{0}\nt(1)",
    "module assigned": "import torch\nx = torch.nn\ny: object = x.functional\ny.{0}(1)",
    "walrus": "import torch\n(x := torch.nn.functional).{0}(1)",
    "written above": "import torch\ndef g(): return y.{0}\ny = x.functional\nx = torch.nn",
    "imported inside": "import torch.nn.functional as F\ndef g():\n  return F.{0}(1)",
    "import inside": "def g():\n  import torch.nn.functional as q\n  return q.{0}(1)",
    "import_module": "from importlib import import_module as i\ni('torch.nn.functional').{0}(1)",
    "importlib": "import importlib\nimportlib.import_module('torch').nn.functional.{0}(1)",
    "__import__": "__import__('torch.nn').nn.functional.{0}(1)",
    "passed on": "import torch.nn.functional as F\nmap(F.{0}, [])",
    "default": "import torch.nn.functional as F\ndef g(f=F.{0}): return f(1)",
    "a loop of names": "import torch.nn.functional as F\nF = F.x = G = F\nG.{0}",
}


def source_of(text):
    return Source(code=text.format(FORBIDDEN.partition(".")[2]))


@pytest.mark.parametrize("text", USES.values(), ids=USES)
def test_a_forbidden_function_is_seen_under_any_alias(text):
    assert uses(source_of(text), FORBIDDEN)
    assert uses(source_of(text), "torch.nn.functional.scaled_dot_product_attention")
    assert not uses(source_of(text), "F.softmax")


INNOCENT = {
    "another function": "import torch.nn.functional as F\nF.softmax(1)",
    "another library": "import other as F\nF.{0}(1)",
    "unknown": "F.{0}(1)",
    "own": "def {0}(q): return q\n{0}(1)",
    "method": "class A:\n  def g(self): return self.{0}(1)",
    "text": "a = 'F.{0}(1)'",
    "imported only": "from torch.nn.functional import {0}",
    "only bound": "from torch.nn.functional import {0}\n{0} = 1",
    "relative": "from .torch.nn.functional import {0}\n{0}(1)",
    "other star": "from math import *\n{0}(1)",
    "longer": "import torch.nn.functional as F\nF.{0}_x(1)\nF.x.{0}(1)",
    "run time": "import torch\ngetattr(torch.nn.functional, name)(1)",
    "deep": f"import torch\ntorch{'.nn' * 1500}",
}


@pytest.mark.parametrize("text", INNOCENT.values(), ids=INNOCENT)
def test_what_is_not_the_forbidden_function_is_not_seen(text):
    assert not uses(source_of(text), FORBIDDEN)


def test_use_is_read_from_a_whole_notebook():
    source = read(
        "import torch.nn.functional as F\n%time", "def f(q):\n    return F.softmax(q, -1)"
    )
    assert uses(source, "F.softmax")
    assert not uses(source, FORBIDDEN)


@pytest.mark.parametrize("name", ["", "softmax", "F.", ".F", "F.soft max", "F..x", "1.x"])
def test_a_name_that_is_not_dotted_is_an_error(name):
    with pytest.raises(ValueError, match="name: expected a dotted name"):
        uses(Source(), name)


OURS = code(*(source_of(text).code for text in [*USES.values(), *INNOCENT.values()]))


@given(st.lists(cells | junk | st.sampled_from(OURS), max_size=5))
@settings(max_examples=300)
def test_no_notebook_raises(found):
    uses(read_notebook(json.dumps({"cells": found}).encode()), FORBIDDEN)
