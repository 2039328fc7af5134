"""The slow truth of CRATE: determinants and linear systems by elimination, sums in loops."""

from __future__ import annotations

import numpy as np

from .attention import _wide, dot, softmax


def solve(matrix, right):
    """The solution of matrix @ solution = right and the determinant, by Gaussian elimination. Source: the definition."""
    rows = np.concatenate((matrix, right), 1)
    size, determinant = len(matrix), rows.dtype.type(1)
    for i in range(size):  # I + a Gram matrix is positive definite: no pivot is 0
        determinant *= rows[i, i]
        rows[i] /= rows[i, i]
        for j in range(size):
            if j != i:
                rows[j] -= rows[j, i] * rows[i]
    return rows[:, size:], determinant


def _gram(tokens, factor):
    """I + factor x the dot products of all pairs of tokens."""
    length = len(tokens)
    gram = np.eye(length, dtype=tokens.dtype)
    for i, j in np.ndindex(length, length):
        gram[i, j] += factor * dot(tokens[i], tokens[j])
    return gram


def coding_rate(x, eps):
    """1/2 log det(I + D / (L eps^2) x x^T). Shapes: (*batch, L, D) -> (*batch). Source: CRATE."""
    x = _wide(x)
    length, width = x.shape[-2:]
    rates = np.zeros(x.shape[:-2], x.dtype)
    for place in np.ndindex(rates.shape):
        gram = _gram(x[place], x.dtype.type(width) / (max(length, 1) * x.dtype.type(eps) ** 2))
        rates[place] = np.log(solve(gram, gram[:, :0])[1]) / 2
    return rates


def _projected(tokens, basis):
    """Each token in a subspace. Shapes: (L, D), (D, d) -> (L, d)."""
    return np.array([[dot(token, column) for column in basis.T] for token in tokens], tokens.dtype)


def coding_rate_gradient(x, bases, eps):
    """The sum over heads of a (I + a y y^T)^-1 y U^T, y = x U. Shapes: x (*batch, L, D), bases (H, D, d). Source: CRATE."""
    x, bases = _wide(x), _wide(bases)
    gradient = np.zeros_like(x)
    factor = x.dtype.type(bases.shape[-1]) / (max(x.shape[-2], 1) * x.dtype.type(eps) ** 2)
    for place in np.ndindex(x.shape[:-2]):
        for basis in bases:
            y = _projected(x[place], basis).reshape(x.shape[-2], -1)
            solved, _ = solve(_gram(y, factor), factor * y)
            gradient[place] += _projected(solved, basis.T).reshape(x[place].shape)
    return gradient


def subspace_attention(x, bases, *, scale=None, causal=False):
    """The sum over heads of softmax(y y^T) y U^T, y = x U. Shapes: x (*batch, L, D), bases (H, D, d). Source: CRATE."""
    x, bases = _wide(x), _wide(bases)
    output = np.zeros_like(x)
    scale = bases.shape[-1] ** x.dtype.type(-0.5) if scale is None else scale
    for *place, i in np.ndindex(x.shape[:-1]):
        for basis in bases:
            y = _projected(x[tuple(place)], basis)
            seen = y[: i + 1] if causal else y
            weights = softmax(np.array([scale * dot(y[i], key) for key in seen]))
            total = sum(weight * value for weight, value in zip(weights, seen, strict=True))
            output[(*place, i)] += [dot(total, row) for row in basis]
    return output


def ista_step(codes, x, dictionary, *, step_size=0.1, sparsity=0.1):
    """A gradient step on the squared error, then minus step_size x sparsity, clamped at 0. Shapes: codes (*batch, F),
    x (*batch, D), dictionary (D, F) -> (*batch, F). Source: Beck and Teboulle 2009; CRATE."""
    codes, x, dictionary = map(_wide, (codes, x, dictionary))
    new = np.zeros_like(codes)
    for *place, f in np.ndindex(codes.shape):
        place = tuple(place)
        total = x.dtype.type(0)
        for d in range(len(dictionary)):
            total += dictionary[d, f] * (x[place][d] - dot(dictionary[d], codes[place]))
        new[(*place, f)] = max(codes[place][f] + step_size * (total - sparsity), 0)
    return new
