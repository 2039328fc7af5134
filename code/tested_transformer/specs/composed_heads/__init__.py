"""The Specs of DCMHA: heads that are composed, and the attention around them."""
