"""The Specs of clustered attention, plain and improved."""
