"""The auxiliary losses, against torch's cross-entropy in values and gradients, and what they refuse."""

import pytest
import torch
from torch.nn import functional

from tested_transformer.training.auxiliary import auxiliary_loss, layer_weights
from tested_transformer.training.losses import next_token_loss


def characters(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=rng, dtype=torch.float64)
    return logits, torch.randint(0, shape[-1], (shape[2], shape[3]), generator=rng)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("progress", [0.0, 0.2, 0.4, 0.5, 1.0])
def test_against_torch(seed, progress):
    logits, ids = characters(3, 2, 2, 7, 5, seed=seed)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    first = [layer for layer in (0, 1) if progress < (layer + 1) / 6]
    wanted = 0.0
    for layer in (*first, 2):
        one = functional.cross_entropy(theirs[layer, 0, :, :-1].transpose(1, 2), ids[:, 1:])
        two = functional.cross_entropy(theirs[layer, 1, :, :-2].transpose(1, 2), ids[:, 2:])
        wanted = wanted + one + 0.5 * two
    loss = auxiliary_loss(ours, ids, progress=progress)
    (found,), (expected,) = torch.autograd.grad(loss, ours), torch.autograd.grad(wanted, theirs)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(found, expected)


def test_in_the_end_it_is_the_usual_loss():
    logits, ids = characters(4, 1, 3, 6, 9)
    loss = auxiliary_loss(logits, ids, progress=1.0)
    torch.testing.assert_close(loss, next_token_loss(logits[-1, 0], ids))


def test_a_step_of_training_for_each_layer():
    """64 layers: one more stops with every 128th of the training."""
    counts = [int(layer_weights(64, step / 128).sum()) for step in range(129)]
    assert counts == [max(64 - step, 1) for step in range(129)]


def test_no_target_in_the_text():
    logits, ids = characters(2, 3, 1, 1, 4)
    assert auxiliary_loss(logits, ids, progress=0.0).item() == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"progress": 1.5}, "progress: expected"),
        ({"progress": -0.1}, "progress: expected"),
        ({"progress": 0.5, "extra_weight": -1.0}, "extra_weight: expected"),
    ],
)
def test_bad_arguments(options, message):
    logits, ids = characters(2, 2, 1, 3, 4)
    with pytest.raises(ValueError, match=message):
        auxiliary_loss(logits, ids, **options)


def test_bad_shapes():
    logits, ids = characters(2, 2, 1, 3, 4)
    with pytest.raises(ValueError, match="ids: expected shape"):
        auxiliary_loss(logits, ids[:, 1:], progress=0.5)
    with pytest.raises(ValueError, match="num_layers: expected"):
        layer_weights(0, 0.5)
