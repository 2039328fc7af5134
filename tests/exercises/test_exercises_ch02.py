"""The exercises of chapter 2: a right answer passes, each mistake is caught and named."""

import pytest
import torch

from tested_transformer import check

# Written differently from the references and rulers, so that both are tried.


def additive_scores(query, key, w_query, w_key, w_v):
    rows = []
    for q in (query @ w_query.T).unbind(-2):
        rows.append(torch.tanh(key @ w_key.T + q.unsqueeze(-2)) @ w_v)
    return torch.stack(rows, dim=-2)


def kernel_regression(query, key, value, bandwidth):
    steps = (query[..., :, None, :] - key[..., None, :, :]) / bandwidth
    return (-0.5 * (steps * steps).sum(-1)).softmax(-1) @ value


def gaussian_features(query, key, bandwidth):
    lengths = -(key * key).sum(-1, keepdim=True) / (2 * bandwidth**2)
    of_query = torch.cat([query / bandwidth, torch.ones_like(query[..., :1])], -1)
    return of_query, torch.cat([key / bandwidth, lengths], -1)


def local_p_weights(scores, centers, half_width):
    steps = torch.arange(scores.shape[-1]) - centers[..., None]
    inside = scores.masked_fill(steps.abs() > half_width, float("-inf"))
    return torch.softmax(inside, -1) * torch.exp(-2 * (steps / half_width) ** 2)


def split(weight, rank):
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    root = s[:rank].sqrt()
    return root[:, None] * u[:, :rank].T, root[:, None] * v[:rank]


SOLUTIONS = {
    "ch02.additive_scores": additive_scores,
    "ch02.kernel_regression": kernel_regression,
    "ch02.gaussian_features": gaussian_features,
    "ch02.local_p_weights": local_p_weights,
    "ch02.split": split,
}


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("ch02.gaussian_features", lambda q, k, b: q, "return two tensors"),
        ("ch02.gaussian_features", lambda q, k, b: (q, torch.cat([k, k], -1)), "no dot product"),
        ("ch02.split", lambda w, rank: w, "return two tensors"),
        ("ch02.split", lambda w, rank: (w.T, w), "rows each"),
    ],
)
def test_an_answer_of_the_wrong_form_is_told_so(name, wrong, words):
    verdict = check(name, wrong)
    assert not verdict.passed
    assert words in verdict.problem.got
