"""The picture of what describe_mask() says: one panel, or one for each part that differs."""

import numpy as np
import torch

from tested_transformer import describe_mask
from tested_transformer.functional.masks import causal_mask, padding_mask
from tested_transformer.plotting.mask_report import mask_report_picture


def test_picture():
    data = mask_report_picture(describe_mask(causal_mask(3), rows=["a", "b", "c"])).data
    np.testing.assert_array_equal(data["mask"], np.tri(3, dtype=bool))
    assert data["rows"] == ["a", "b", "c"]
    data = mask_report_picture(
        describe_mask(padding_mask(torch.tensor([2, 3]), 4), rows=["x", "y"])
    ).data
    assert data["masks"].shape == (2, 2, 4)
