"""The Spec of latent attention."""
