"""The Spec of RWKV-4's WKV."""
