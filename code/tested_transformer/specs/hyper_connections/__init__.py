"""The Specs of hyper-connections and of a gate on attention."""
