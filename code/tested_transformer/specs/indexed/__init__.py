"""The Specs of DeepSeek sparse attention: the attention, its indexer, and the indexer's loss."""
