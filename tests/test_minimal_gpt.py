"""minimal_gpt.py: GPT-2 in at most 60 lines, equal to transformers' and to the package's."""

from pathlib import Path

import pytest
import torch

from tested_transformer import from_pretrained, minimal_gpt

pytestmark = pytest.mark.plain_types


def test_it_fits_on_a_page():
    assert len(Path(minimal_gpt.__file__).read_text(encoding="utf-8").splitlines()) <= 60


def test_it_equals_transformers_and_the_package(tmp_path):
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_positions": 9, "n_embd": 12, "n_head": 3, "n_layer": 2}
    config = hf.GPT2Config(vocab_size=17, bos_token_id=0, eos_token_id=2, **sizes)
    theirs = hf.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():  # biases and scales too, which begin as zeros and ones
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    plain = minimal_gpt.GPT2(17, *sizes.values()).double()
    given = theirs.transformer.named_parameters()
    for weight, (name, source) in zip(plain.parameters(), given, strict=True):
        weight.data = source.data.T if "c_" in name and source.ndim == 2 else source.data
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(17, (2, 9))
    wanted = theirs(ids).logits
    torch.testing.assert_close(plain(ids), wanted)
    torch.testing.assert_close(from_pretrained(tmp_path).double().eval()(ids), wanted)


@pytest.mark.parametrize(
    ("d_model", "num_layers", "count"),
    [
        (768, 12, 124_439_808),
        (1024, 24, 354_823_168),
        (1280, 36, 774_030_080),
        (1600, 48, 1_557_611_200),
    ],
)
def test_the_sizes_of_the_paper(d_model, num_layers, count):
    with torch.device("meta"):
        model = minimal_gpt.GPT2(50257, 1024, d_model, d_model // 64, num_layers)
    assert sum(weight.numel() for weight in model.parameters()) == count
