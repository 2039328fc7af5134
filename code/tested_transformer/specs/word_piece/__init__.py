"""WordPiece: BERT's words, the longest tokens of a word, and the vocabulary."""
