"""The Specs of BERT's data: masked tokens, and pairs of sentences."""
