"""A tokenizer.json, as transformers stores it beside a model: read by the library tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from ..bounds import Unicode, Where
from ..errors import argument_error
from ..shapes import checked
from ..special_tokens import pad

__all__ = ["TokenBatch", "encode_batch", "load_tokenizer"]

FILE = "tokenizer.json"
Texts = Annotated[Sequence[Unicode | tuple[Unicode, Unicode]], Where("at least one text", len)]


class TokenBatch(NamedTuple):
    """What a model reads of several texts; the attention mask is 1 at tokens and 0 at padding.

    Shapes: all (B, L), L the longest.
    """

    input_ids: Int[Tensor, "B L"]
    attention_mask: Int[Tensor, "B L"]
    token_type_ids: Int[Tensor, "B L"]  # 1 in the second text of a pair


@checked
def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer in a folder; it cuts nothing off and adds no padding, whatever the file says.

    Its `encode(text).ids` are a list with the special tokens of the file, and `decode(ids)` is text.

    Raises: FileNotFoundError for a folder without tokenizer.json; ValueError for a file that is cut
        short, or holds no tokenizer.
    Source: transformers, PreTrainedTokenizerFast.save_pretrained.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise argument_error(
            FileNotFoundError, "folder", f"{folder} without one", f"a {FILE} in it"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other
        raise argument_error(
            ValueError, FILE, f"a file with {error}", "a whole tokenizer"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@checked
def encode_batch(
    tokenizer: Tokenizer, texts: Texts, *, padding_side: Literal["left", "right"] = "right"
) -> TokenBatch:
    """Texts, or pairs of texts, as one batch for a model; to generate, pad on the left.

    Padding is token ID 0: no model looks at it.

    Shapes: B texts -> (B, L), L the longest.
    Raises: TypeError or ValueError that name the argument.
    """
    found, left = tokenizer.encode_batch(list(texts)), padding_side == "left"
    return TokenBatch(
        pad([each.ids for each in found], left=left, value=0),
        pad([each.attention_mask for each in found], left=left, value=0),
        pad([each.type_ids for each in found], left=left, value=0),
    )
