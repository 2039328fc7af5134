"""The Specs of retrieval: who reads which chunk, chunked cross-attention, exact nearest neighbors."""
