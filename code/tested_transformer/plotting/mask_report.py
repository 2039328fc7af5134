"""What describe_mask() says of a mask, as a figure."""

from __future__ import annotations

from ..analysis.describe_mask import MOST_PARTS, MaskReport
from . import Picture, mask_picture, mask_pictures


def mask_report_picture(report: MaskReport) -> Picture:
    """One panel, or one for each sample or head that differs."""
    labels = {"rows": report.rows, "columns": report.columns}
    if len(report.parts) == 1:
        return mask_picture(report.parts[0], **labels)
    parts, names = report.parts[:MOST_PARTS], report.names[:MOST_PARTS]
    return mask_pictures(list(parts), titles=[n.removesuffix(": ") for n in names], **labels)
