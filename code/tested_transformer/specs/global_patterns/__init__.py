"""The Specs of Longformer's and BigBird's attention."""
