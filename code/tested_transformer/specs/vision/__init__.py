"""The Specs of images as tokens: patches, and positions for another number of them."""
