"""The Specs of browsing and of choosing: comparisons, the best of n, a text browser's bookkeeping."""
