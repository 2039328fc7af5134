"""The Specs of retention, with given decays and with gates."""
