"""The Specs of sparse attention by fixed patterns: masks, local windows, dilated branches."""
